"""Show the logs of the daemon and of its llama.cpp processes, whether or not the daemon runs.

CHILD is `meshd` for the daemon itself, or the name (or its beginning) of a child as in `meshd status`.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from meshd.base.errors import UserError
from meshd.cli.options import Arguments, number
from meshd.cli.output import Output, clean
from meshd.config import home_here

DEFAULT_LINES = 100
_LOOK_SECONDS = 0.25
TAIL_BYTES = 4 << 20  # of each file; its lines are long enough for any --lines worth reading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """CHILD, -f, --lines."""
    parser.add_argument("child", metavar="CHILD", nargs="?", help="log to show (default: all)")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="keep printing new lines until interrupted"
    )
    parser.add_argument(
        "--lines",
        metavar="N",
        default=str(DEFAULT_LINES),
        help=f"number of last lines of each log (default: {DEFAULT_LINES})",
    )


def run(args: Arguments, out: Output) -> int:
    """Print what is there; with -f, what comes."""
    lines = number("--lines", args.lines, 0, 1_000_000)
    folder = home_here() / "logs"
    logs = _choose(folder, args.child)
    if not logs:
        what = f"no log named `{args.child}`" if args.child else "no logs"
        have = ", ".join(sorted({log.stem for log in _all(folder)}))
        raise UserError(
            f"{what} in `{folder}`",
            hint=f"choose one of: {have}"
            if have
            else "start a daemon first: `meshd worker` or `meshd serve`",
        )
    several = len(logs) > 1
    followed = [Followed(path) for path in logs]
    for log in followed:
        for text in log.tail(lines):
            _print(out, log, text, several)
    while args.follow:
        time.sleep(_LOOK_SECONDS)
        known = {log.path for log in followed}
        followed += [Followed(path) for path in _choose(folder, args.child) if path not in known]
        several = several or len(followed) > 1
        for log in followed:
            for text in log.new():
                _print(out, log, text, several)
    return 0


def _print(out: Output, log: "Followed", text: str, several: bool) -> None:
    out.raw(clean(f"{log.path.stem}| {text}" if several else text) + "\n")


def _all(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".log" and path.is_file())
    except OSError:
        return []


def _choose(folder: Path, child: str | None) -> list[Path]:
    logs = _all(folder)
    if child is None:
        return sorted(logs, key=lambda path: (path.stem == "meshd", path.stem))
    exact = [path for path in logs if path.stem == child]
    return exact or [path for path in logs if path.stem.startswith(child)]


@dataclass(slots=True)
class Followed:
    """A log file that may grow, be cut short, or be replaced when it is rotated."""

    path: Path
    _at: int = 0
    _inode: int = 0
    _rest: bytes = field(default=b"", repr=False)

    def tail(self, lines: int) -> list[str]:
        """The last `lines` lines, those of the rotated file before it included."""
        old = self.path.with_name(self.path.name + ".1")
        before = _last_bytes(old)[0] if old.exists() else b""
        data, self._at, self._inode = _last_bytes(self.path)
        found = (before + data).decode(errors="replace").splitlines()
        return found[-lines:] if lines else []

    def new(self) -> Iterator[str]:
        """Whole lines since the last look."""
        try:
            with self.path.open("rb") as stream:
                seen = self.path.stat()
                if seen.st_ino != self._inode or seen.st_size < self._at:
                    self._at, self._inode, self._rest = 0, seen.st_ino, b""
                stream.seek(self._at)
                data = stream.read(TAIL_BYTES)
        except OSError:
            return  # between the two steps of a rotation
        self._at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")


def _last_bytes(path: Path) -> tuple[bytes, int, int]:
    """The end of a file, its size and its inode; empty when it has gone."""
    try:
        with path.open("rb") as stream:
            seen = path.stat()
            stream.seek(max(0, seen.st_size - TAIL_BYTES))
            data = stream.read(TAIL_BYTES)
            return data, stream.tell(), seen.st_ino
    except OSError:
        return b"", 0, 0
