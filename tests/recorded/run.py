"""Run one of the programs without a person, a key or any network but loopback."""

import codecs
import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from tests.recorded.programs import Program

REPOSITORY = Path(__file__).parents[2]
TIMED_OUT = 124  # as of timeout(1)
_LOOK_SECONDS = 0.2
_START_SECONDS = 400.0  # until something is asked
_INSIDE = "MESHD_TEST_NO_NETWORK"
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # netdevice(7)


def leave_network() -> None:
    """Run this process again in a network namespace with loopback alone. Returns inside it. Linux."""
    if _INSIDE not in os.environ:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        again = [sys.executable, *sys.orig_argv[1:]]
        os.environ[_INSIDE] = "1"
        os.execvp("unshare", ["unshare", *user, "--net", "--", *again])
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


@dataclass(frozen=True)
class Installed:
    """A program in `here`. `node` is the path of Node.js 22."""

    program: Program
    here: Path
    node: str

    @cached_property
    def version(self) -> str:
        """The version that is installed, asked for once. Raises FileNotFoundError."""
        if self.program.source == "npm":
            about = self.here / "node_modules" / self.program.package / "package.json"
            return str(json.loads(about.read_text())["version"])
        ask = f"import importlib.metadata as m; print(m.version({self.program.package!r}))"
        done = subprocess.run(
            [self.here / "bin/python", "-c", ask], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


@dataclass(frozen=True)
class Outcome:
    """The end of a run, and what the program printed. `status` is that of the last command.

    `began` is of the monotonic clock; `pieces`: seconds since then, and what was printed.
    """

    status: int
    began: float
    seconds: float
    pieces: tuple[tuple[float, str], ...]

    @property
    def output(self) -> str:
        """All that was printed."""
        return "".join(text for _, text in self.pieces)


@dataclass(frozen=True)
class Run:
    """One run in `folder`, which is emptied first, against the API at `url`.

    All its commands together have `seconds` from when something was first asked of the API (`asked`, of the
    monotonic clock), so that a slow start costs nothing.
    """

    installed: Installed
    folder: Path
    url: str
    seconds: float = 180.0
    asked: Callable[[], float | None] = lambda: None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def start(self, commands: Sequence[Sequence[str]] = ()) -> Outcome:
        """Run the program's commands, or these, to their end; processes that they leave behind end as well.

        The first that fails, or is out of time, is the last.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in (self.home, self.work):
            folder.mkdir(parents=True)
        (self.work / "notes.txt").write_text("one\ntwo\n")
        for path, text in self.installed.program.files.items():
            file = Path(self._filled(path))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._filled(text))
        began, status = time.monotonic(), 0
        pieces: list[tuple[float, str]] = []
        for command in commands or self.installed.program.commands:
            status = self._run([self._filled(word) for word in command], began, pieces)
            if status:
                break
        return Outcome(status, began, time.monotonic() - began, tuple(pieces))

    def _run(self, command: list[str], began: float, pieces: list[tuple[float, str]]) -> int:
        """Run one command; `pieces` gets what it prints. Returns its status."""
        given = self.installed.program.environment
        environment = {
            "HOME": str(self.home),
            "PATH": f"{self.installed.here}/bin:{Path(self.installed.node).parent}:/usr/bin:/bin",
            **{name: self._filled(value) for name, value in given.items()},
        }
        alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        child = subprocess.Popen(
            [*alone, *command],
            cwd=self.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        with child:
            reader = threading.Thread(target=_collect, args=(child.stdout, began, pieces))
            reader.start()
            while time.monotonic() < self._ends(began):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = child.wait(_LOOK_SECONDS)
                    break
            else:
                child.kill()  # and with it the whole namespace of processes
                status = TIMED_OUT
            reader.join()
            return status

    def _ends(self, began: float) -> float:
        """Return when its time is over, as far as is known by now."""
        asked = self.asked()
        return began + _START_SECONDS if asked is None else asked + self.seconds

    def _filled(self, text: str) -> str:
        names = {
            "url": self.url,
            "home": str(self.home),
            "work": str(self.work),
            "here": str(self.installed.here),
            "node": self.installed.node,
            "repository": str(REPOSITORY),
        }
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", value)
        return text


def _collect(pipe: IO[bytes], began: float, pieces: list[tuple[float, str]]) -> None:
    """Note what comes through the pipe, and when, until its other end is closed."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := os.read(pipe.fileno(), 1 << 16):
        pieces.append((time.monotonic() - began, decoder.decode(data)))
