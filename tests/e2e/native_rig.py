"""Real llama.cpp processes for tests: an rpc-server of upstream's, and a head.

Nothing of meshd runs between them. Those of native/mesh are in mesh_rig.py. Linux and macOS.
"""

import contextlib
import functools
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from blake3 import blake3
from meshd.model.gguf import read_header
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.process.run import environment

DEADLINE = 60.0  # seconds; nothing here takes a tenth of it on an idle machine
PROMPT = "The capital of France is"


def wait_until(check: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    """Poll `check`; TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        pause.wait(0.01)


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    return os.pread(descriptor, size, offset)


def index_of(paths: Sequence[Path]) -> WeightsIndex:
    """The true index of these files."""
    files: list[FileEntry] = []
    tensors: list[TensorEntry] = []
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            files.append(FileEntry(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
            descriptor = file.fileno()
            header = read_header(
                partial(_pread, descriptor),
                size=stat.st_size,
                label=path.name,
            )
            for tensor in header.tensors:
                digest = blake3(os.pread(file.fileno(), tensor.size, tensor.offset)).digest()
                tensors.append(
                    TensorEntry(number, tensor.kind.number, tensor.offset, tensor.size, digest, tensor.name)
                )
    return WeightsIndex(tuple(files), tuple(tensors), "")


class Handed:
    """Descriptors to be inherited by one child: made here, closed here after the start."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def text(self, data: bytes) -> int:
        """A descriptor to read `data` from; a file without a name, for an index is larger than a pipe."""
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            file.seek(0)
            return self.keep(os.dup(file.fileno()))

    def keep(self, number: int) -> int:
        self.numbers.append(number)
        return number

    def close(self) -> None:
        for number in self.numbers:
            os.close(number)
        self.numbers.clear()


class Report:
    """The lines that a child writes to its report descriptor."""

    def __init__(self, handed: Handed) -> None:
        self._read, write = os.pipe()
        self.number = handed.keep(write)
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._collect)

    def start(self) -> None:
        """After the child is started and this process's own copy of the pipe's end is closed."""
        self._thread.start()

    def _collect(self) -> None:
        with os.fdopen(self._read, "r", encoding="utf-8") as pipe:
            for line in pipe:
                self.lines.append(line.rstrip("\n"))

    def join(self) -> None:
        self._thread.join(DEADLINE)

    def wait(self, prefix: str) -> str:
        """The first line that begins with `prefix`, once it is there."""
        wait_until(lambda: any(line.startswith(prefix) for line in self.lines), f"report line `{prefix}`")
        return next(line for line in self.lines if line.startswith(prefix))


class Program:
    """One child process with its output in a file; a context manager that leaves nothing behind."""

    def __init__(self, argv: Sequence[str], *, log: Path, handed: Handed, env: Mapping[str, str]) -> None:
        self.log = log
        self.report: Report | None = None
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=handed.numbers,
                env=environment(env),  # what meshd's own children get
            )
        handed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE)
        if self.report is not None:
            self.report.join()


