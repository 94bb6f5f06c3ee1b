"""Output for people and scripts: results on stdout, everything else on stderr.

Only this module decides whether there is a terminal, how wide it is, and whether colour is wanted. Text that
may come from a peer is sanitised: a name must not move the cursor.
"""

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from meshd.base.errors import MeshdError
from meshd.base.units import in_time

DEFAULT_WIDTH = 100
BAR_CHARS = 24
REMIND_SECONDS = 3.0  # between reminders of a step that makes no progress
_RARE_SECONDS = 60.0  # after that long, between plain lines: they may go to a log
_BOLD, _RED, _DIM, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[0m"

DOCUMENT_SCHEMA = 1
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


class Unwritable(MeshdError):
    """Standard output cannot be written to."""

    def __init__(self, error: OSError) -> None:
        reason = (error.strerror or type(error).__name__).lower()
        super().__init__(f"cannot write to standard output: {reason}", hint="redirect it elsewhere")


class Output:
    """stdout for results, stderr for notes, progress and errors."""

    def __init__(
        self,
        stdout: TextIO,
        stderr: TextIO,
        environ: Mapping[str, str],
        *,
        stdin: TextIO | None = None,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to these streams. Without `stdin` nobody is asked anything. `clock` counts seconds."""
        self._clock = clock
        self._lock = threading.RLock()  # `reminding` writes from a thread
        self._stdout = stdout
        self._stdin = stdin
        self._stderr = stderr
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        self.terminal = stdout.isatty()
        self.draws_progress = stderr.isatty() and environ.get("TERM") != "dumb"
        self.asks = stdin is not None and all(stream.isatty() for stream in (stdin, stdout, stderr))
        self._colour_out = self.terminal and not plain
        self._colour_err = stderr.isatty() and not plain
        self._drawn = 0  # characters of the progress line that stand on the terminal
        self._last_step = ""
        self._waits_for: tuple[str, float | None] | None = (
            None  # the step that is shown, while nothing follows
        )
        self._waits_since = self._reminded_at = 0.0
        self.width = width or (_terminal_width(environ) if self.terminal else DEFAULT_WIDTH)

    def line(self, text: str = "") -> None:
        """Print one line of the result, and flush it."""
        self._wipe()
        self._print(clean(text) + "\n")

    def json(self, value: Mapping[str, Json], *, compact: bool = False) -> None:
        """Print the result for a script: one document, with the version of its format."""
        self._dump({"schema": DOCUMENT_SCHEMA, **value}, compact=compact)

    def json_list(self, rows: Sequence[Json]) -> None:
        """Print a result that is nothing but a list."""
        self._dump(rows, compact=False)

    def _dump(self, value: Json, *, compact: bool) -> None:
        self._wipe()
        self._print(json.dumps(value, indent=None if compact else 2, allow_nan=False) + "\n")

    def raw(self, text: str) -> None:
        """Print text of the result as it is: a log, a streamed answer."""
        self._wipe()
        self._print(text)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print columns as wide as their content; the last one is cut at the terminal's edge."""
        self._wipe()
        cells = [list(map(clean, row)) for row in rows]
        widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
        lines = []
        for number, row in enumerate([list(headers), *cells]):
            padded = "  ".join(text.ljust(size) for text, size in zip(row, widths, strict=True)).rstrip()
            if self.terminal and len(padded) > self.width:
                padded = padded[: self.width - 1] + "…"
            if number == 0 and self._colour_out:
                padded = f"{_BOLD}{padded}{_RESET}"
            lines.append(padded + "\n")
        self._print("".join(lines))

    def clear(self) -> None:
        """Clear the screen (terminals only)."""
        if self.terminal:
            self._print("\x1b[H\x1b[2J")

    def _print(self, text: str) -> None:
        """Print part of the result. Raises Unwritable: an undelivered result is a failure, whatever was done
        before.
        """
        try:
            with self._lock:
                self._stdout.write(text)
                self._stdout.flush()
        except BrokenPipeError:
            raise  # the reader has seen enough
        except OSError as error:
            raise Unwritable(error) from None

    def note(self, text: str) -> None:
        """Print a remark that is no result."""
        with self._lock:
            self._wipe()
            self._stderr.write(clean(text) + "\n")
            self._stderr.flush()

    def progress(self, step: str, share: float | None = None) -> None:
        """Show how far `step` is (`share` from 0 to 1, None when unknown): a bar, or a line for each step."""
        step = clean(step).replace("\n", " ")
        with self._lock:
            if self._waits_for != (step, share):
                self._waits_for = (step, share)
                self._waits_since = self._reminded_at = self._clock()
            elif self._reminded_at > self._waits_since:
                return  # the reminder says the same, and for how long
            self._show_step(step, share)

    @contextmanager
    def reminding(self) -> Iterator[None]:
        """Show every few seconds, while inside, that a step without progress still runs."""
        ended = threading.Event()

        def remind() -> None:
            while not ended.wait(1.0):
                self.remind()

        thread = threading.Thread(target=remind, name="reminder", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with self._lock:
                self._wipe()

    def remind(self) -> None:
        """Show the step again with its elapsed time, if that is due."""
        with self._lock:
            now = self._clock()
            waited = now - self._waits_since
            rare = not self.draws_progress and waited > _RARE_SECONDS
            pause = _RARE_SECONDS if rare else REMIND_SECONDS
            if self._waits_for is not None and now - self._reminded_at >= pause:
                self._reminded_at = now
                step, share = self._waits_for
                self._show_step(f"{step} ({in_time(waited)})", share)

    def _show_step(self, step: str, share: float | None) -> None:
        if not self.draws_progress:
            if step != self._last_step:
                self._stderr.write(step + "\n")
                self._stderr.flush()
            self._last_step = step
            return
        text = step
        if share is not None:
            text = f"{bar(share)} {step}"
        text = text[: max(10, self.width - 1)]
        self._stderr.write("\r" + text.ljust(self._drawn))
        self._stderr.flush()
        self._drawn = len(text)

    def confirm(self, question: str) -> bool:
        """Ask a person; only where `asks`. Anything but yes is no."""
        self._wipe()
        self._stderr.write(f"{clean(question)} [y/N] ")
        self._stderr.flush()
        answer = self._stdin.readline() if self._stdin is not None else ""
        return answer.strip().lower() in ("y", "yes")

    def error(self, what: str, hint: str = "") -> None:
        """Print `error: …`, and after an empty line `hint: …`."""
        mark = f"{_RED}error:{_RESET}" if self._colour_err else "error:"
        tip = f"{_DIM}hint:{_RESET}" if self._colour_err else "hint:"
        text = f"{mark} {clean(what)}\n"
        if hint:
            text += f"\n{tip} {clean(hint)}\n"
        with self._lock:
            self._wipe()
            self._stderr.write(text)
            self._stderr.flush()

    def _wipe(self) -> None:
        """Clear the progress line, which also ends the wait for a step."""
        with self._lock:
            self._waits_for = None
            if self._drawn:
                self._stderr.write("\r" + " " * self._drawn + "\r")
                self._stderr.flush()
                self._drawn = 0


def standard() -> Output:
    """Return an output on the process's own streams, after repairing them.

    A character that the terminal's encoding lacks is written as its code, as Python does on stderr.
    """
    _open_closed()
    for stream, errors in (
        (sys.stdin, "replace"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    return Output(sys.stdout, sys.stderr, os.environ, stdin=sys.stdin)


def _open_closed() -> None:
    """Open replacements for descriptors 0 to 2 that are closed (`>&-`).

    Else the next file or socket gets that number, and what is printed goes into it. Nothing can be written to
    what takes the place of stdout, so that a result that gets lost is an error; notes and logs may get lost.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free number: this one
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def bar(share: float) -> str:
    """Return a progress bar for a terminal; `share` from 0 to 1."""
    full = round(BAR_CHARS * min(max(share, 0.0), 1.0))
    return f"[{'#' * full}{'.' * (BAR_CHARS - full)}] {share:4.0%}"


def clean(text: str) -> str:
    """Return `text` without control characters, but for the ends of lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


def _terminal_width(environ: Mapping[str, str]) -> int:
    columns = environ.get("COLUMNS", "")
    if columns.isdecimal() and 0 < int(columns) < 10000:
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or DEFAULT_WIDTH
    except (OSError, ValueError):
        return DEFAULT_WIDTH
