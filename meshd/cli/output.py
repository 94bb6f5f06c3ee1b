"""Output for people and scripts: results on stdout, everything else on stderr.

Only this module decides whether there is a terminal, how wide it is, and whether colour is wanted; layout.py
makes the text. What is not for a terminal keeps its long lines. Text that may come from a peer is inert.
"""

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TextIO

from meshd.base.errors import MeshdError
from meshd.base.units import in_time
from meshd.cli.layout import Layout, State, clean

DEFAULT_WIDTH = 100  # of a terminal that does not say
LABEL_WIDTH = 8  # of the labels of fields
STATE_WIDTH, NAME_WIDTH = 9, 13  # of findings
REMIND_SECONDS = 3.0  # between reminders of a step that makes no progress
_RARE_SECONDS = 60.0  # after that long, between plain lines: they may go to a log
_DRAWN = "━…"  # characters that an encoding must have for drawings

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
        layout: Layout | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to these streams. Without `stdin` nobody is asked anything. `clock` counts seconds.

        `layout`: that of results, for a terminal that gets them later.
        """
        self._clock = clock
        self._lock = threading.RLock()  # `reminding` writes from a thread
        self._stdout = stdout
        self._stdin = stdin
        self._stderr = stderr
        self._environ = environ
        self._width = width
        self._plain = environ.get("TERM") == "dumb"
        self._laid_out = layout
        self.terminal = layout is not None or stdout.isatty()
        self.draws_progress = stderr.isatty() and not self._plain
        self.asks = stdin is not None and all(stream.isatty() for stream in (stdin, stdout, stderr))
        self._drawn = False  # a progress line stands on the terminal
        self._last_step = ""
        self._waits_for: tuple[str, float | None] | None = (
            None  # the step that is shown, while nothing follows
        )
        self._waits_since = self._reminded_at = 0.0

    @property
    def layout(self) -> Layout:
        """The layout of results: it fits the terminal, if there is one."""
        return self._laid_out or self._layout_of(self._stdout)

    def _layout_of(self, stream: TextIO) -> Layout:
        environ, is_terminal = self._environ, stream.isatty()
        wanted = bool(environ.get("FORCE_COLOR")) or (is_terminal and not self._plain)
        return Layout(
            width=(self._width or _terminal_width(stream, environ)) if is_terminal else None,
            colours=wanted and not environ.get("NO_COLOR"),
            draws=_can_draw(stream),
        )

    def line(self, *parts: str) -> None:
        """Print one line of the result, whole, and flush it. A part may be a State."""
        self._wipe()
        self._print(self.layout.inert(*parts) + "\n")

    def text(self, *parts: str, indent: int = 0) -> None:
        """Print prose of the result, on a terminal in lines that fit; `indent` is that of all lines."""
        self._wipe()
        layout = self.layout
        self._print(f"{' ' * indent}{layout.wrapped(layout.inert(*parts), indent)}\n")

    def field(self, label: str, *parts: str, width: int = LABEL_WIDTH) -> None:
        """Print a line that begins with a label; on a terminal, what does not fit goes below its text."""
        self._wipe()
        layout = self.layout
        self._print(f"{_label(layout, label, width)}{layout.wrapped(layout.inert(*parts), width)}\n")

    def finding(self, state: str, name: str, *parts: str) -> None:
        """Print a state, in colour if it is good or bad, a name, and text that continues beside them."""
        self._wipe()
        layout = self.layout
        first = layout.inert(State(state)) + " " * (STATE_WIDTH - len(state))
        indent = max(STATE_WIDTH + NAME_WIDTH, STATE_WIDTH + len(name) + 1)
        text = layout.wrapped(layout.inert(*parts), indent)
        self._print(f"{first}{clean(name).ljust(indent - STATE_WIDTH)}{text}\n")

    def bar(self, share: float, text: str = "") -> None:
        """Print a progress bar below the text of fields."""
        self._wipe()
        layout = self.layout
        self._print(layout.cut(f"{' ' * LABEL_WIDTH}{layout.bar(share)} {clean(text)}".rstrip()) + "\n")

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

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        label: str | None = None,
        drop: Sequence[str] = (),
        below: str = "",
    ) -> None:
        """Print columns as wide as their content; with a label, below the text of fields.

        A terminal that is too narrow gets it without the columns in `drop`, the first of them first, then
        with the column `below` in lines of its own; then wide columns are broken.
        """
        self._wipe()
        indent = 0 if label is None else LABEL_WIDTH
        self._print(
            self.layout.table(headers, rows, label=label or "", indent=indent, drop=drop, below=below)
        )

    @property
    def can_draw_screens(self) -> bool:
        """True if results go to a terminal on which the cursor can be moved."""
        return self.terminal and not self._plain

    @contextmanager
    def screen(self) -> Iterator[Callable[[Callable[["Output"], None]], None]]:
        """Take the whole terminal, and give it back as it was, also when a signal ends the block.

        Yields a function that shows what another one prints on the output that it is given. What does not fit
        is cut, and counted. Raises Unwritable once the terminal has gone.
        """
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        colours = self.layout.colours
        console = Console(
            file=self._stdout,
            force_terminal=True,
            color_system="standard" if colours else None,
            no_color=not colours,
            legacy_windows=False,
        )
        live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

        def show(draw: Callable[[Output], None]) -> None:
            width, height = console.size
            drawn, layout = io.StringIO(), replace(self.layout, width=width)
            draw(Output(drawn, self._stderr, self._environ, layout=layout))
            lines = drawn.getvalue().splitlines()
            if len(lines) > height:
                lines[height - 1 :] = [self.layout.dim(f"and {len(lines) - height + 1} more lines")]
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

        with ended_by_signals(on_stop=live.stop, on_continue=lambda: live.start(refresh=True)):
            try:
                with live:
                    yield show
            except OSError as error:
                raise Unwritable(error) from None

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

    def note(self, *parts: str, label: str | None = None) -> None:
        """Print a remark that is no result; with a label, as a field."""
        layout = self._layout_of(self._stderr)
        indent = 0 if label is None else LABEL_WIDTH
        text = layout.wrapped(layout.inert(*parts), indent)
        with self._lock:
            self._wipe()
            self._say(f"{_label(layout, label or '', indent)}{text}\n")

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
                self._say(step + "\n")
            self._last_step = step
            return
        layout = self._layout_of(self._stderr)
        text = layout.cut(step if share is None else f"{layout.bar(share)} {step}")
        self._say(f"\r{text}\x1b[K")
        self._drawn = True

    def confirm(self, question: str) -> bool:
        """Ask a person; only where `asks`. Anything but yes is no."""
        return self.ask(f"{question} [y/N] ").strip().lower() in ("y", "yes")

    def ask(self, prompt: str) -> str:
        """Ask a person for one line; only where `asks`."""
        self._wipe()
        self._say(clean(prompt))
        return self._stdin.readline() if self._stdin is not None else ""

    def error(self, what: str, hint: str = "") -> None:
        """Print `error: …`, and after an empty line `hint: …`."""
        layout = self._layout_of(self._stderr)
        text = layout.wrapped(layout.inert(State("error:"), " ", what)) + "\n"
        if hint:
            text += "\n" + layout.wrapped(f"{layout.dim('hint:')} {clean(hint)}") + "\n"
        with self._lock:
            self._wipe()
            self._say(text)

    def qr_code(self, text: str) -> bool:
        """Draw a QR code beside the results; return False if the terminal is too small for it."""
        drawn = self._layout_of(self._stderr).qr_code(text)
        if drawn is not None:
            self._wipe()
            self._say(f"\n{drawn}\n\n")
        return drawn is not None

    def end_progress(self) -> None:
        """Remove the line of progress."""
        self._wipe()

    def _say(self, text: str) -> None:
        """Write to stderr. What cannot be written there is lost: a terminal that has gone is no failure."""
        with suppress(OSError):
            self._stderr.write(text)
            self._stderr.flush()

    def _wipe(self) -> None:
        """Clear the progress line, which also ends the wait for a step."""
        with self._lock:
            self._waits_for = None
            if self._drawn:
                self._say("\r\x1b[K")
                self._drawn = False


@contextmanager
def ended_by_signals(*, on_stop: Callable[[], None], on_continue: Callable[[], None]) -> Iterator[None]:
    """Raise SystemExit inside when the process is to end or the terminal goes, so that blocks are left.

    Ctrl-Z stops the process between `on_stop` and `on_continue`.
    """

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    def stop(number: int, _frame: object) -> None:
        on_stop()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # returns once the shell continues this process
        signal.signal(number, stop)
        on_continue()

    before = {
        number: signal.signal(number, stop if number is signal.SIGTSTP else end)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _label(layout: Layout, label: str, width: int) -> str:
    shown = layout.inert(label) if isinstance(label, State) else layout.dim(clean(label))
    return shown + " " * (width - len(label))


def _can_draw(stream: TextIO) -> bool:
    try:
        _DRAWN.encode(stream.encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _terminal_width(stream: TextIO, environ: Mapping[str, str]) -> int:
    columns = environ.get("COLUMNS", "")
    if columns.isdecimal() and 0 < int(columns) < 10000:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except (OSError, ValueError):
        return DEFAULT_WIDTH
