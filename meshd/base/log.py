"""Logging; the only user of structlog.

An event is a fixed phrase, values are fields of a closed list (docs/logging.md). Logs go to stderr, and
if asked to a file that is rotated by size. Values under names that hold secrets are replaced before anything
is written.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import IO, Protocol

from meshd.base.byte_format import in_bytes, in_memory
from meshd.base.library_lines import take_over
from meshd.base.log_limits import LineShares
from meshd.base.patient_writer import PatientText, PatientWriter
from meshd.base.rotated_file import RotatedFile

# structlog loads rich where it happens to be installed, for tracebacks that are not printed here: 5 MB, 40 ms
_HIDDEN = "rich" not in sys.modules
if _HIDDEN:
    sys.modules["rich"] = None  # type: ignore[assignment]
import structlog  # noqa: E402

if _HIDDEN:
    del sys.modules["rich"]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FLUSH_SECONDS = 0.5  # at the end, for what stderr has not taken yet
MAX_LOG_BYTES = 4 << 20  # of the file; the one before it is kept beside it, so twice as much at most
_MOST_VALUE_LETTERS = 4000  # of one field: a reason may be a peer's, and is to leave room for other lines
_UNITS = {"bytes": in_bytes, "free": in_memory}  # fields for people
SECRET_FIELDS = frozenset({"token", "secret", "key", "password", "authorization", "api_key"})


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


_shares = LineShares()
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
        with redirect_stderr(PatientText(_background)):
            yield lambda text: _to_stream(None)("".join(map(_shown, text)) + "\n")
    finally:
        writer, _background = _background, None
        writer.close(FLUSH_SECONDS)


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
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send logs of `level` and above to `stream` (stderr) and `file`, as lines of text or JSON.

    `clock` is that of peers' shares of lines.
    """
    global _clock, _file, _shares
    _shares, _clock = LineShares(), clock
    # Take over what libraries log.
    take_over(_library_said)
    logging.getLogger("asyncio").addFilter(_worth_a_line)  # the same one again is no second filter
    logging.getLogger("quic").setLevel(logging.CRITICAL)  # aioquic's: what strangers send is not worth a line
    # Open the sinks.
    if _file is not None:
        _file.close()
    _file = RotatedFile(file, most=MAX_LOG_BYTES) if file is not None else None
    sinks = (_to_stream(stream), *((_to_file(_file),) if _file is not None else ()))
    # Render for people or for programs.
    renderers: list[structlog.typing.Processor]
    if form == "json":
        renderers = [structlog.processors.JSONRenderer()]
    else:
        renderers = [_in_units, structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)]
    structlog.configure(
        processors=[
            _share,
            structlog.processors.add_log_level,
            _redact,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
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