class Worker(Program):
    """An unmodified ggml-rpc-server, of the CPU with one thread."""

    def __init__(self, binary: Path, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = int(listener.getsockname()[1])
        self.endpoint = f"127.0.0.1:{self.port}"
        argv = [str(binary), "-t", "1", "-p", str(self.port)]
        super().__init__(argv, log=folder / f"worker-{self.port}.log", handed=Handed(), env={})
        wait_until(self._answers, "rpc-server listens")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


# how releases without `--load-mode` say the same
_EARLIER_LOAD_OPTIONS = {
    "mmap": ["--mmap"],
    "none": ["--no-mmap"],
    "mmap+mlock": ["--mmap", "--mlock"],
    "mlock": ["--no-mmap", "--mlock"],
}


@functools.cache
def _knows_load_modes(binary: Path) -> bool:
    told = subprocess.run([binary, "--help"], check=True, capture_output=True, text=True).stdout
    return "--load-mode" in told


def load_options(binary: Path, mode: str) -> list[str]:
    """For how the model's file is read; none for no mode: upstream's own choice is to map it."""
    if not mode:
        return []
    if _knows_load_modes(binary):
        return ["-lm", mode]
    if mode not in _EARLIER_LOAD_OPTIONS:
        pytest.skip(f"this release has no load mode `{mode}`")
    return _EARLIER_LOAD_OPTIONS[mode]


class Head(Program):
    """A llama-server that answers on a unix socket, with its layers on rpc-servers if `endpoints` has any."""

    def __init__(
        self,
        binary: Path,
        folder: Path,
        model: Path,
        endpoints: Sequence[str],
        *,
        load_mode: str = "none",
        extra: Sequence[str] = (),
        ready: bool = True,
    ) -> None:
        reading = load_options(binary, load_mode)  # may skip the test, so nothing is there before
        handed = Handed()
        self.report = None
        self._folder = tempfile.TemporaryDirectory(prefix="head-")  # short: a socket's path has 108 bytes
        self.socket_path = Path(self._folder.name) / "api.sock"
        argv = [str(binary), "-m", str(model), "--host", str(self.socket_path)]
        argv += ["-t", "1", "-c", "512", "-np", "1"]
        argv += ["--cache-ram", "0", "--no-webui", "-nr", "-fit", "off"]
        argv += reading
        if endpoints:
            devices = ",".join(f"RPC{number}" for number in range(len(endpoints)))
            argv += ["--rpc", ",".join(endpoints), "-dev", devices, "-ngl", "999"]
        env: dict[str, str] = {}
        report = self.hand_over(handed, env)
        super().__init__([*argv, *extra], log=folder / f"head-{id(self):x}.log", handed=handed, env=env)
        self.report = report
        if report is not None:
            report.start()
        if ready:
            wait_until(self._healthy, "llama-server is ready")

    def hand_over(self, _handed: Handed, _env: dict[str, str]) -> Report | None:
        """Give the program what other kinds of heads get besides; return a report of theirs."""
        return None

    def _healthy(self) -> bool:
        if self.process.poll() is not None:
            raise ChildProcessError(
                f"llama-server ended with {self.process.returncode}:\n{self.output[-3000:]}"
            )
        return self._answers()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.request("GET", "/health", None)[0] == 200
        return False

    def request(
        self, method: str, path: str, body: bytes | None, deadline: float = DEADLINE
    ) -> tuple[int, bytes]:
        """Status and body of the answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.settimeout(deadline)
            raw.connect(str(self.socket_path))
            connection = http.client.HTTPConnection("localhost")
            connection.sock = raw
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def complete(
        self, prompt: str | Sequence[int] = PROMPT, tokens: int = 24, deadline: float = DEADLINE
    ) -> str:
        """Greedy text of exactly `tokens` tokens; a prompt may be given by its own."""
        body = {
            "prompt": prompt,
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        status, answer = self.request("POST", "/completion", json.dumps(body).encode(), deadline)
        assert status == 200, answer
        text = json.loads(answer)["content"]
        assert isinstance(text, str)
        return text

    def stream(
        self, prompt: str = PROMPT, *, tokens: int, on_piece: Callable[[str], None] = lambda _text: None
    ) -> tuple[str, str]:
        """Greedy text as far as it came, and the error that ended it, or none; `on_piece` gets each piece."""
        body = {
            "prompt": prompt,
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
        }
        text = ""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.settimeout(DEADLINE)
            raw.connect(str(self.socket_path))
            connection = http.client.HTTPConnection("localhost")
            connection.sock = raw
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/completion", json.dumps(body).encode(), headers)
            with connection.getresponse() as response:
                for line in response:
                    kind, _, data = line.decode().strip().partition(": ")
                    if kind not in ("data", "error") or data == "[DONE]":
                        continue
                    event = json.loads(data)
                    if "error" in event or kind == "error":
                        return text, str(event.get("error", event)["message"])
                    text += event["content"]
                    on_piece(event["content"])
        return text, ""

    def wait_ready_or_end(self) -> int | None:
        """The exit code, or None once it is ready."""

        wait_until(
            lambda: self.process.poll() is not None or self._answers(), "llama-server is ready, or has ended"
        )
        return self.process.poll()

    def wait_end(self) -> int:
        """The exit code."""
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()
