"""Logs: structlog lives here only.

An event is a fixed phrase, values are fields of a closed list (docs/logging.md). Logs go to stderr, and
if asked to a file that is rotated by size. Values under names that hold secrets are replaced before anything
is written.
"""

import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import IO, Protocol

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
MAX_LOG_BYTES = 4 << 20  # of the file; the one before it is kept beside it, so twice as much at most
SECRET_FIELDS = frozenset({"token", "secret", "key", "password", "authorization", "api_key"})


class Logger(Protocol):
    """What the rest of meshd may do with a logger."""

    def debug(self, event: str, **fields: object) -> object: ...
    def info(self, event: str, **fields: object) -> object: ...
    def warning(self, event: str, **fields: object) -> object: ...
    def error(self, event: str, **fields: object) -> object: ...


def _redact(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    for name, value in event.items():
        if name in SECRET_FIELDS:
            event[name] = "[redacted]"
        elif isinstance(value, str) and not value.isprintable():
            # a name or reason of a peer must neither end the line nor move the cursor
            event[name] = value.encode("unicode_escape").decode()
    return event


class RotatedFile:
    """A log file (0600) of at most `most` bytes; when it is full it becomes `NAME.1`, and a new one begins.

    A full disk or a folder that has gone costs lines, never the program.
    """

    def __init__(self, path: Path, *, most: int = MAX_LOG_BYTES) -> None:
        self._path = path
        self._most = most
        self._fd = -1
        self._size = 0

    def write(self, text: str) -> None:
        """Append `text`, whole lines."""
        data = text.encode(errors="replace")
        try:
            if self._fd >= 0 and self._size + len(data) > self._most:
                self.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            if self._fd < 0:
                _make_private(self._path.parent)
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                self._size = os.fstat(self._fd).st_size
            self._size += os.write(self._fd, data)
        except OSError:
            self.close()

    def close(self) -> None:
        """Idempotent; a later write opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _make_private(folder: Path) -> None:
    # not mkdir(parents=True): it would leave a home that it makes on the way open to others
    for one in reversed((folder, *folder.parents)):
        if not one.is_dir():
            one.mkdir(mode=0o700, exist_ok=True)


class _Lines:
    """Writes each line to all sinks; what structlog calls at the end of its chain."""

    def __init__(self, sinks: tuple[Callable[[str], object], ...]) -> None:
        self._sinks = sinks

    def info(self, line: str) -> None:
        """One line, of whatever level."""
        for sink in self._sinks:
            sink(line + "\n")

    debug = warning = error = info


_file: RotatedFile | None = None


def _to_stream(stream: IO[str] | None) -> Callable[[str], object]:
    def write(text: str) -> None:
        out = stream if stream is not None else sys.stderr  # looked up late: it may have been replaced
        try:
            out.write(text)
            out.flush()
        except (OSError, ValueError):
            pass  # the terminal has gone: that must not end a daemon

    return write


def set_up(
    *, level: str = "info", form: str = "text", stream: IO[str] | None = None, file: Path | None = None
) -> None:
    """Send logs of `level` and above to `stream` (stderr) and `file`, as lines of text or JSON."""
    global _file
    if _file is not None:
        _file.close()
    _file = RotatedFile(file) if file is not None else None
    sinks = (_to_stream(stream), *((_file.write,) if _file is not None else ()))
    renderer: structlog.typing.Processor
    if form == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _redact,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_names: _Lines(sinks),
        cache_logger_on_first_use=False,
    )


def get(area: str) -> Logger:
    """A logger whose lines carry `area` (the package that speaks).

    It follows a later `set_up`, so a module may keep one from the time of its import.
    """
    logger: Logger = structlog.get_logger(area=area)
    return logger


set_up(level="warning")  # until a daemon says otherwise; structlog's own default would write to stdout
