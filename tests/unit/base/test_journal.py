"""Lines in systemd's journal: their fields, priorities and bounds, and when they go there."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base import log
from meshd.base.log import MOST_ENTRY_BYTES, entry, leads_to_journal, open_journal

FIELDS = st.dictionaries(
    st.from_regex("[a-z][a-z_]{0,9}", fullmatch=True), st.text() | st.integers() | st.none(), max_size=5
)


def read(data: bytes) -> dict[str, str]:
    """Read an entry as journald does: `NAME=value`, or the name, eight bytes of length, and the value."""
    found: dict[str, str] = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, is_plain, value = line.partition(b"=")
        if is_plain:
            data = rest
        else:
            (size,) = unpack("<Q", rest[:8])
            value, data = rest[8 : 8 + size], rest[8 + size :]
            assert data.startswith(b"\n")
            data = data[1:]
        found[name.decode()] = value.decode()
    return found


@given(st.text(), FIELDS)
def test_whatever_is_logged_is_read_as_it_was_meant(message: str, fields: dict[str, object]) -> None:
    found = read(entry(message, "warning", fields))
    said = {f"MESHD_{name.upper()}": str(value) for name, value in fields.items()}
    assert found == {"PRIORITY": "4", "SYSLOG_IDENTIFIER": "meshd", "MESSAGE": message, **said}


@pytest.mark.parametrize(("level", "priority"), [("debug", 7), ("info", 6), ("warning", 4), ("error", 3)])
def test_levels_are_syslogs_priorities(level: str, priority: int) -> None:
    assert read(entry("m", level, {}))["PRIORITY"] == str(priority)


def test_an_entry_fits_into_a_datagram() -> None:
    fields = dict.fromkeys(("event", *"abcdefghij"), "\N{SNOWMAN}" * 4000)
    data = entry("\N{SNOWMAN}" * 100_000, "info", fields)
    assert len(data) <= MOST_ENTRY_BYTES
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        assert os.write(ours.fileno(), data) == len(data)
        assert b"MESHD_EVENT" in theirs.recv(1 << 20)


def test_stderr_leads_there_if_systemd_says_so() -> None:
    read_end, write_end = os.pipe()
    found = os.fstat(write_end)
    stream = f"{found.st_dev}:{found.st_ino}"
    assert leads_to_journal(write_end, {"JOURNAL_STREAM": stream})
    for environ in ({}, {"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": f"{stream}1"}, {"JOURNAL_STREAM": "x"}):
        assert not leads_to_journal(write_end, environ)
    os.close(read_end)
    os.close(write_end)
    assert not leads_to_journal(write_end, {"JOURNAL_STREAM": stream})


@contextmanager
def as_a_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make stderr a pipe that systemd has connected; gives where it is read."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream, monkeypatch.context() as here:
        here.setattr("sys.stderr", stream)
        found = os.fstat(write_end)
        here.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        os.set_blocking(read_end, False)
        try:
            yield read_end
        finally:
            os.close(read_end)
            log.set_up(level="warning")


@pytest.fixture
def journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        path = tmp_path / "journal"
        listening.bind(os.fspath(path))
        listening.settimeout(10)
        monkeypatch.setattr(log, "open_journal", lambda: open_journal(path))
        yield listening


def said(stderr: int) -> bytes:
    try:
        return os.read(stderr, 65536)
    except BlockingIOError:
        return b""


def test_a_service_logs_with_fields_and_remarks_stay_on_stderr(
    journald: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "meshd.log"
    log.set_up(level="info", file=file)
    with as_a_service(monkeypatch) as stderr:
        _check_service(stderr, journald, file)


def _check_service(stderr: int, journald: socket.socket, file: Path) -> None:
    with log.in_background() as note:
        log.get("link").warning("link_lost", peer="q4x", seconds=1.5, bytes=2_000_000, token="s3cret")
        found = read(journald.recv(65536))
        note("a remark")
    assert found["PRIORITY"] == "4" and found["MESHD_EVENT"] == "link_lost" and found["MESHD_AREA"] == "link"
    assert found["MESHD_PEER"] == "q4x" and found["MESHD_SECONDS"] == "1.5"
    assert found["MESHD_BYTES"] == "2000000", "for programs; the message is for people"
    assert found["MESSAGE"].startswith("link_lost") and "2.0 MB" in found["MESSAGE"]
    assert "s3cret" not in str(found) and "MESHD_LEVEL" not in found
    assert said(stderr) == b"a remark\n"
    assert "[warning  ] link_lost" in file.read_text() and "2.0 MB" in file.read_text()
    log.get("link").info("link_up")
    assert b"link_up" in said(stderr), "after the block as before"


@pytest.mark.parametrize("how", ["json", "no journal", "another stderr", "the file alone"])
def test_else_lines_go_where_they_went(
    how: str, journald: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "no journal":
        monkeypatch.setattr(log, "open_journal", lambda: open_journal(tmp_path / "nobody"))
    journald.setblocking(False)
    with as_a_service(monkeypatch) as stderr:
        if how == "another stderr":
            monkeypatch.setenv("JOURNAL_STREAM", "1:1")
        log.set_up(level="info", form="json" if how == "json" else "text", to_stderr=how != "the file alone")
        with log.in_background():
            log.get("link").info("link_up")
        assert (b"link_up" in said(stderr)) is (how != "the file alone")
    with pytest.raises(BlockingIOError):
        journald.recv(1)


def test_a_journal_that_takes_nothing_holds_up_nobody(
    journald: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(log, "FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(log, "MAX_UNWRITTEN_BYTES", 2000)
    file = tmp_path / "meshd.log"
    log.set_up(level="info", file=file)
    with as_a_service(monkeypatch), log.in_background():
        for number in range(2000):  # the kernel queues a few datagrams
            log.get("link").error("link_lost", count=number)
        for _ in range(1000):
            journald.recv(65536)
            log.get("link").error("link_lost")
            if "log_lines_lost" in (text := file.read_text()):
                break
    assert "path=journal" in text
    assert "count=1999" in text, "the file has them all"


def test_no_journal_is_no_error(tmp_path: Path) -> None:
    assert open_journal(tmp_path / "nobody") is None
    assert log.JOURNAL_SOCKET.is_absolute()
