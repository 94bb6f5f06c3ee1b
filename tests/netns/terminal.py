"""A terminal with a shell, as a reader of the documentation has it: types a line, sees what comes."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

COLUMNS, ROWS = 120, 50
KEPT_COLUMNS = 1000  # more than programs are told of: a long line can be copied in one piece
KEPT_ROWS = 2000  # of one command; a longer output has lost its beginning
END_SECONDS = 20.0
_PROMPT = re.compile(r"\[\[prompt (\d+)\]\]")
_SHELL = ("bash", "--norc", "--noprofile", "--noediting", "-i")


class Terminal:
    """Context manager: a shell behind a pseudo-terminal. Not for several threads at once."""

    def __init__(self, prefix: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        """Run the shell behind `prefix`, in `folder`."""
        self._prefix, self._folder, self._environment = prefix, folder, environment
        self._screen = pyte.Screen(KEPT_COLUMNS, KEPT_ROWS)
        self._stream = pyte.ByteStream(self._screen)

    def __enter__(self) -> Self:
        self._end, theirs = pty.openpty()
        try:
            termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
            modes = termios.tcgetattr(theirs)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(theirs, termios.TCSANOW, modes)
            plain = {key: value for key, value in os.environ.items() if not key.startswith("MESHD_")}
            self._shell = subprocess.Popen(
                ["setsid", "--ctty", *self._prefix, *_SHELL],  # so that Ctrl-C reaches what runs in it
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                cwd=self._folder,
                env={**plain, **self._environment, "TERM": "xterm", "PS1": r"[[prompt $?]]\n", "PS2": ""},
            )
        finally:
            os.close(theirs)
        self.wait(END_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.hang_up()
        finally:
            os.close(self._end)

    def hang_up(self) -> None:
        """End the shell, as if the connection to its machine were gone."""
        try:
            if self._shell.poll() is None:
                self._shell.send_signal(signal.SIGHUP)
            self._shell.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait(END_SECONDS)

    @property
    def is_busy(self) -> bool:
        """True while a command runs in it."""
        self.read(0.0)
        return self.code is None

    @property
    def has_ended(self) -> bool:
        """True once its shell is gone, as after a reboot of its machine."""
        return self._shell.poll() is not None

    @property
    def code(self) -> int | None:
        """The exit code of the last command; None while it runs."""
        found = _PROMPT.search("\n".join(self._lines()))
        return None if found is None else int(found.group(1))

    @property
    def output(self) -> str:
        """Return what the last command has written, as it stands on the screen."""
        return _PROMPT.sub("", "\n".join(self._lines())).rstrip()

    def type(self, command: str) -> None:
        """Enter a command; what is on the screen is gone."""
        self._screen.reset()
        self._write(command + "\n")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._write("\x03")

    def wait(self, seconds: float) -> int:
        """Wait until the command has ended, and return its exit code. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while (code := self.code) is None:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"not done after {seconds:.0f} s:\n{self.output}")
            self.read(min(left, 0.5))
        return code

    def read(self, seconds: float) -> None:
        """Read more output, for which to wait so long at most."""
        while select.select([self._end], [], [], seconds)[0]:
            try:
                data = os.read(self._end, 1 << 16)
            except OSError:  # EIO: the shell has ended
                return
            if not data:
                return
            self._stream.feed(data)
            seconds = 0.0

    def _lines(self) -> list[str]:
        rows = (self._screen.buffer[y] for y in range(self._screen.cursor.y + 1))
        return ["".join(row[x].data for x in range(max(row, default=-1) + 1)).rstrip() for row in rows]

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._end, data) :]
