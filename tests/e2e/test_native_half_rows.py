"""Half rows on the wire: what a server makes of them, what becomes of large values, and what it refuses.

Real processes without meshd between them.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from meshd.build.interface import RPC_SERVER
from meshd.rpc import protocol as rpc

from tests.e2e.models import patched
from tests.e2e.native_rig import Worker
from tests.e2e.push_rig import TENSOR_BYTES, PushWorker, SessionClient, data, is_closed, served_peer
from tests.e2e.rpc_client import ALWAYS, RpcClient
from tests.unit.rpc.talk import Tensor

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

Floats = npt.NDArray[np.float32]
HUGE = np.float32(3.4e38)
ROWS = np.array(
    [
        [0.0, -0.0, 1.0, -2.5, 65504.0, 1e-8, 6e-8, 0.1],
        [65505.0, -65504.0, 1.0, 1e-3, 0.0, 3e-7, 2.0, 4.0],
        [1e6, -1e6, 12345.678, 1.0, 0.0, 0.0, 0.0, 0.1],
        [HUGE, -HUGE, 1e30, 1.0, 0.0, 0.0, 0.0, 0.0],
        [np.finfo(np.float32).max, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [np.inf, -np.inf, 1.0, 70000.0, 0.0, 0.0, 0.0, 0.0],
        [np.nan, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    ],
    dtype=np.float32,
)
EXPONENTS = [0, 1, 4, 112, 112, 1, 0]


def _halves(rows: Floats) -> bytes:
    """As docs/native.md says it, by other means than the patch."""
    words = []
    for row in rows:
        finite = np.abs(row[np.isfinite(row)]).astype(np.float64)
        exponent = 0
        while exponent < 112 and finite.max() / 2.0**exponent > 65504:
            exponent += 1
        scaled = row.astype(np.float64) / 2.0**exponent
        scaled[np.isfinite(row)] = np.clip(scaled[np.isfinite(row)], -65504, 65504)
        words.append(struct.pack("<H", exponent) + scaled.astype(np.float16).tobytes())
    return b"".join(words)


def _values(halves: bytes) -> Floats:
    words = np.frombuffer(halves, dtype=np.uint16).reshape(len(ROWS), -1)
    scaled = words[:, 1:].view(np.float16).astype(np.float64) * 2.0 ** words[:, :1].astype(np.float64)
    return scaled.astype(np.float32)


@contextmanager
def _client(folder: Path) -> Iterator[tuple[RpcClient, Tensor]]:
    """A connection, and a tensor of ROWS' shape there."""
    with Worker(patched().binaries[RPC_SERVER], folder) as worker, RpcClient(worker.port) as client:
        client.hello(features=rpc.FEATURE_F16 | rpc.FEATURE_ALLOC)
        handle, _ = client.alloc_as(1, 1 << 20)
        yield client, _tensor(handle)


def _tensor(handle: int) -> Tensor:
    count, row = ROWS.shape
    strides = (4, 4 * row, 4 * row * count, 4 * row * count)
    return Tensor(buffer=handle, data=handle, ne=(row, count, 1, 1), nb=strides)


def _region(tensor: Tensor, size: int) -> bytes:
    return tensor.encode() + struct.pack("<QQ", 0, size)


def test_large_values_keep_their_size_and_nothing_finite_becomes_infinite(tmp_path: Path) -> None:
    expected = _halves(ROWS)
    with _client(tmp_path) as (client, tensor):
        client.send(rpc.SET_TENSOR, tensor.encode() + bytes(9) + ROWS.tobytes())
        halves = client.ask(rpc.GET_TENSOR_F16, _region(tensor, len(expected)))
        words = np.frombuffer(halves, dtype=np.uint16).reshape(len(ROWS), -1)
        assert words[:, 0].tolist() == EXPONENTS
        nan = np.isnan(ROWS)
        same = words[:, 1:] == np.frombuffer(expected, dtype=np.uint16).reshape(words.shape)[:, 1:]
        assert same[~nan].all() and np.isnan(words[:, 1:].view(np.float16)[nan]).all()

        client.send(rpc.SET_TENSOR_F16, tensor.encode() + bytes(9) + halves)
        back = np.frombuffer(client.ask(rpc.GET_TENSOR, _region(tensor, ROWS.nbytes)), dtype=np.float32)
        back = back.reshape(ROWS.shape)
        assert (np.isfinite(back) == np.isfinite(ROWS)).all()
        assert np.array_equal(_values(halves), back, equal_nan=True)
        largest = np.where(np.isfinite(ROWS), np.abs(ROWS), 0).max(axis=1, keepdims=True)
        large = np.isfinite(ROWS) & (np.abs(ROWS) > 1e-3 * largest)
        assert np.allclose(back[large], ROWS[large], rtol=2**-11, atol=0)
        again = client.ask(rpc.GET_TENSOR_F16, _region(tensor, len(halves)))
        assert np.array_equal(_values(again), back, equal_nan=True)  # rounded once is rounded for good


