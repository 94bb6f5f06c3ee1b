"""Logs: where they go, the journal included, what they never hold, and that they never harm the program."""

import io
import json
import logging
import os
import select
import socket
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base import log
from meshd.base.log import (
    MAX_LINE_KINDS,
    MAX_LOGGED_PEERS,
    MOST_ENTRY_BYTES,
    LibraryLines,
    LineShares,
    PatientWriter,
    entry,
    leads_to_journal,
    open_journal,
)
from meshd.base.peer_limits import FIRST_LINES_IN_ALL, KIND_LINES, PEER_LINES, PEER_LINES_IN_ALL

EARLY = log.get("test")  # as a module makes one at import, before anything is set up
ROOT = Path(__file__).parents[3]
# In a process of its own: all of meshd and what it depends on is imported, and each logger says something.
ALL_SPEAK = """
import importlib, io, json, logging, pkgutil, sys
import meshd
from meshd.base import log
for found in pkgutil.walk_packages(meshd.__path__, "meshd."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
for name in sys.argv[1:]:
    importlib.import_module(name)
stream = io.StringIO()
log.set_up(form="json", stream=stream)
known = logging.root.manager.loggerDict
names = sorted(name for name, one in known.items() if isinstance(one, logging.Logger))
for name in names:
    logging.getLogger(name).critical("who hears me?")
said = [json.loads(line) for line in stream.getvalue().splitlines()]
print(json.dumps([names, said]))
"""
LINE = b"x" * 999 + b"\n"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Undo after each test what it has set up."""
    yield
    log.set_up(level="warning")


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_logger_made_at_import_follows_a_later_set_up() -> None:
    stream = io.StringIO()
    log.set_up(level="info", form="json", stream=stream)
    EARLY.info("link_up", peer="garage")
    EARLY.debug("not_seen")
    [line] = lines(stream)
    assert (line["event"], line["level"], line["area"], line["peer"]) == ("link_up", "info", "test", "garage")


def test_nothing_goes_to_stdout_before_anything_is_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up(level="warning")
    EARLY.warning("link_lost")
    EARLY.info("not_seen")
    out, err = capsys.readouterr()
    assert out == "" and "link_lost" in err and "not_seen" not in err


def test_secrets_are_replaced() -> None:
    stream = io.StringIO()
    log.set_up(form="text", stream=stream)
    for name in log.SECRET_FIELDS:
        EARLY.warning("x", **{name: "sesame"})
    assert "sesame" not in stream.getvalue() and stream.getvalue().count("[redacted]") == len(
        log.SECRET_FIELDS
    )


def test_sizes_have_units_for_people_and_are_exact_for_programs() -> None:
    text, document = io.StringIO(), io.StringIO()
    log.set_up(form="text", stream=text)
    EARLY.info("device", free=25_276_063_744, bytes=96_600_000, count=3)
    assert "free='23.5 GiB'" in text.getvalue() and "bytes='96.6 MB'" in text.getvalue()
    assert "count=3" in text.getvalue()
    log.set_up(form="json", stream=document)
    EARLY.info("device", free=25_276_063_744)
    assert lines(document)[0]["free"] == 25_276_063_744


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_peers_text_cannot_end_a_line_or_move_the_cursor(form: str) -> None:
    stream = io.StringIO()
    log.set_up(form=form, stream=stream)
    EARLY.warning("link_lost", why="bye\n2026 [error] forged \x1b[2J")
    text = stream.getvalue()
    assert text.count("\n") == 1 and "\x1b" not in text


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("letter", ["x", "\n", "\U0001f600\x1b"])
def test_a_peers_text_cannot_fill_the_file(form: str, letter: str) -> None:
    stream = io.StringIO()
    log.set_up(form=form, stream=stream)
    EARLY.warning("link_lost", why=letter * 100_000)
    assert "more)" in stream.getvalue() and len(stream.getvalue()) < 50_000


def test_a_value_that_is_not_too_long_is_whole() -> None:
    stream = io.StringIO()
    log.set_up(form="json", stream=stream)
    EARLY.warning("link_lost", why="x" * 4000)
    EARLY.warning("link_lost", why="x" * 4000 + "yz")
    assert [line["why"] for line in lines(stream)] == ["x" * 4000, "x" * 4000 + "… (2 more)"]


def test_a_file_is_kept_beside_the_stream(tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "home" / "logs" / "meshd.log"
    log.set_up(stream=stream, file=path)
    EARLY.warning("link_lost")
    assert path.read_text() == stream.getvalue() != ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent):  # also those that it makes on the way
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_stream_that_has_gone_costs_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    path = tmp_path / "x.log"
    stream = os.fdopen(writing, "w")
    try:
        log.set_up(stream=stream, file=path)
        EARLY.warning("link_lost")
        closed = io.StringIO()
        closed.close()
        log.set_up(stream=closed, file=path)
        EARLY.warning("link_up")
    finally:
        with pytest.raises(BrokenPipeError):
            stream.close()
    text = path.read_text()
    assert text.count("\n") == 2 and text.index("link_lost") < text.index("link_up")


def test_a_child_that_asyncio_has_reaped_itself_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    log.set_up()
    asyncio_log = logging.getLogger("asyncio")
    asyncio_log.warning("Unknown child process pid %d, will report returncode 255", 7)
    asyncio_log.warning("child process pid %d exit status already read:  will report returncode 255", 7)
    asyncio_log.warning("something else")
    assert [record.message for record in caplog.records] == ["something else"]


def test_every_logger_of_every_library_ends_in_our_log_and_nowhere_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    libraries = [one.partition(">")[0].replace("-", "_") for one in project["dependencies"]]
    done = subprocess.run(
        [sys.executable, "-c", ALL_SPEAK, *libraries],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    names, said = json.loads(done.stdout)
    assert done.stderr == ""
    assert [one["library"] for one in said] == names
    assert {(one["event"], one["why"]) for one in said} == {("library_said", "who hears me?")}
    known = {name.partition(".")[0] for name in names}
    assert {"aiohttp", "asyncio", "aiortc", "aioice", "quic", "huggingface_hub", "zeroconf"} <= known


def test_only_one_place_hears_them_however_often_it_is_set_up() -> None:
    for _ in range(3):
        log.set_up()
    ours = [one for one in logging.getLogger().handlers if isinstance(one, LibraryLines)]
    assert len(ours) == 1 and logging.lastResort is ours[0]


def test_one_line_however_much_it_says() -> None:
    stream = io.StringIO()
    log.set_up(stream=stream)
    try:
        raise ValueError("of this\n" * 1000)
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error\n\x1b[2J from %s", "192.0.2.1")
    text = stream.getvalue()
    assert text.count("\n") == 1 and "\x1b" not in text and len(text) < 800
    assert "Error" in text and "192.0.2.1" in text and "ValueError" in text and "Traceback" not in text


def test_one_library_that_never_ends_leaves_room_for_others() -> None:
    stream, now = io.StringIO(), 0.0
    log.set_up(form="json", stream=stream, clock=lambda: now)
    for _ in range(1000):
        logging.getLogger("aiohttp.server").error("Error handling request")
    assert len(lines(stream)) == KIND_LINES.burst
    logging.getLogger("asyncio").warning("something else")
    assert lines(stream)[-1]["library"] == "asyncio"
    now = 3600.0
    logging.getLogger("aiohttp.server").error("Error handling request")
    assert lines(stream)[-1]["left_out"] == 1000 - KIND_LINES.burst


def test_words_that_do_not_fit_their_values_are_told_as_they_are() -> None:
    said: list[tuple[str, str]] = []
    record = logging.LogRecord("quic", logging.ERROR, "", 0, "%d of %s", ("three",), None)
    LibraryLines(lambda *what: said.append(what)).handle(record)
    assert said == [("quic", "%d of %s")]


class Unspeakable(Exception):
    """Nobody can say what it is."""

    def __str__(self) -> str:
        raise AttributeError("half made")


@pytest.mark.parametrize(
    ("words", "values", "told"),
    [
        ("%s has ended", (Unspeakable(),), "%s has ended (it cannot be told: AttributeError)"),
        (Unspeakable(), (), "Unspeakable (it cannot be told: AttributeError)"),
        ("it has ended", (), "it has ended (it cannot be told: AttributeError)"),
    ],
    ids=["value", "words", "error"],
)
def test_what_cannot_be_told_is_said_and_the_library_goes_on(
    words: object, values: tuple[object, ...], told: str
) -> None:
    stream = io.StringIO()
    log.set_up(form="json", stream=stream)
    (ours,) = [one for one in logging.getLogger().handlers if isinstance(one, LibraryLines)]
    error = (Unspeakable, Unspeakable(), None)
    for _ in range(1000):  # to ours alone: the one of pytest raises
        ours.handle(logging.LogRecord("aioice.ice", logging.ERROR, "", 0, words, values, error))
    assert {(one["library"], one["why"]) for one in lines(stream)} == {("aioice.ice", told)}
    assert len(lines(stream)) == KIND_LINES.burst


def test_a_log_that_fails_fails_no_library() -> None:
    def say(_library: str, _what: str) -> None:
        raise RuntimeError("no log")

    record = logging.LogRecord("quic", logging.ERROR, "", 0, "lost", (), None)
    assert LibraryLines(say).handle(record)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_the_end_of_the_process_passes(error: BaseException) -> None:
    def say(_library: str, _what: str) -> None:
        raise error

    record = logging.LogRecord("quic", logging.ERROR, "", 0, "lost", (), None)
    with pytest.raises(type(error)):
        LibraryLines(say).handle(record)


def test_what_is_no_warning_is_not_told() -> None:
    stream = io.StringIO()
    log.set_up(level="debug", stream=stream)
    logging.getLogger("httpx2").info("GET https://huggingface.co/signed?X-Amz-Signature=secret")
    assert stream.getvalue() == ""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def _writing() -> list[threading.Thread]:
    """Return the threads that write to stderr."""
    return [thread for thread in threading.enumerate() if thread.name == "stderr"]


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
    assert not _writing()


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
    [thread] = _writing()
    assert thread.daemon, "the pipe is full: it waits, and keeps nobody"
    while _writing():
        some(reader)


def test_a_reader_that_has_gone_is_no_error() -> None:
    reader, end = os.pipe()
    os.close(reader)
    writer = PatientWriter(end)
    writer.write(LINE)
    writer.write(LINE)
    writer.close(5.0)
    assert not _writing()
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


def test_a_log_for_the_file_alone_leaves_stderr_to_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.set_up(level="info", file=tmp_path / "meshd.log", to_stderr=False)
    log.get("test").warning("no_invite", why="full")
    log.set_up(level="warning")
    assert "no_invite" in (tmp_path / "meshd.log").read_text()
    assert capsys.readouterr().err == ""


def test_what_replaces_stderr_is_a_terminal_where_stderr_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, end = os.openpty()
    monkeypatch.setattr("sys.stderr", stderr := os.fdopen(end, "w", encoding="latin-1"))
    with log.in_background():
        assert sys.stderr.isatty() and sys.stderr.encoding == "latin-1"
        sys.stderr.write("ä…")
        log.drain(30.0)
        assert os.read(controller, 100) == b"\xe4\\u2026"
    stderr.close()
    os.close(controller)


def test_beyond_its_share_lines_are_left_out_and_counted() -> None:
    shares, burst = LineShares(0.0), int(PEER_LINES.burst)
    said = [shares.may_say("mallory", 0.0) for _ in range(burst + 100)]
    assert said == [0] * burst + [None] * 100
    assert shares.may_say("anna", 0.0) == 0, "another peer is heard all the while"
    assert shares.may_say("mallory", 1 / PEER_LINES.per_second) == 100
    assert shares.may_say("mallory", 1 / PEER_LINES.per_second) is None


def test_many_peers_have_one_share_together() -> None:
    shares = LineShares(0.0)
    said = [shares.may_say(f"sybil {number}", 0.0) for number in range(10_000)]
    assert said.count(0) == PEER_LINES_IN_ALL.burst + FIRST_LINES_IN_ALL.burst
    assert len(shares.peers) == MAX_LOGGED_PEERS


def test_some_peers_that_are_talked_about_all_the_time_leave_out_no_other() -> None:
    """However long: a few can use all that peers have together."""
    shares = LineShares(0.0)
    for second in range(3600):
        for number in range(20):
            shares.may_say(f"mallory {number}", float(second))
        if second >= 3540:
            assert [shares.may_say(f"anna {second}", float(second)) for _ in range(3)] == [0, 0, 0]


def test_the_log_keeps_to_it_and_errors_pass() -> None:
    stream = io.StringIO()
    log.set_up(stream=stream)
    try:
        logger = log.get("peer")
        for _ in range(500):
            logger.warning("stream_refused", peer="mallory", why="no")
        for _ in range(5):
            logger.error("work_failed", peer="mallory", why="a bug")
        logger.warning("stream_refused", peer="anna", why="no")
        logger.info("api_listening", url="http://127.0.0.1")
    finally:
        log.set_up(level="warning")
    lines = stream.getvalue().splitlines()
    assert sum("stream_refused" in line and "mallory" in line for line in lines) == PEER_LINES.burst
    assert sum("work_failed" in line for line in lines) == 5
    assert sum("peer=anna" in line for line in lines) == 1
    assert "api_listening" in lines[-1]


def test_lines_that_name_no_peer_have_a_share_for_each_kind() -> None:
    shares, burst = LineShares(0.0), int(KIND_LINES.burst)
    said = [shares.may_say_kind("signal_dropped", 0.0) for _ in range(burst + 7)]
    assert said == [0] * burst + [None] * 7
    assert shares.may_say_kind("model_state", 0.0) == 0, "another kind is written all the while"
    assert shares.may_say_kind("signal_dropped", 1 / KIND_LINES.per_second) == 7
    for number in range(10_000):
        shares.may_say_kind(f"made up {number}", 0.0)
    assert len(shares.kinds) == MAX_LINE_KINDS


def test_peers_use_up_nothing_of_what_this_node_says_itself() -> None:
    shares = LineShares(0.0)
    for number in range(10_000):
        shares.may_say(f"sybil {number}", 0.0)
    assert shares.may_say_kind("model_state", 0.0) == 0


def test_the_log_leaves_out_lines_without_a_peer_as_well() -> None:
    stream = io.StringIO()
    log.set_up(stream=stream)
    try:
        logger = log.get("peer")
        for _ in range(500):
            logger.info("signal_dropped", why="nonsense")
        logger.info("model_state", why="loading")
    finally:
        log.set_up(level="warning")
    lines = stream.getvalue().splitlines()
    assert len(lines) == KIND_LINES.burst + 1 and "model_state" in lines[-1]


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


def test_the_last_lines_of_some_events_are_kept() -> None:
    log.set_up(level="info", stream=io.StringIO())
    log.remember(frozenset({"peer_gone", "woke_up"}))
    try:
        log.get("test").warning("peer_gone", name="anna\x1b[2J", why="w" * 5000, token="secret")
        log.get("test").info("child_ended", child="x")
        log.get("test").debug("woke_up", seconds=1)
        [line] = log.remembered()
        assert (line.event, line.level) == ("peer_gone", "warning")
        assert line.fields["name"] == "anna\\x1b[2J" and line.fields["token"] == "[redacted]"
        assert len(line.fields["why"]) == 300
        for number in range(3 * log.MAX_REMEMBERED):
            log.get("test").error("woke_up", seconds=number)
        kept = [line.fields["seconds"] for line in log.remembered()]
        assert kept == [str(2 * log.MAX_REMEMBERED + number) for number in range(log.MAX_REMEMBERED)]
    finally:
        log.remember(frozenset())
    assert log.remembered() == ()
