"""A terminal with a shell, as a reader of the documentation has it: types a line, reads what comes."""

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

COLUMNS, ROWS = 120, 50
END_SECONDS = 20.0
_PROMPT = re.compile(r"\[\[prompt (\d+)\]\]")
_SHELL = ("bash", "--norc", "--noprofile", "--noediting", "-i")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class Terminal:
    """Context manager: a shell behind a pseudo-terminal. Not for several threads at once."""

    def __init__(self, prefix: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        """Run the shell behind `prefix`, in `folder`."""
        self._prefix, self._folder, self._environment = prefix, folder, environment
        self._received = b""
        self._from = 0  # where the output of the last command begins

    def __enter__(self) -> Self:
        self._end, theirs = pty.openpty()
        try:
            termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
            modes = termios.tcgetattr(theirs)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(theirs, termios.TCSANOW, modes)
            plain = {key: value for key, value in os.environ.items() if not key.startswith("MESHD_")}
            self._shell = subprocess.Popen(
                ["setsid", "--ctty", *self._prefix, *_SHELL],  # Ctrl-C reaches what runs in it
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
            if self._shell.poll() is None:
                self._shell.send_signal(signal.SIGHUP)
            self._shell.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait(END_SECONDS)
        finally:
            os.close(self._end)

    @property
    def is_busy(self) -> bool:
        """True while a command runs in it."""
        self._read(0.0)
        return self.code is None

    @property
    def code(self) -> int | None:
        """The exit code of the last command; None while it runs."""
        found = _PROMPT.search(self._text())
        return None if found is None else int(found.group(1))

    @property
    def output(self) -> str:
        """What the last command has written, as it stands on the screen."""
        lines = _PROMPT.sub("", self._text()).splitlines()
        return "\n".join(line.rpartition("\r")[2] for line in lines)

    def type(self, command: str) -> None:
        """Enter a command."""
        self._from = len(self._received)
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
            self._read(min(left, 0.5))
        return code

    def read(self, seconds: float) -> None:
        """Wait for more output, at most so long."""
        self._read(seconds)

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._end, data) :]

    def _read(self, seconds: float) -> None:
        while select.select([self._end], [], [], seconds)[0]:
            try:
                data = os.read(self._end, 1 << 16)
            except OSError:  # EIO: the shell has ended
                return
            if not data:
                return
            self._received += data
            seconds = 0.0

    def _text(self) -> str:
        text = self._received[self._from :].decode(errors="replace").replace("\r\n", "\n")
        return _ESCAPES.sub("", text)
