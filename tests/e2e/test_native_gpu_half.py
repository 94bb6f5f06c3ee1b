"""Half floats where the head's own first layers lie on a GPU: what leaves it is what it computed, rounded.

The other ways, with heads and workers on processors, are in test_native_half.py.
"""

import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.rpc import protocol as rpc

from tests.e2e.gpus import BACKENDS, Gpu, gpu, model
from tests.e2e.native_rig import Head, Worker
from tests.e2e.threaded_proxy import ThreadedProxy, Way

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

WIDTH = 256  # of the model's hidden state
SHAPE, NAME = 20, slice(228, 292)  # in an rpc_tensor
PROMPT = list(range(1000, 1060))
TOKENS = 8

Floats = npt.NDArray[np.float32]


@pytest.fixture(params=BACKENDS)
def card(request: pytest.FixtureRequest) -> Gpu:
    if isinstance(found := gpu(str(request.param)), str):
        pytest.skip(found)
    return found


class Recorder(ThreadedProxy):
    """Keeps all that the head says to the worker."""

    def __init__(self, target_port: int) -> None:
        self._said: list[bytearray] = []
        super().__init__(target_port, self._listen)

    def requests(self) -> list[tuple[int, bytes]]:
        """Command and body of all that are whole, by connection."""
        found = []
        for said in map(bytes, self._said):
            at = 0
            while at + rpc.REQUEST.size <= len(said):
                command, size = rpc.REQUEST.unpack_from(said, at)
                at += rpc.REQUEST.size + size
                found.append((command, said[at - size : at]))
        return found

    def _listen(self) -> tuple[Way, Way]:
        said = bytearray()
        self._said.append(said)

        def up(near: socket.socket, far: socket.socket) -> None:
            while data := near.recv(1 << 16):
                said.extend(data)
                far.sendall(data)

        def down(far: socket.socket, near: socket.socket) -> None:
            while data := far.recv(1 << 16):
                near.sendall(data)

        return up, down


def _said(folder: Path, card: Gpu, activations: str) -> list[tuple[int, bytes]]:
    """What a head with half of the layers on the card says to a worker that has the others there."""
    binaries, device = card.native.binaries, card.device.name
    with ExitStack() as stack:
        worker = stack.enter_context(Worker(binaries[RPC_SERVER], folder, device=device))
        way = stack.enter_context(Recorder(worker.port))
        halved = ("-dev", f"{device},RPC0", "-ts", "1,1")
        head = stack.enter_context(
            Head(
                binaries[LLAMA_SERVER],
                folder,
                model(),
                [way.endpoint],
                activations=activations,
                extra=halved,
            )
        )
        before = len(way.requests())
        head.complete(PROMPT, tokens=TOKENS)
        return way.requests()[before:]


def _states(requests: Sequence[tuple[int, bytes]], command: int) -> dict[str, Floats]:
    """Hidden states of the whole prompt, by the name of their tensor."""
    found = {}
    for asked, body in requests:
        if asked == command and struct.unpack_from("<2I", body, SHAPE) == (WIDTH, len(PROMPT)):
            name = body[NAME].split(b"\0")[0].decode().split("#")[1]  # between the backend's and a number
            if not name.endswith("mask"):  # as wide, by chance: there are 256 cells
                found[name] = _values(command, body[rpc.SET_TENSOR_HEAD_BYTES :])
    return found


def _values(command: int, data: bytes) -> Floats:
    """Half rows are as docs/native.md says: of each row its exponent, and its values."""
    if command == rpc.SET_TENSOR:
        return np.frombuffer(data, dtype=np.float32).reshape(-1, WIDTH)
    rows = np.frombuffer(data, dtype=np.uint16).reshape(-1, 1 + WIDTH)
    return np.ldexp(rows[:, 1:].view(np.float16).astype(np.float32), rows[:, :1].astype(np.int32))


def test_what_leaves_a_card_is_rounded_and_nothing_else(tmp_path: Path, card: Gpu) -> None:
    as_halves = _said(tmp_path, card, "f16")
    as_floats = _said(tmp_path, card, "f32")
    assert sum(command == rpc.SET_TENSOR_F16 for command, _ in as_halves) >= TOKENS
    assert not any(command == rpc.SET_TENSOR_F16 for command, _ in as_floats)
    rounded, exact = _states(as_halves, rpc.SET_TENSOR_F16), _states(as_floats, rpc.SET_TENSOR)
    assert rounded and rounded.keys() == exact.keys()
    assert not _states(as_halves, rpc.SET_TENSOR)
    for name, values in exact.items():
        assert np.abs(values).max() > 0
        assert np.allclose(rounded[name], values, rtol=2**-11, atol=2**-24), name
