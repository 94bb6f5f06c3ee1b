"""A terminal that tmux draws: what a person would see, with its colours."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI
from rich.text import Text

WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_SESSION = "t"
MESHD = (sys.executable, "-m", "meshd")


class Tmux:
    """One terminal of its own tmux server."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def _tmux(self, *words: str) -> str:
        argv = ["tmux", "-u", "-f", "/dev/null", "-S", str(self._socket), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)
        if done.returncode:
            raise AssertionError(f"{argv}: {done.stderr}")
        return done.stdout

    def start(self, argv: Sequence[str], *, columns: int, rows: int, env: Mapping[str, str]) -> None:
        """Run a program; when it has ended, its exit code stands on the screen, below what it left there."""
        variables = [f"{name}={value}" for name, value in env.items()]
        command = shlex.join(["env", "-i", *variables, *argv])
        self._tmux(
            *("new-session", "-d", "-s", _SESSION, "-x", str(columns), "-y", str(rows)),
            f'{command}; echo "[ended $?]"; cat',
        )

    def screen(self, *, colours: bool = False, joined: bool = False) -> str:
        """Return what is on the screen, with the control sequences of colours if asked.

        `joined`: without the breaks that the terminal made in lines that were too long.
        """
        flags = [*(["-e"] if colours else []), *(["-J"] if joined else [])]
        return self._tmux("capture-pane", "-p", *flags, "-t", _SESSION).rstrip()

    def until(self, seen: Callable[[str], bool], *, seconds: float = WAIT_SECONDS) -> str:
        """Return the first screen of which `seen` is true."""
        screen = ""

        def look() -> bool:
            nonlocal screen
            screen = self.screen()
            return seen(screen)

        until(look, seconds=seconds, shown=lambda: screen)
        return screen

    def keys(self, *keys: str) -> None:
        """Press keys, by tmux's names such as `C-c`."""
        self._tmux("send-keys", "-t", _SESSION, *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        self._tmux("resize-window", "-t", _SESSION, "-x", str(columns), "-y", str(rows))

    def is_alternate(self) -> bool:
        """Return True while a program has taken the whole screen."""
        return self._value("alternate_on") == "1"

    def shows_cursor(self) -> bool:
        """Return True unless a program has hidden the cursor."""
        return self._value("cursor_flag") == "1"

    def foreground(self) -> int:
        """Return the id of the process that runs in the terminal, a child of its shell."""
        shell = int(self._value("pane_pid"))
        [child] = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(child)

    def close_window(self) -> None:
        """Take the terminal away from its programs, as closing its window does."""
        self._tmux("kill-session", "-t", _SESSION)

    def _value(self, name: str) -> str:
        return self._tmux("display-message", "-p", "-t", _SESSION, f"#{{{name}}}").strip()

    def end(self) -> None:
        """End the server, and with it what runs in its terminal."""
        with contextlib.suppress(AssertionError):
            self._tmux("kill-server")


def keep_pictures(folder: Path, name: str, screen: str, columns: int) -> None:
    """Write pictures of a screen with colours, on a dark and on a light background."""
    folder.mkdir(parents=True, exist_ok=True)
    for background, theme in (("dark", DIMMED_MONOKAI), ("light", DEFAULT_TERMINAL_THEME)):
        console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
        console.print(Text.from_ansi(screen), no_wrap=True, overflow="crop")
        svg = console.export_svg(title=f"meshd {name}", theme=theme).replace(
            "<text ", '<text xml:space="preserve" '
        )
        (folder / f"{name}-{background}.svg").write_text(svg, encoding="utf-8")


def until(
    seen: Callable[[], bool], *, seconds: float = WAIT_SECONDS, shown: Callable[[], str] = lambda: ""
) -> None:
    """Wait until `seen` is true; what is `shown` at the deadline stands in the error."""
    end = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > end:
            raise AssertionError(f"this has not come in time; what stands there:\n{shown()}")
        time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def terminal(
    folder: Path,
    argv: Sequence[str],
    *,
    columns: int = 80,
    rows: int = 24,
    env: Mapping[str, str] | None = None,
) -> Iterator[Tmux]:
    """Run a program in a terminal inside; both are gone afterwards."""
    tmux = Tmux(Path(tempfile.mkdtemp(prefix="tmux-", dir=folder)) / "s")
    variables = {"PATH": os.environ["PATH"], "TERM": "tmux-256color", "LC_ALL": "C.UTF-8", **(env or {})}
    tmux.start(argv, columns=columns, rows=rows, env=variables)
    try:
        yield tmux
    finally:
        tmux.end()
