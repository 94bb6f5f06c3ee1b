"""Logs: structlog lives here only.

An event is a fixed phrase, values are fields of a closed list (docs/logging.md). Logs go to stderr.
Values under names that hold secrets are replaced before anything is written.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import IO, Protocol

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
SECRET_FIELDS = frozenset({"token", "secret", "key", "password", "authorization", "api_key"})


class Logger(Protocol):
    """What the rest of meshd may do with a logger."""

    def debug(self, event: str, **fields: object) -> object: ...
    def info(self, event: str, **fields: object) -> object: ...
    def warning(self, event: str, **fields: object) -> object: ...
    def error(self, event: str, **fields: object) -> object: ...


def _redact(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    for name in event:
        if name in SECRET_FIELDS:
            event[name] = "[redacted]"
    return event


def set_up(*, level: str = "info", form: str = "text", stream: IO[str] | None = None) -> None:
    """Send logs of `level` and above to `stream` (stderr) as lines of text or JSON."""
    out = stream if stream is not None else sys.stderr
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
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )


def get(area: str) -> Logger:
    """A logger whose lines carry `area` (the package that speaks)."""
    logger: Logger = structlog.get_logger().bind(area=area)
    return logger
