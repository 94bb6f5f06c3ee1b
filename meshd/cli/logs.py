"""Show the logs of the daemon and of its llama.cpp processes, whether or not the daemon runs.

CHILD is `meshd` for the daemon itself, or the name (or its beginning) of a child as in `meshd status`.
The lines of several logs are merged by time (UTC).
"""

import argparse
import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.files import end_of_log
from meshd.build.interface import MESH_PROGRAM, NAME_IN_SCRIPTS
from meshd.cli.layout import clean
from meshd.cli.options import Arguments, duration, number
from meshd.cli.output import Output
from meshd.config.tree import home_here

DEFAULT_LINES = 100
MAX_LINES = 1_000_000
_LOOK_SECONDS = 0.25
# how meshd's own log begins a line, as text or JSON, and those of children
_TIME = re.compile(r'(?:\{.{0,16384}"timestamp": ")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{6})?Z')
TAIL_BYTES = 4 << 20  # of each file; its lines are long enough for any --lines worth reading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add CHILD, -f, --lines, --since, --json."""
    parser.add_argument("child", metavar="CHILD", nargs="?", help="log to show (default: all)")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="keep printing new lines until interrupted"
    )
    parser.add_argument(
        "--lines",
        metavar="N",
        help=f"last lines of each log to show (default: {DEFAULT_LINES}, or all with --since)",
    )
    parser.add_argument(
        "--since", metavar="TIME", help="show only lines that are at most this old, such as 10m, 2h or 1d"
    )
    parser.add_argument(
        "--json", action="store_true", help="print each line as a JSON object, for scripts: log, time, text"
    )


def run(args: Arguments, out: Output) -> int:
    """Print the existing lines; with -f, new ones as they come."""
    default = DEFAULT_LINES if args.since is None else MAX_LINES
    lines = default if args.lines is None else number("--lines", args.lines, 0, MAX_LINES)
    since = "" if args.since is None else _ago(duration("--since", args.since))
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
    _print(out, merged((log, log.tail(lines)) for log in followed), since, several, as_json=args.json)
    while args.follow:
        time.sleep(_LOOK_SECONDS)
        known = {log.path for log in followed}
        followed += [Followed(path) for path in _choose(folder, args.child) if path not in known]
        several = several or len(followed) > 1
        _print(out, merged((log, log.new()) for log in followed), since, several, as_json=args.json)
    return 0


@dataclass(frozen=True, slots=True, order=True)
class LogLine:
    """`time`: UTC in ISO 8601 with microseconds; empty if no line so far had one."""

    time: str
    log: str = field(compare=False)
    text: str = field(compare=False)


def merged(logs: "Iterable[tuple[Followed, Iterable[str]]]") -> list[LogLine]:
    """Return the lines of all logs by time, those without one after the line that they follow."""
    return sorted(LogLine(log.time_of(text), log.path.stem, text) for log, found in logs for text in found)


def _ago(seconds: int) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _print(out: Output, lines: Iterable[LogLine], since: str, several: bool, *, as_json: bool) -> None:
    for line in lines:
        if line.time < since:
            continue
        if as_json:
            fields = {"log": line.log, "time": line.time or None, "text": clean(line.text)}
            out.raw(json.dumps(fields) + "\n")
        else:
            out.raw(clean(f"{line.log}| {line.text}" if several else line.text) + "\n")


def _all(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".log" and path.is_file())
    except OSError:
        return []


def _choose(folder: Path, child: str | None) -> list[Path]:
    logs = _all(folder)
    if child is None:
        return sorted(logs, key=lambda path: (path.stem == "meshd", path.stem))
    child = MESH_PROGRAM if child == NAME_IN_SCRIPTS else child  # as `status --json` has it
    exact = [path for path in logs if path.stem == child]
    return exact or [path for path in logs if path.stem.startswith(child)]


@dataclass(slots=True)
class Followed:
    """A log file that may grow, be cut short, or be replaced when it is rotated."""

    path: Path
    _at: int = 0
    _inode: int = 0
    _time: str = ""  # of the last line that had one
    _rest: bytes = field(default=b"", repr=False)

    def time_of(self, line: str) -> str:
        """Return the time of a line: one without a time of its own follows another."""
        if (found := _TIME.match(line)) is not None:
            self._time = f"{found[1]}{found[2] or '.000000'}Z"
        return self._time

    def tail(self, lines: int) -> list[str]:
        """Return the last `lines` lines, including those of the rotated file before it."""
        data, self._at, self._inode = end_of_log(self.path, TAIL_BYTES)
        found = data.decode(errors="replace").splitlines()
        return found[-lines:] if lines else []

    def new(self) -> Iterator[str]:
        """Yield whole lines since the last call."""
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
