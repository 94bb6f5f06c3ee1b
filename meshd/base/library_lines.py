"""What libraries log by way of `logging` becomes a line of our own log, at a limited rate.

Otherwise it would go to stderr at once: past the thread that writes there (a pipe that nobody reads would
stop the daemon), past the limit of lines (strangers would fill a disk) and past the log file.
"""

import logging
from collections.abc import Callable

_MOST_LETTERS = 300  # of what one says: some repeat whole requests, or tracebacks

Say = Callable[[str, str], object]  # which library, and what


class LibraryLines(logging.Handler):
    """The one place where records of all libraries end."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError, KeyError):  # its values do not fit its words
            text = str(record.msg)
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f" ({type(error).__name__}: {error})"
        self._say(record.name, text[:_MOST_LETTERS])

    def handleError(self, record: logging.LogRecord) -> None:
        """See logging.Handler, which writes a traceback to stderr."""


def take_over(say: Say) -> None:
    """From now on libraries speak through `say`, in place of an earlier one."""
    lines, root = LibraryLines(say), logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, LibraryLines)]:
        root.removeHandler(handler)
    root.addHandler(lines)
    logging.lastResort = lines  # for loggers that hand nothing on to the root
