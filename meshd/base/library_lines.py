"""Turns what libraries log through `logging` into lines of our own log, at a limited rate.

Otherwise it would go to stderr at once: past the thread that writes there (a pipe that nobody reads would
stop the daemon), past the limit of lines (strangers would fill a disk) and past the log file.
"""

import logging
from collections.abc import Callable
from types import TracebackType

_MOST_LETTERS = 300  # of what one says: some repeat whole requests, or tracebacks

Say = Callable[[str, str], object]  # which library, and what


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
