"""A pipe that nobody reads blocks nobody; drops are counted, and the rest goes out at the end."""

import os
import select
import sys
from collections.abc import Iterator

import pytest
from meshd.base import log
from meshd.base.patient_writer import PatientWriter

LINE = b"x" * 999 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def some(reader: int) -> bytes:
    """All that arrives within 10 ms."""
    ready, _, _ = select.select([reader], [], [], 0.01)
    return os.read(reader, 1 << 20) if ready else b""


def test_what_a_full_pipe_does_not_take_waits_and_the_rest_is_counted(pipe: tuple[int, int]) -> None:
    reader, end = pipe
    writer = PatientWriter(end)
    count = 2000
    for _ in range(count):
        writer.write(LINE)  # 2 MB: the pipe holds 64 KiB, the buffer 256
    assert writer.take_lost() == 0, "nothing is told while there is no room"
    got, lost = b"", 0
    while not lost:
        got += some(reader)
        lost = writer.take_lost()
    assert 0 < lost < count
    writer.write(b"the last one\n")
    while not got.endswith(b"the last one\n"):
        got += some(reader)
    assert got == LINE * (count - lost) + b"the last one\n"
    writer.close(5.0)
    assert not writer._thread.is_alive()


def test_what_is_left_goes_out_at_the_end(pipe: tuple[int, int]) -> None:
    reader, end = pipe
    writer = PatientWriter(end)
    writer.write(b"one\n")
    writer.write(b"two\n")
    writer.close(5.0)
    assert os.read(reader, 100) == b"one\ntwo\n"
    writer.write(b"late\n")
    assert writer.take_lost() == 1


def test_the_end_does_not_wait_for_ever(pipe: tuple[int, int]) -> None:
    reader, end = pipe
    writer = PatientWriter(end)
    for _ in range(200):
        writer.write(LINE)
    writer.close(0.05)
    assert writer._thread.is_alive(), "the pipe is full: it waits, and keeps nobody"
    assert writer._thread.daemon
    while writer._thread.is_alive():
        some(reader)


def test_a_reader_that_has_gone_is_no_error() -> None:
    reader, end = os.pipe()
    os.close(reader)
    writer = PatientWriter(end)
    writer.write(LINE)
    writer.write(LINE)
    writer.close(5.0)
    assert not writer._thread.is_alive()
    os.close(end)


def test_the_log_goes_on_while_stderr_is_full_and_says_what_is_missing(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, end = pipe
    stderr = os.fdopen(os.dup(end), "w")
    monkeypatch.setattr("sys.stderr", stderr)
    log.set_up(level="info")
    got = b""
    with log.in_background() as say:
        for number in range(5000):
            log.get("test").error("model_failed", why=f"line {number} {'x' * 80}")
        while b"log_lines_lost" not in got:
            log.get("test").error("model_failed", why="is there room again")
            got += some(reader)
        say("a remark\n\x1b[2J")
        while b"a remark" not in got:
            got += some(reader)
    log.set_up(level="warning")
    stderr.close()
    lines = got.decode().splitlines()
    assert all("model_failed" in one or "log_lines_lost" in one for one in lines if one.startswith("20"))
    assert any("path=stderr" in one for one in lines)
    assert b"\x1b" not in got


def test_what_python_itself_says_on_stderr_waits_for_nobody_either(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full pipe: to write there at once would never return."""
    reader, end = pipe
    monkeypatch.setattr("sys.stderr", stderr := os.fdopen(os.dup(end), "w"))
    with log.in_background():
        assert sys.stderr.fileno() == stderr.fileno()
        for _ in range(2000):
            sys.stderr.write("x" * 999 + "\n")
        got = b""
        while b"it was never awaited" not in got:
            sys.stderr.write("it was never awaited\n")
            got += some(reader)
    assert sys.stderr is stderr
    stderr.close()