BAD_EXPONENT = struct.pack("<H", 113) + bytes(16)
WIDE = 1 << 20
HOSTILE: Mapping[str, Callable[[Tensor], tuple[int, bytes]]] = {
    "one byte less": lambda t: (rpc.SET_TENSOR_F16, t.encode() + bytes(9 + 125)),
    "one row more": lambda t: (rpc.SET_TENSOR_F16, t.encode() + bytes(9 + 126 + 18)),
    "no tensor": lambda t: (rpc.SET_TENSOR_F16, bytes(100)),
    "an offset": lambda t: (rpc.SET_TENSOR_F16, t.encode() + struct.pack("<BQ", 0, 2) + bytes(126)),
    "an exponent": lambda t: (rpc.SET_TENSOR_F16, t.encode() + bytes(9) + 7 * BAD_EXPONENT),
    "half of it": lambda t: (rpc.GET_TENSOR_F16, _region(t, 54)),
    "as floats": lambda t: (rpc.GET_TENSOR_F16, _region(t, ROWS.nbytes)),
    "of nothing": lambda t: (rpc.GET_TENSOR_F16, _region(replace(t, ne=(8, 0, 1, 1)), 0)),
    "of half floats": lambda t: (rpc.GET_TENSOR_F16, _region(replace(t, kind=1), 126)),
    "with gaps": lambda t: (rpc.GET_TENSOR_F16, _region(replace(t, nb=(8, 64, 512, 512)), 126)),
    "turned": lambda t: (rpc.GET_TENSOR_F16, _region(replace(t, nb=(28, 4, 224, 224)), 126)),
    "outside": lambda t: (rpc.GET_TENSOR_F16, _region(replace(t, data=t.data + (1 << 20) - 4), 126)),
    "without a buffer": lambda t: (rpc.GET_TENSOR_F16, _region(replace(t, buffer=0, data=0), 126)),
    "not agreed on": lambda t: (rpc.PUSH_TENSOR_F16, _region(t, 126) + bytes(16)),
    "unnamed": lambda t: (rpc.TAKE_TENSOR_F16, _region(t, 126) + bytes(8)),
    "a word that is none": lambda t: (77, b""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_tensor_of_half_rows_ends_the_connection_alone(tmp_path: Path, name: str) -> None:
    with _client(tmp_path) as (client, tensor):
        port = int(client.socket.getpeername()[1])
        command, body = HOSTILE[name](tensor)
        client.send(command, body)
        with pytest.raises(EOFError):
            client.memory()
        with RpcClient(port) as other:
            other.hello()
            assert other.memory()


def _rows_of(client: SessionClient) -> tuple[bytes, int]:
    """The client's tensor, one row, and its bytes as that."""
    return client.tensor.tensor(), 2 * (TENSOR_BYTES // 4 + 1)


@pytest.mark.parametrize("exponent", [0, 113])
def test_what_a_peer_pushes_is_rows_or_ends_the_session(tmp_path: Path, exponent: int) -> None:
    with PushWorker(tmp_path) as worker, SessionClient(worker) as client, served_peer(worker) as peer:
        tensor, size = _rows_of(client)
        pushed = struct.pack("<H", exponent) + np.ones(TENSOR_BYTES // 4, dtype=np.float16).tobytes()
        peer.sendall(data(1, pushed))
        client.send(rpc.TAKE_TENSOR_F16, tensor + struct.pack("<QQQ", 0, size, 1))
        if exponent:
            with pytest.raises(EOFError):
                client.read(client.tensor)
            assert is_closed(peer)
        else:
            assert client.read(client.tensor) == np.ones(TENSOR_BYTES // 4, dtype=np.float32).tobytes()
    with PushWorker(tmp_path) as worker, SessionClient(worker) as client, served_peer(worker) as peer:
        tensor, size = _rows_of(client)
        peer.sendall(data(1, bytes(size - 2)))  # another number of bytes than is taken
        client.send(rpc.TAKE_TENSOR_F16, tensor + struct.pack("<QQQ", 0, size, 1))
        with pytest.raises(EOFError):
            client.read(client.tensor)


def test_nobody_who_did_not_say_so_may_send_them(tmp_path: Path) -> None:
    with Worker(patched().binaries[RPC_SERVER], tmp_path) as worker, RpcClient(worker.port) as client:
        assert client.hello(features=rpc.FEATURE_ALLOC) == ALWAYS
        handle, _ = client.alloc_as(1, 1 << 20)
        client.send(rpc.GET_TENSOR_F16, _region(_tensor(handle), 126))
        with pytest.raises(EOFError):
            client.memory()


def test_rows_longer_than_a_piece(tmp_path: Path) -> None:
    """Two rows of a million values each: converted one after the other. One value more is refused."""
    rows = np.arange(2 * WIDE, dtype=np.float32).reshape(2, WIDE)
    with Worker(patched().binaries[RPC_SERVER], tmp_path) as worker, RpcClient(worker.port) as client:
        client.hello(features=rpc.FEATURE_F16 | rpc.FEATURE_ALLOC)
        handle, _ = client.alloc_as(1, 16 << 20)
        for width in (WIDE, WIDE + 1):
            strides = (4, 4 * width, 8 * width, 8 * width)
            tensor = Tensor(buffer=handle, data=handle, ne=(width, 2, 1, 1), nb=strides)
            if width > WIDE:
                client.send(rpc.GET_TENSOR_F16, _region(tensor, 4 * (width + 1)))
                with pytest.raises(EOFError):
                    client.memory()
                return
            client.send(rpc.SET_TENSOR_F16, tensor.encode() + bytes(9) + _halves(rows))
            assert client.ask(rpc.GET_TENSOR_F16, _region(tensor, 4 * (width + 1))) == _halves(rows)
