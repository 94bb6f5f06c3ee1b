"""A reader that stops: what is pushed at it stays with the writer, and neither side's memory grows."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshd.mux.config import MuxConfig

from tests.e2e.bare_node import PUSHED

MIB = 1 << 20
SPARE = 8 * MIB


@contextmanager
def _node(kind: str, home: Path, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.bare_node", kind, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **variables},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _resident(process: "subprocess.Popen[str]") -> int:
    fields = Path(f"/proc/{process.pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


def test_a_gigabyte_pushed_at_a_reader_that_stops(tmp_path: Path) -> None:
    with _node("reader", tmp_path / "reader") as reader:
        token = _line(reader)
        with _node("writer", tmp_path / "writer", MESHD_JOIN=token) as writer:
            assert _line(writer) == "connected"
            before = _resident(reader), _resident(writer)
            _go(writer)
            word, read = _line(reader).split()
            assert word == "stopped"
            _go(writer)  # a reader that is only slow has not stopped
            word, sent, why = _line(writer).split()
            assert (word, why) == ("stalled", "TimeoutError")
            held = int(sent) - int(read)  # what the window in force lets the writer hand over
            grown = _resident(reader) - before[0], _resident(writer) - before[1]
            print(f"held {held / MIB:.1f} MiB; grown by {[f'{g / MIB:.1f}' for g in grown]} MiB")  # noqa: T201
            assert int(sent) < PUSHED // 2
            assert held <= 2 * MuxConfig().max_stream_window
            assert all(growth <= held + SPARE for growth in grown)
