"""Runs a command line in this process, with streams of its own."""

import io
from dataclasses import dataclass

import pytest
from meshd.cli.main import INTERRUPTED, dispatch
from meshd.cli.output import Output


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a command."""

    code: int
    out: str
    err: str


def meshd(*argv: str, answer: str | None = None) -> Ran:
    """Run `meshd ARGV`; on a terminal, where somebody types `answer`, if that is given."""
    if answer is not None:
        return _run(argv, Terminal(), Terminal(), Terminal(answer))
    return _run(argv, io.StringIO(), io.StringIO(), io.StringIO("y\n"))


def _run(argv: tuple[str, ...], out: io.StringIO, err: io.StringIO, stdin: io.StringIO) -> Ran:
    try:
        code = dispatch(list(argv), Output(out, err, {}, stdin=stdin))
    except KeyboardInterrupt:  # main() makes it an exit code
        code = INTERRUPTED
    return Ran(code, out.getvalue(), err.getvalue())


def refused(ran: Ran, code: int, *words: str) -> None:
    """It failed with that code: nothing on stdout, one line of error, a blank one, a hint."""
    assert (ran.code, ran.out) == (code, ""), ran
    lines = ran.err.splitlines()
    assert lines[0].startswith("error: ") and not lines[0].endswith("."), ran
    assert len(lines) == 1 or (lines[1] == "" and lines[2].startswith("hint: ")), ran
    for word in words:
        assert word in ran.err, ran


def raises_nothing_else(ran: Ran) -> None:
    """For property tests: any exit code there is."""
    if ran.code not in (0, 1, 2):
        pytest.fail(str(ran))
