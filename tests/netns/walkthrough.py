"""Follow a page of docs/ as a reader would: each block typed as it stands, where the text says.

- The text before a block has the machine's name in bold: "On **garage**, run". It goes on for later blocks; a
  page with one machine does not name it.
- Of a block with lines that begin with `$ `, those are typed, and the others are what should be seen. Of any
  other block without a language all lines are typed. A block of `text` is what comes next in the terminal
  where a command keeps running. A block in any other language is saved under the name that stands in the text
  before it as `` `NAME`: ``.
- A command that keeps running keeps its terminal; the next one on that machine gets another.

In what should be seen `…` is any text, or any lines if it is alone, a number any number, an id any id. What a
reader copies from a screen (an invite) is what came there last. What only looks is typed again until it shows
what the page has. Hosts and models of the page are replaced by
those of the bench.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from tests.netns.terminal import Terminal

STAYS = re.compile(r"meshd (?:worker|serve|client|relay|logs -f|service logs .*-f)\b")
LOOKS = re.compile(r"meshd (?:peers|status)\b")  # a direct path may take a moment
COMMAND_SECONDS = 120.0
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`([\w./~-]+)`:\s*\Z")
_ANY_ID, _ANY_NUMBER = r"[a-z0-9]{10,16}", r"\d+(?:[.,]\d+)*"
_VARIABLE = re.compile(rf"(\b(?=[a-z]*\d){_ANY_ID}\b)|{_ANY_NUMBER}")
# what is copied from one screen to another command, by how a page writes it
COPIED = {
    "meshd1…": re.compile(r"\bmeshd1[a-z2-7]{40,}"),
    "meshdreply1…": re.compile(r"\bmeshdreply1\w{20,}"),
}
COPIED |= {"relay://…": re.compile(r"\brelay://\S+"), "MESH_ID": re.compile(r"^[a-z2-7]{52}$", re.MULTILINE)}


@dataclass(frozen=True, slots=True)
class Command:
    """A line to type on `machine`, and the lines that should be seen then."""

    machine: str
    text: str
    expected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Awaited:
    """Lines that a command writes that still runs on `machine`."""

    machine: str
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A block that the reader saves."""

    machine: str
    name: str
    text: str


def steps(page: str, machines: Sequence[str]) -> Iterator[Command | Awaited | SavedFile]:
    """Return what a reader does, in order. Raises ValueError where no machine or file is named."""
    machine, read_to = machines[0] if len(machines) == 1 else "", 0
    for block in _FENCE.finditer(page):
        before = page[read_to : block.start()]
        read_to = block.end()
        named = [name for name in re.findall(r"\*\*([\w-]+)\*\*", before) if name in machines]
        machine = named[-1] if named else machine
        if not machine:
            raise ValueError(f"no machine is named before:\n{block.group(3)}")
        text = re.sub(rf"^{block.group(1)}", "", block.group(3), flags=re.MULTILINE)
        if block.group(2) in ("", "sh"):
            yield from _commands(machine, text)
        elif block.group(2) == "text":
            yield Awaited(machine, tuple(text.splitlines()))
        elif (file := _NAMED.search(before)) is not None:
            yield SavedFile(machine, file.group(1), text)
        else:
            raise ValueError(f"no name of a file stands before:\n{text}")


def _commands(machine: str, text: str) -> Iterator[Command]:
    lines = text.replace("\\\n", " ").splitlines()
    if not any(line.startswith("$ ") for line in lines):
        yield from (Command(machine, line) for line in lines if line.strip())
        return
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    if starts[0] != 0:
        raise ValueError(f"output stands before the first command:\n{text}")
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield Command(machine, lines[start].removeprefix("$ "), tuple(lines[start + 1 : end]))


def pattern(expected: Sequence[str]) -> re.Pattern[str]:
    """Return what matches an output in which these lines follow one another, from its beginning."""
    made = []
    for line in expected:
        if line.strip() == "…":
            made.append(r"(?:.*\n)*?")
            continue
        row = r"[ \t]*"
        for before, word in pairwise(["…", *line.split()]):
            gap = "" if "…" in (before, word) else r"[ \t]+"
            row += gap + r"[^\n]*?".join(map(_of_any_value, word.split("…")))
        made.append(row + r"[ \t]*\n")
    return re.compile("".join(made))


def _of_any_value(text: str) -> str:
    made, at = "", 0
    for found in _VARIABLE.finditer(text):
        made += re.escape(text[at : found.start()]) + (_ANY_ID if found.group(1) else _ANY_NUMBER)
        at = found.end()
    return made + re.escape(text[at:])


@dataclass(slots=True)
class Machine:
    """Where a reader's terminals are: what runs a program there, the user's folder, and variables."""

    prefix: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    terminals: list[Terminal] = field(default_factory=list)


