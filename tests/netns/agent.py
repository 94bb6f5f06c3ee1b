"""The driver's end of tests/netns/node.py: starts one in a namespace, asks it, ends it."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.netns.programs import END_SECONDS, ROOT
from tests.netns.space import Namespace

START_SECONDS = 60.0
ASK_SECONDS = 60.0


class AgentError(Exception):
    """The node said no, ended, or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a node. No `kinds`: all. `join` is a token. `port` None: the default one."""

    name: str = "node"
    join: str = ""
    stun: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    mdns: bool = False
    portmap: bool = False
    port: int | None = None


@dataclass(frozen=True, slots=True)
class LinkSeen:
    """A link as the node's path choice has it."""

    kind: str
    path: str
    remote: str
    selected: bool
    why: str


@dataclass(slots=True)
class Agent:
    """A running node. `token` invites to its mesh; `joined` is what joining took, in seconds."""

    process: "subprocess.Popen[bytes]"
    log: Path
    token: str = ""
    joined: float = 0.0
    _rest: bytes = field(default=b"")

    def ask(self, do: str, *, seconds: float = ASK_SECONDS, **values: object) -> Mapping[str, object]:
        """One command of node.py. Raises AgentError."""
        self.tell(do, **values)
        return self.answer(seconds)

    def tell(self, do: str, **values: object) -> None:
        """Send a command; its answer is fetched by `answer`."""
        self.write({"do": do, **values})

    def write(self, line: Mapping[str, object]) -> None:
        """One line of JSON."""
        assert self.process.stdin is not None
        try:
            os.write(self.process.stdin.fileno(), json.dumps(line).encode() + b"\n")
        except BrokenPipeError:
            raise AgentError("the node has ended") from None

    def answer(self, seconds: float = ASK_SECONDS) -> Mapping[str, object]:
        """The next line. Raises AgentError."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            ready = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                raise AgentError(f"no answer within {seconds:g} s")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise AgentError(f"the node has ended: {self.process.wait(END_SECONDS)}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        if "error" in answer:
            raise AgentError(str(answer["error"]))
        return answer

    def connected(self, *paths: str, count: int = 1, seconds: float = ASK_SECONDS) -> float:
        """Wait for so many peers and a selected path of `paths`; seconds since the start of the node.

        Raises AgentError when it takes longer than `seconds`.
        """
        given = list(paths) or None
        answer = self.ask("connected", seconds=seconds + 10.0, count=count, paths=given, within=seconds)
        return number(answer["seconds"])

    def echo(self, size: int = 1, *, seconds: float = ASK_SECONDS) -> float:
        """Bytes there and back, compared; returns the seconds since the start of the node."""
        answer = self.ask("echo", seconds=seconds, bytes=size)
        if answer["equal"] is not True:
            raise AgentError("the echo is another than what was sent")
        return number(answer["at"])

    def selected(self) -> LinkSeen | None:
        """The link that carries data to the first peer; None: none does."""
        return next((link for link in self.links() if link.selected), None)

    def links(self) -> tuple[LinkSeen, ...]:
        """All links of the first peer."""
        peers = self.peers()
        return tuple(_link(one) for one in _dicts(peers[0]["links"])) if peers else ()

    def peers(self) -> list[dict[str, object]]:
        """All peers, as node.py shows them."""
        return _dicts(self.ask("peers")["peers"])


def _link(shown: Mapping[str, object]) -> LinkSeen:
    texts = [str(shown[name]) for name in ("kind", "path", "remote")]
    return LinkSeen(texts[0], texts[1], texts[2], shown["selected"] is True, str(shown["why"]))


def _dicts(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return [one for one in value if isinstance(one, dict)]


def number(value: object) -> float:
    """A number of an answer."""
    assert isinstance(value, int | float)
    return float(value)


@contextmanager
def agent(space: Namespace, folder: Path, settings: Settings) -> Iterator[Agent]:
    """A node inside, a member when this enters; gone when it leaves. Raises AgentError.

    What it logs is in `folder`; its last lines are printed when an error passes through here.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = folder / "node.log"
    with (folder / "stderr.log").open("ab") as errors:
        process = subprocess.Popen(
            [*space.prefix, sys.executable, "-m", "tests.netns.node", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            cwd=ROOT,
            env={"PATH": os.environ.get("PATH", "")},
        )
    made = Agent(process, log)
    try:
        given = {name: getattr(settings, name) for name in Settings.__slots__}  # tuples are JSON's lists
        made.write(given)
        first = made.answer(START_SECONDS)
        made.token, made.joined = str(first["token"]), number(first["joined"])
        yield made
    except BaseException:
        for path in (log, folder / "stderr.log"):
            tail = path.read_text(errors="replace").splitlines()[-40:] if path.exists() else []
            sys.stderr.write("\n".join([f"--- {path}", *tail, ""]))
        raise
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_SECONDS)
    process.stdout.close()
