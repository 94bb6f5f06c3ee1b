"""Logging; the only user of structlog.

An event is a fixed phrase, values are fields of a closed list (docs/logging.md). Logs go to stderr, or with
their fields to systemd's journal if that is where stderr leads, and if asked to a file that is rotated by
size. Values under names that hold secrets are replaced before anything
is written.

systemd connects the stderr of a service with the journal, and says so in JOURNAL_STREAM. Lines that go to the
journal's own socket instead can be found by what they are about: `journalctl MESHD_PEER=q4x… -p warning`.
Format: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/.

Lines that outsiders cause are limited, so that they cannot rotate others out of the log. A line that names a
peer counts for the peer. One that names none (an unproven connection, a relay, a client at a local port, this
node itself) counts for its kind, so there is no line without a limit. The first lines about each peer come
from a share of their own: peers that are talked about all the time use up what all have together, and nothing
of that.

The last lines of some events are kept in memory, for those who ask later what has happened (`remember`).
"""

import io
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import IO, NamedTuple, Protocol

from meshd.base.admission import Rate, Rates
from meshd.base.files import RotatedFile
from meshd.base.peer_limits import (
    FIRST_LINES,
    FIRST_LINES_IN_ALL,
    KIND_LINES,
    PEER_LINES,
    PEER_LINES_IN_ALL,
)
from meshd.base.units import in_bytes, in_memory

_MOST_LETTERS = 300  # of what one says: some repeat whole requests, or tracebacks
Say = Callable[[str, str], object]  # which library, and what
MAX_UNWRITTEN_BYTES = 256 << 10
# structlog loads these where they happen to be installed: rich for tracebacks that are not printed here (5 MB
# and 40 ms), greenlet for threads that meshd has not (1 MB)
_HIDDEN = {"rich", "greenlet"} - sys.modules.keys()
sys.modules.update(dict.fromkeys(_HIDDEN))  # type: ignore[arg-type]
import structlog  # noqa: E402

for _name in _HIDDEN:
    del sys.modules[_name]
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FLUSH_SECONDS = 0.5  # at the end, for what stderr has not taken yet
MAX_LOG_BYTES = 4 << 20  # of the file; the one before it is kept beside it, so twice as much at most
_MOST_VALUE_LETTERS = 4000  # of one field: a reason may be a peer's, and is to leave room for other lines
_TEXT = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)
_UNITS = {"bytes": in_bytes, "free": in_memory}  # fields for people
MAX_LOGGED_PEERS = 512  # whose lines are counted; of more the one silent longest is forgotten
MAX_LINE_KINDS = 512  # of lines; the source has fewer
MAX_REMEMBERED = 100  # lines in memory
_MOST_KEPT_LETTERS = 300  # of each of their fields: some 100 kB at worst
SECRET_FIELDS = frozenset({"token", "secret", "key", "password", "authorization", "api_key"})


class _Held:
    """Context manager: no exception leaves its block, but the end of the process does.

    The boundary of fault_boundary.py cannot stand here, as it speaks by the log itself.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> "_Held":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error if isinstance(error, Exception) else None
        return self.error is not None


class LibraryLines(logging.Handler):
    """The one place where records of all libraries end."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record. Raises nothing: code that logs must not fail because of it."""
        with _Held() as held:
            self._say(record.name, _text(record)[:_MOST_LETTERS])
        if held.error is not None:
            words = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
            why = f" (it cannot be told: {type(held.error).__name__})"
            with _Held():  # it may be our log that fails: then there is nothing left to say it with
                self._say(record.name, words[: _MOST_LETTERS - len(why)] + why)

    def handleError(self, record: logging.LogRecord) -> None:
        """Write nothing: the default writes a traceback to stderr."""


def _text(record: logging.LogRecord) -> str:
    """Return the record's text. May raise anything: libraries log values with code of their own."""
    try:
        text = record.getMessage()
    except (TypeError, ValueError, KeyError):  # its values do not fit its words
        text = str(record.msg)
    error = record.exc_info[1] if record.exc_info else None
    return text if error is None else f"{text} ({type(error).__name__}: {error})"


def take_over(say: Say) -> None:
    """Send what libraries log to `say` from now on, instead of an earlier one."""
    lines, root = LibraryLines(say), logging.getLogger()
    for handler in [known for known in root.handlers if isinstance(known, LibraryLines)]:
        root.removeHandler(handler)
    root.addHandler(lines)
    logging.lastResort = lines  # for loggers that hand nothing on to the root