class Walkthrough:
    """Context manager: the terminals of these machines; those that are busy at its end get Ctrl-C."""

    def __init__(
        self,
        machines: Mapping[str, Machine],
        replaced: Mapping[str, str],
        by_bench: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        """`replaced`: what stands here in place of what a page has. `by_bench`: commands that the bench does
        in another way, as they concern more than one machine, or end one.
        """
        self._machines, self._replaced, self._by_bench = machines, replaced, by_bench or {}
        self._stack = ExitStack()
        self._copied: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def follow(self, page: str) -> None:
        """Do all that the page says. Raises AssertionError where something is not as it says."""
        for step in steps(page, tuple(self._machines)):
            match step:
                case SavedFile():
                    self._save(step)
                case Awaited():
                    self._await(step)
                case Command():
                    self._run(step)

    def end(self) -> None:
        """Press Ctrl-C wherever something runs: all of it ends well."""
        for name, machine in self._machines.items():
            for terminal in machine.terminals:
                if terminal.is_busy:
                    terminal.interrupt()
                    code = terminal.wait(COMMAND_SECONDS)
                    assert code in (0, 130), f"on {name}, exit code {code}:\n{terminal.output}"

    def _save(self, step: SavedFile) -> None:
        path = self._machines[step.machine].folder / step.name.removeprefix("~/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._typed(step.text), encoding="utf-8")

    def _run(self, step: Command) -> None:
        if step.text in self._by_bench:
            self._by_bench[step.text]()
            return
        terminal = self._free_terminal(step.machine)
        deadline = monotonic() + COMMAND_SECONDS
        terminal.type(self._typed(step.text))
        if STAYS.search(step.text) is not None:
            self._until_seen(step, terminal, step.expected)
            return
        while not self._is_as_expected(step, terminal):
            can_change = LOOKS.match(step.text) is not None and monotonic() < deadline
            assert can_change, _report(step, terminal, "it says something else")
            terminal.read(1.0)
            terminal.type(self._typed(step.text))

    def _is_as_expected(self, step: Command, terminal: Terminal) -> bool:
        """Wait for the end of a command. Raises AssertionError if it fails."""
        try:
            code = terminal.wait(COMMAND_SECONDS)
        except TimeoutError as error:
            raise AssertionError(f"`{step.text}`: {error}") from None
        self._copy(terminal.output)
        assert code == 0, _report(step, terminal, f"exit code {code}")
        if not step.expected:
            return True
        return bool(pattern(self._here(step.expected)).fullmatch(terminal.output.rstrip() + "\n"))

    def _await(self, step: Awaited) -> None:
        terminals = self._machines[step.machine].terminals
        running = [terminal for terminal in terminals if terminal.is_busy]
        assert running, _report(step, terminals[-1], "nothing runs that could write this")
        self._until_seen(step, running[0], ("…", *step.expected))

    def _until_seen(self, step: Command | Awaited, terminal: Terminal, expected: Sequence[str]) -> None:
        wanted = pattern(self._here(expected))
        deadline = monotonic() + COMMAND_SECONDS
        while not wanted.match(terminal.output + "\n"):
            assert terminal.code is None, _report(step, terminal, f"it has ended, exit code {terminal.code}")
            assert monotonic() < deadline, _report(step, terminal, "not seen in time")
            terminal.read(0.5)
        self._copy(terminal.output)

    def _free_terminal(self, name: str) -> Terminal:
        machine = self._machines[name]
        machine.terminals = [terminal for terminal in machine.terminals if not terminal.has_ended]
        if not machine.terminals or machine.terminals[-1].is_busy:
            terminal = Terminal(machine.prefix, folder=machine.folder, environment=machine.environment)
            machine.terminals.append(self._stack.enter_context(terminal))
        return machine.terminals[-1]

    def _typed(self, text: str) -> str:
        for mark, copied in self._copied.items():
            text = text.replace(mark, copied)
        return self._replace(text)

    def _replace(self, text: str) -> str:
        for written, real in self._replaced.items():
            text = text.replace(written, real)
        return text

    def _here(self, lines: Sequence[str]) -> list[str]:
        return [self._replace(line) for line in lines]

    def _copy(self, output: str) -> None:
        for mark, what in COPIED.items():
            if found := what.findall(output):
                self._copied[mark] = found[-1]


def _report(step: Command | Awaited, terminal: Terminal, what: str) -> str:
    typed = f", `{step.text}`" if isinstance(step, Command) else ""
    expected = "\n".join(step.expected)
    seen = f"--- the page has\n{expected}\n--- the terminal has\n{terminal.output}"
    return f"on {step.machine}{typed}: {what}\n{seen}"
