"""`meshd completion` and `man`: what shells and `man` know of the commands, made from their parsers."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from meshd import __version__
from meshd.base.errors import UserError
from meshd.base.files import expanded
from meshd.cli.main import VERBS, Verb
from meshd.cli.options import Arguments, Parser
from meshd.cli.output import Output

SHELLS = ("bash", "zsh", "fish")
_SUMMARY = "Run one GGUF model across several machines."
_ROFF = {"\\": r"\e", "-": r"\-", "`": r"\`", "'": r"\(aq", "…": "..."}
_WORDS = re.compile(r"[a-z]+(\|[a-z]+)+")  # the metavar of an option with few values


class Completion:
    """Print the completion script for a shell.

    examples:
      meshd completion bash > ~/.local/share/bash-completion/completions/meshd
      meshd completion zsh > ~/.zfunc/_meshd       with fpath+=~/.zfunc above compinit in ~/.zshrc
      meshd completion fish > ~/.config/fish/completions/meshd.fish

    The folders must exist. Packages of meshd have these files already.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the shell."""
        parser.add_argument(
            "shell", choices=SHELLS, metavar="|".join(SHELLS), help="the shell to complete in"
        )

    def run(self, args: Arguments, out: Output) -> int:
        """Print it."""
        out.raw(script(args.shell))
        return 0


class Man:
    """Write the man pages into a folder: one for each command, such as `man meshd-worker`.

    examples:
      meshd man ~/.local/share/man/man1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the folder."""
        parser.add_argument("folder", metavar="DIR", help="where to write; created if needed")

    def run(self, args: Arguments, out: Output) -> int:
        """Write them."""
        folder = expanded(args.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            count = _write(folder)
        except OSError as error:
            raise UserError(
                f"cannot write man pages into `{folder}`: {error.strerror}",
                hint="name a directory that you may write to",
            ) from None
        out.line(f"{count} man pages in {folder}")
        return 0


def script(shell: str) -> str:
    """Return the completion script of one of `SHELLS`."""
    import shtab  # for this verb alone

    root = Parser(prog="meshd", description=_SUMMARY)
    below = root.add_subparsers(parser_class=Parser)
    for verb in VERBS:
        parser = below.add_parser(verb.name, help=verb.help)
        verb.load().add_arguments(parser)
        for action in _all_actions(parser):
            if isinstance(action, argparse._SubParsersAction):  # shtab leaves out those without help
                action._choices_actions = [
                    action._ChoicesPseudoAction(name, (), parser.description or "")
                    for name, parser in action.choices.items()
                ]
            form = action.metavar if isinstance(action.metavar, str) else ""
            if action.choices is None and _WORDS.fullmatch(form):
                action.choices = form.split("|")
            elif form.startswith(("FILE", "DIR")):
                kind = shtab.FILE if form.startswith("FILE") else shtab.DIRECTORY
                action.complete = kind  # type: ignore[attr-defined]  # where shtab looks
    below.add_parser("help", help="show the options of a command").add_argument(
        "command", choices=[verb.name for verb in VERBS]
    )
    below.add_parser("version", help="show the version")
    return shtab.complete(root, shell=shell)


def _all_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _all_actions(below)


def _write(folder: Path) -> int:
    pages = {f"meshd-{verb.name}.1": page(verb) for verb in VERBS} | {"meshd.1": first_page()}
    for name, text in pages.items():
        (folder / name).write_text(text, "utf-8")
    return len(pages)


def first_page() -> str:
    """Return the page `meshd.1`, which lists the commands."""
    lines = [*_heading("meshd", _SUMMARY.rstrip(".")), ".SH SYNOPSIS", ".B meshd", "COMMAND [OPTIONS]"]
    lines.append(".SH COMMANDS")
    for verb in VERBS:
        lines += [".TP", rf"\fBmeshd\-{verb.name}\fR(1)", _roff(verb.help)]
    return "\n".join(lines) + "\n"


def page(verb: Verb) -> str:
    """Return the page of a verb: what its help says, with a section for each of its actions."""
    parser = verb.parser()
    lines = [*_heading(f"meshd-{verb.name}", verb.help), ".SH SYNOPSIS", *_usage(parser)]
    lines += [".SH DESCRIPTION", *_paragraphs(parser.description or ""), *_options(parser, ".SH")]
    for name, below in parser.below.items():
        lines += [f".SH {_roff(f'{verb.name} {name}'.upper())}", *_usage(below)]
        lines += [*_paragraphs(below.description or ""), *_options(below, ".SS")]
    lines += [".SH SEE ALSO", r"\fBmeshd\fR(1)"]
    return "\n".join(lines) + "\n"


def _heading(name: str, summary: str) -> list[str]:
    title = f'.TH "{_roff(name.upper())}" 1 "" "meshd {__version__}" "User Commands"'
    return [title, ".SH NAME", rf"{_roff(name)} \- {_roff(summary)}"]


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    parser.color = False  # type: ignore[attr-defined]  # since Python 3.14
    lines = parser.format_usage().removeprefix("usage: ").splitlines()
    if parser.usage:  # somebody has laid it out
        return [".nf", *(_roff(line.removeprefix(" " * len("usage: "))) for line in lines), ".fi"]
    return [_roff(" ".join(" ".join(lines).replace("[-h] ", "").split()))]


def _options(parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        shown = [
            action
            for action in group._group_actions
            if action.help != argparse.SUPPRESS
            and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
        ]
        if shown:
            yield f"{level} {_roff((group.title or '').upper())}"
        for action in shown:
            yield ".TP"
            yield rf"\fB{_roff(formatter._format_action_invocation(action))}\fR"
            yield _roff(formatter._expand_help(action) if action.help else "")


def _paragraphs(text: str) -> Iterator[str]:
    """Yield lines that man fills, except for examples, which people have laid out."""
    for block in text.split("\n\n"):
        lines = [_roff(line) for line in block.splitlines()]
        yield ".PP"
        yield from (".nf", *lines, ".fi") if "\n  " in block else lines


def _roff(text: str) -> str:
    """Return text that man prints as it is, in any locale."""
    plain = "".join(_ROFF.get(char, char) for char in text)
    return rf"\&{plain}" if plain.startswith(".") else plain
