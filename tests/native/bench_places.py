"""Where a model can compute for `python -m tests.native.bench`. Linux.

Devices of this process, stock's rpc-servers, or mesh-servers, one for each device.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import IO

from meshd.model.weights_index import WeightsIndex, encode_index

from tests.e2e.native_rig import Handed

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Programs:
    """Folders: `mesh` has mesh-server and libggml-mesh.so, `stock` what upstream builds."""

    mesh: Path
    stock: Path


@dataclass(slots=True)
class Place:
    """The options by which a program of llama.cpp computes there. Its descriptors serve one program."""

    devices: Sequence[str]  # by the names that it knows
    options: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    descriptors: Sequence[int] = ()

    def device_option(self, separator: str) -> list[str]:
        return ["-dev", separator.join(self.devices)] if self.devices else []


def seen(device: str) -> tuple[str, dict[str, str]]:
    """A device by its name in a process that sees no other one: drivers take memory on all they see."""
    if device.startswith("CUDA"):
        return "CUDA0", {"CUDA_VISIBLE_DEVICES": device.removeprefix("CUDA")}
    return device, {}


@contextmanager
def here(devices: Sequence[str]) -> Iterator[Place]:
    """In the process itself. CPUs are no devices to llama.cpp: they compute what no device does."""
    yield Place([device for device in devices if not device.startswith("CPU")])


@contextmanager
def stock_workers(
    programs: Programs, devices: Sequence[str], log: IO[bytes] | int, rtt_ms: float = 0.0
) -> Iterator[Place]:
    """An unmodified ggml-rpc-server for each device, reached through loopback, so many milliseconds away."""
    with ExitStack() as stack:
        endpoints = []
        for device in devices:
            name, env = seen(device)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                port = int(listener.getsockname()[1])
            argv = [str(programs.stock / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port), "-d", name]
            stack.enter_context(_running(argv, env, (), log))
            _wait_for_port(port)
            if rtt_ms:
                port = stack.enter_context(_further(port, rtt_ms, log))
            endpoints.append(f"127.0.0.1:{port}")
        names = [f"RPC{number}" for number in range(len(devices))]
        yield Place(names, ("--rpc", ",".join(endpoints)))


@contextmanager
def mesh_workers(
    programs: Programs, devices: Sequence[str], model: Path, index: WeightsIndex, log: IO[bytes]
) -> Iterator[Place]:
    """A mesh-server for each device, with the model's file, and connections between all of them."""
    numbers = range(len(devices))
    to_head = [socket.socketpair() for _ in numbers]
    between = {two: socket.socketpair() for two in combinations(numbers, 2)}
    handed = Handed()
    try:
        with ExitStack() as stack:
            for number in numbers:
                neighbours = {
                    pair[1 - pair.index(number)]: ends[pair.index(number)]
                    for pair, ends in between.items()
                    if number in pair
                }
                stack.enter_context(
                    _mesh_server(programs, devices[number], to_head[number][1], neighbours, model, index, log)
                )
            heads = [end for end, _ in to_head]
            env = {
                "GGML_BACKEND_PATH": str(programs.mesh / "libggml-mesh.so"),
                "GGML_MESH_FDS": ",".join(str(end.fileno()) for end in heads),
                "GGML_MESH_WEIGHTS_FD": str(handed.text(encode_index(index, [-1]))),
            }
            for _, end in to_head:
                end.close()
            yield Place([f"MESH{number}" for number in numbers], (), env, [int(n) for n in _numbers(env)])
            for end in heads:
                end.close()  # the mesh-servers end with their head
    finally:
        handed.close()
        for pair in (*to_head, *between.values()):
            for end in pair:
                end.close()


def _numbers(env: Mapping[str, str]) -> list[str]:
    return [*env["GGML_MESH_FDS"].split(","), env["GGML_MESH_WEIGHTS_FD"]]


@contextmanager
def _mesh_server(
    programs: Programs,
    device: str,
    head: socket.socket,
    neighbours: Mapping[int, socket.socket],
    model: Path,
    index: WeightsIndex,
    log: IO[bytes],
) -> Iterator[None]:
    name, env = seen(device)
    handed = Handed()
    file = handed.keep(os.open(model, os.O_RDONLY))
    weights = handed.text(encode_index(index, [file]))
    argv = [str(programs.mesh / "mesh-server"), "--fd", str(head.fileno()), "--device", name]
    argv += ["--weights-fd", str(weights)]
    for number, end in neighbours.items():
        argv += ["--neighbour", f"{number}:{end.fileno()}"]
    ends = [end.fileno() for end in (head, *neighbours.values())]
    with _running(argv, env, [*handed.numbers, *ends], log):
        handed.close()
        yield


@contextmanager
def _running(
    argv: Sequence[str], env: Mapping[str, str], descriptors: Sequence[int], log: IO[bytes] | int
) -> Iterator[None]:
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        env={**os.environ, **env},
    )
    try:
        yield
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)  # it may be about to end with its head
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(START_SECONDS)


@contextmanager
def _further(port: int, rtt_ms: float, log: IO[bytes] | int) -> Iterator[int]:
    """Put a distance before a port; another one to reach it by."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = int(listener.getsockname()[1])
    argv = [sys.executable, "-m", "meshd.bench.latency_proxy", str(near), str(port), f"{rtt_ms:g}"]
    with _running(argv, {}, (), log):
        _wait_for_port(near)
        yield near


def _wait_for_port(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")