class PatientWriter:
    """Writes to `descriptor`, which stays the caller's, until `close`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # that wait, with those that are being written
        self._lost = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue whole lines, or drop them if too much is waiting. Returns at once."""
        with self._changed:
            if self._closing or self._bytes + len(data) > MAX_UNWRITTEN_BYTES:
                self._lost += 1
                return
            self._waiting.append(data)
            self._bytes += len(data)
            self._changed.notify()

    def take_lost(self) -> int:
        """Return how many writes were dropped, once half of the room is free again; 0 before and after."""
        with self._changed:
            if self._bytes > MAX_UNWRITTEN_BYTES // 2:
                return 0
            lost, self._lost = self._lost, 0
            return lost

    def drain(self, seconds: float) -> None:
        """Wait at most `seconds` until all is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes, seconds)

    def close(self, seconds: float) -> None:
        """Take nothing more, and wait at most `seconds` for what is left."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                data = self._waiting.popleft()
            self._write(data)
            with self._changed:
                self._bytes -= len(data)
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError:
                return  # the terminal has gone: that is no reason to end


class PatientText(io.TextIOBase):
    """Text written to a PatientWriter, instead of `sys.stderr`."""

    def __init__(self, writer: PatientWriter, encoding: str = "utf-8") -> None:
        self._writer = writer
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # of a terminal whose locale is not UTF-8
        """The encoding of what is written."""
        return self._encoding

    def isatty(self) -> bool:
        """Return True if the writer writes to a terminal."""
        return os.isatty(self._writer.descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Queue the text. Returns at once."""
        self._writer.write(text.encode(self._encoding, errors="backslashreplace"))
        return len(text)

    def fileno(self) -> int:
        """Return the descriptor that the thread writes to."""
        return self._writer.descriptor


class Logger(Protocol):
    """The interface of a logger for the rest of meshd."""

    def debug(self, event: str, **fields: object) -> object: ...
    def info(self, event: str, **fields: object) -> object: ...
    def warning(self, event: str, **fields: object) -> object: ...
    def error(self, event: str, **fields: object) -> object: ...


def _redact(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    for name, value in event.items():
        if name in SECRET_FIELDS:
            event[name] = "[redacted]"
        elif isinstance(value, str):
            event[name] = _written(value)
    return event


def _written(text: str) -> str:
    """Escape and cut text of a peer, which must not end the line, move the cursor or fill the file."""
    cut = len(text) - _MOST_VALUE_LETTERS
    shown = text[:_MOST_VALUE_LETTERS] if cut > 0 else text
    if not shown.isprintable():
        shown = shown.encode("unicode_escape").decode()
    return f"{shown}… ({cut} more)" if cut > 0 else shown


class LineBudgets(Rates):
    """The lines that may be written about each key, and how many were left out."""

    def __init__(self, rate: Rate, *, most: int) -> None:
        super().__init__(rate, most=most)
        self._left_out: dict[str, int] = {}

    def count(self, key: str, *, may: bool) -> int | None:
        """Return how many lines were left out before this one, or None to leave this one out, too."""
        left_out = self._left_out.pop(key, 0)
        if may:
            return left_out
        self._left_out[key] = left_out + 1
        if len(self._left_out) > self._most:
            del self._left_out[next(iter(self._left_out))]
        return None


class LineShares:
    """The shares of lines. A method returns how many were left out before; None: leave this one out, too.

    `now` is a clock in seconds that never goes back.
    """

    def __init__(self, now: float) -> None:
        self.peers = LineBudgets(PEER_LINES, most=MAX_LOGGED_PEERS)
        self.kinds = LineBudgets(KIND_LINES, most=MAX_LINE_KINDS)
        self._first = LineBudgets(FIRST_LINES, most=MAX_LOGGED_PEERS)
        self._all, self._all_first = PEER_LINES_IN_ALL.bucket(now), FIRST_LINES_IN_ALL.bucket(now)

    def may_say(self, peer: str, now: float) -> int | None:
        """Spend a line about `peer`."""
        lines, first = self.peers.of(peer, now), self._first.of(peer, now)
        may = lines.has(1, now) and (
            (first.has(1, now) and self._all_first.spend(1, now) and first.spend(1, now))
            or self._all.spend(1, now)
        )
        return self.peers.count(peer, may=may and lines.spend(1, now))

    def may_say_kind(self, kind: str, now: float) -> int | None:
        """Spend a line that names no peer; peers' lines do not count against it."""
        return self.kinds.count(kind, may=self.kinds.of(kind, now).spend(1, now))


_shares = LineShares(time.monotonic())
_clock: Callable[[], float] = time.monotonic


def _share(_logger: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Drop lines beyond the share of a peer, or of a kind of line; errors and debug pass."""
    if method not in ("info", "warning"):
        return event
    peer, now = event.get("peer"), _clock()
    if isinstance(peer, str):
        left_out = _shares.may_say(peer, now)
    else:
        left_out = _shares.may_say_kind(f"{event.get('event')} {event.get('library', '')}", now)
    if left_out is None:
        raise structlog.DropEvent
    if left_out:
        event["left_out"] = left_out
    return event


class RememberedLine(NamedTuple):
    """A line that was logged. `at`: ISO 8601, UTC; `fields` are texts, as they were written."""

    at: str
    level: str
    event: str
    fields: Mapping[str, str]


_remembered: frozenset[str] = frozenset()  # the events that are
_lines: deque[RememberedLine] = deque(maxlen=MAX_REMEMBERED)


def remember(events: frozenset[str]) -> None:
    """Keep the last lines of these events from now on, and no earlier ones."""
    global _remembered
    _remembered = events
    _lines.clear()


def remembered() -> Sequence[RememberedLine]:
    """Return the last lines that were kept, the oldest first."""
    return tuple(_lines)


def _keep(_logger: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Keep the line in memory, if it is of an event to remember."""
    name = event.get("event")
    if name in _remembered:
        fields = {
            field: str(value)[:_MOST_KEPT_LETTERS] for field, value in event.items() if field != "event"
        }
        _lines.append(RememberedLine(str(event.get("timestamp", "")), method, str(name), fields))
    return event


def _in_units(
    _logger: object, _method: str, event: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    """Format sizes with units, for people: programs read JSON."""
    for field, text in _UNITS.items():
        if isinstance(size := event.get(field), int):
            event[field] = text(size)
    return event


class _Lines:
    """The sinks of all lines; structlog calls it at the end of its chain."""

    def __init__(self, sinks: tuple[Callable[[str], object], ...]) -> None:
        self._sinks = sinks

    def info(self, line: str) -> None:
        """Write one line, whatever its level."""
        for sink in self._sinks:
            sink(line + "\n")

    debug = warning = error = info


_file: RotatedFile | None = None


def _to_file(file: RotatedFile) -> Callable[[str], object]:
    def write(text: str) -> None:
        file.write(text.encode(errors="replace"))
        if lost := file.take_lost():
            get("log").warning("log_lines_lost", path=str(file.path), count=lost)

    return write


_background: PatientWriter | None = None  # what writes to stderr in a daemon
_journal: PatientWriter | None = None  # what takes its lines instead, in a service of systemd
_may_use_journal = False  # lines go to stderr, and are for people


def _to_journal(
    _logger: object, method: str, event: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    """Write a line to the journal, if there is one, which adds the time."""
    if _journal is not None:
        fields = {name: value for name, value in event.items() if name != "level"}
        message = _TEXT(None, method, _in_units(None, method, dict(fields)))
        _journal.write(entry(str(message), method, fields))
        if lost := _journal.take_lost():
            get("log").warning("log_lines_lost", path="journal", count=lost)
    return event


def _to_stderr(line: str) -> None:
    if _journal is None:
        _to_stream(None)(line)


def _to_stream(stream: IO[str] | None) -> Callable[[str], object]:
    def write(text: str) -> None:
        if stream is None and _background is not None:
            _background.write(text.encode(errors="replace"))
            if lost := _background.take_lost():
                get("log").warning("log_lines_lost", path="stderr", count=lost)
            return
        out = stream if stream is not None else sys.stderr  # looked up late: it may have been replaced
        try:
            out.write(text)
            out.flush()
        except (OSError, ValueError):
            pass  # the terminal has gone: that must not end a daemon

    return write


def unwritten() -> dict[str, str]:
    """Return the log file and the error, if it cannot be written now; else nothing."""
    return {str(_file.path): _file.trouble} if _file is not None and _file.trouble else {}


@contextmanager
def in_background() -> Iterator[Callable[[str], object]]:
    """Write to stderr from a thread within the block, because stderr may block: a full pipe, a stopped
    terminal.

    Python's own output there (warnings, uncaught errors) goes the same way. Yields a function that writes a
    remark for people, whatever the level.
    """
    global _background
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # there is none, or it is a test's
        yield lambda text: _to_stream(None)(text + "\n")
        return
    _background = PatientWriter(descriptor)
    try:
        with redirect_stderr(PatientText(_background, sys.stderr.encoding)), _in_journal(descriptor):
            yield lambda text: _to_stream(None)("".join(map(_shown, text)) + "\n")
    finally:
        writer, _background = _background, None
        writer.close(FLUSH_SECONDS)


@contextmanager
def _in_journal(descriptor: int) -> Iterator[None]:
    """Write lines to the journal instead of stderr within the block, if `descriptor` leads there."""
    global _journal
    sock = open_journal() if _may_use_journal and leads_to_journal(descriptor, os.environ) else None
    if sock is None:
        yield
        return
    with sock:
        _journal = PatientWriter(sock.fileno())
        try:
            yield
        finally:
            writer, _journal = _journal, None
            writer.close(FLUSH_SECONDS)


def drain(seconds: float) -> None:
    """Wait at most so long until stderr has all that was written: on a terminal, before stdout is used."""
    if _background is not None:
        _background.drain(seconds)


def _library_said(library: str, why: str) -> None:
    get("log").warning("library_said", library=library, why=why)


def _shown(char: str) -> str:
    return char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()


def _worth_a_line(record: logging.LogRecord) -> bool:
    # Ctrl-C that kills a child while it is being started: asyncio itself has reaped it, and its own watcher
    # (of threads or of pidfds) then says so. Nobody waits for that exit code.
    return "will report returncode 255" not in str(record.msg)


def set_up(
    *,
    level: str = "info",
    form: str = "text",
    stream: IO[str] | None = None,
    file: Path | None = None,
    to_stderr: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send logs of `level` and above to `stream` (stderr) and `file`, as lines of text or JSON.

    Without `to_stderr`, the file alone gets them. `clock` is that of peers' shares of lines.
    """
    global _clock, _file, _may_use_journal, _shares
    _shares, _clock = LineShares(clock()), clock
    # Take over what libraries log.
    take_over(_library_said)
    logging.getLogger("asyncio").addFilter(_worth_a_line)  # the same one again is no second filter
    logging.getLogger("quic").setLevel(logging.CRITICAL)  # aioquic's: what strangers send is not worth a line
    for quotes_headers in ("opentelemetry.util.re", "opentelemetry.trace.span"):  # keys, what clients send
        logging.getLogger(quotes_headers).setLevel(logging.CRITICAL)
    # Open the sinks.
    if _file is not None:
        _file.close()
    _file = RotatedFile(file, most=MAX_LOG_BYTES) if file is not None else None
    to_file = (_to_file(_file),) if _file is not None else ()
    to_stream = _to_stderr if stream is None else _to_stream(stream)
    sinks = (to_stream, *to_file) if to_stderr else to_file
    _may_use_journal = stream is None and to_stderr and form == "text"
    # Render for people or for programs.
    renderers: list[structlog.typing.Processor]
    if form == "json":
        renderers = [structlog.processors.JSONRenderer()]
    else:
        renderers = [_in_units, _TEXT]
    structlog.configure(
        processors=[
            _share,
            structlog.processors.add_log_level,
            _redact,
            _to_journal,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _keep,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_names: _Lines(sinks),
        cache_logger_on_first_use=False,
    )


def get(area: str) -> Logger:
    """Return a logger whose lines carry `area` (the package that logs).

    It follows a later `set_up`, so a module may keep one from the time of its import.
    """
    logger: Logger = structlog.get_logger(area=area)
    return logger


set_up(level="warning")  # until a daemon says otherwise; structlog's own default would write to stdout


JOURNAL_SOCKET = Path("/run/systemd/journal/socket")
MOST_ENTRY_BYTES = 128 << 10  # in one datagram: well below the kernel's limit for sockets of this kind
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}  # of syslog
_LENGTH = Struct("<Q")


def leads_to_journal(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Return True if systemd has connected this descriptor with the journal."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def open_journal(path: Path = JOURNAL_SOCKET) -> socket.socket | None:
    """Return a socket to the journal, each write to which is an entry; None if it cannot be reached."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.connect(os.fspath(path))
    except OSError:
        sock.close()
        return None
    return sock


def entry(message: str, level: str, fields: Mapping[str, object]) -> bytes:
    """Return an entry: `message` for people, and a field `MESHD_NAME` for each of `fields`.

    Fields for which there is no room are left out, the last ones first.
    """
    found = bytearray()
    for name, value in _named(message, level, fields):
        written = _field(name, value.encode(errors="replace")[: MOST_ENTRY_BYTES // 2])
        if len(found) + len(written) > MOST_ENTRY_BYTES:
            break
        found += written
    return bytes(found)


def _named(message: str, level: str, fields: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    yield "PRIORITY", str(_PRIORITIES.get(level, 6))
    yield "SYSLOG_IDENTIFIER", "meshd"
    yield "MESSAGE", message
    for name, value in fields.items():
        yield f"MESHD_{name.upper()}", str(value)


def _field(name: str, value: bytes) -> bytes:
    if b"\n" not in value:
        return b"%s=%s\n" % (name.encode(), value)
    return b"%s\n%s%s\n" % (name.encode(), _LENGTH.pack(len(value)), value)
