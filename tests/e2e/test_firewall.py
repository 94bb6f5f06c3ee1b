"""The RPC firewall before real servers: text as without it, and hostile frames do not reach them."""

import contextlib
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER, NativeInfo
from meshd.model.weights_index import encode_index
from meshd.rpc import protocol as rpc

from tests.e2e.models import patched, smollm2, stock, text_alone
from tests.e2e.native_rig import Head, Worker, index_of, wait_until
from tests.e2e.rpc_client import RpcClient
from tests.e2e.walled import Walled
from tests.unit.rpc import talk
from tests.unit.rpc.talk import Tensor

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

ROOM = 4096
MAP_CUSTOM1, COUNT = 92, 101
Make = Callable[[int, int], bytes]


@pytest.mark.parametrize(
    ("head", "worker", "workers"),
    [
        (patched, patched, 1),
        (patched, patched, 3),
        (stock, patched, 2),
        (patched, stock, 2),
        (stock, stock, 2),
    ],
    ids=["patched", "three", "stock head", "stock workers", "stock"],
)
def test_text_is_that_without_the_firewall(
    tmp_path: Path, head: Callable[[], NativeInfo], worker: Callable[[], NativeInfo], workers: int
) -> None:
    model, is_stock = smollm2(), worker is stock
    weights = [] if is_stock else [model]
    with ExitStack() as stack:
        walls = []
        for _ in range(workers):
            server = Worker(worker().binaries[RPC_SERVER], tmp_path, weights=weights, stock=is_stock)
            walls.append(stack.enter_context(Walled(stack.enter_context(server).port)))
        serving = stack.enter_context(
            Head(
                head().binaries[LLAMA_SERVER],
                tmp_path,
                model,
                [wall.endpoint for wall in walls],
                index=encode_index(index_of([model])) if head is patched else None,
            )
        )
        assert serving.complete() == text_alone(model)
        assert [wall.refused for wall in walls] == [[]] * workers
        assert all(wall.counter.received > 10_000 for wall in walls)


def chain(handle: int, base: int) -> list[Tensor]:
    """Each the source of the one before: a server that follows sources by recursion overflows its stack."""
    length = rpc.MAX_GRAPH_TENSORS
    return [
        Tensor(
            id=number,
            buffer=handle,
            data=base,
            op=rpc.UNARY,
            sources=(number + 1,) if number < length else (),
        )
        for number in range(1, length + 1)
    ]


def graph(handle: int, base: int, *, op: int = talk.ADD, **other: object) -> bytes:
    """A sum of two tensors in the buffer, but for what `other` says of the result."""
    leaves = [Tensor(id=1, buffer=handle, data=base), Tensor(id=2, buffer=handle, data=base + 16)]
    fields: dict[str, object] = {"id": 3, "buffer": handle, "data": base + 32, "op": op, "sources": (1, 2)}
    return talk.graph([*leaves, Tensor(**{**fields, **other})], (3,))  # type: ignore[arg-type]


HOSTILE: dict[str, tuple[str, Make]] = {
    "a function by its address": ("operation 92", lambda h, b: graph(h, b, op=MAP_CUSTOM1)),
    "an operation beyond the last": ("operation 101", lambda h, b: graph(h, b, op=COUNT)),
    "a tensor outside its buffer": ("outside its buffer", lambda h, b: graph(h, b, data=b + ROOM)),
    "a read outside its buffer": (
        "outside its buffer",
        lambda h, b: talk.get_tensor(Tensor(buffer=h, data=b + ROOM - 8)),
    ),
    "a write beyond its tensor": (
        "beyond the end",
        lambda h, b: talk.set_tensor(Tensor(buffer=h, data=b), bytes(17)),
    ),
    "node 0": ("not there", lambda h, b: talk.graph([Tensor(buffer=h, data=b)], (0,))),
    "missing sources": ("without its sources", lambda h, b: graph(h, b, sources=(1,))),
    "a source that is not there": ("not before it", lambda h, b: graph(h, b, sources=(1, 9))),
    "a long chain of sources": ("not before it", lambda h, b: talk.graph(chain(h, b), (1,))),
    "a longer chain": (
        "GRAPH_COMPUTE of 118400020 bytes",
        lambda _h, _b: rpc.REQUEST.pack(rpc.GRAPH_COMPUTE, 20 + 400_000 * rpc.TENSOR_BYTES),
    ),
    "an address that was not handed out": ("does not have", lambda h, b: graph(h + 8, b)),
    "1 TiB of a graph": ("bytes", lambda _h, _b: rpc.REQUEST.pack(rpc.GRAPH_COMPUTE, 1 << 40)),
    "1 TiB of data": (
        "beyond the end",
        lambda h, b: (
            rpc.REQUEST.pack(rpc.SET_TENSOR, 1 << 40)
            + Tensor(buffer=h, data=b).encode()
            + struct.pack("<BQ", 0, 0)
        ),
    ),
    "all memory at once": ("ALLOC_BUFFER", lambda _h, _b: talk.alloc((1 << 64) - 64)),
    "allocations without end": ("more than 1024 buffers", lambda _h, _b: talk.alloc(64) * 1100),
    "an unknown command": ("command 99", lambda _h, _b: talk.request(99)),
}


@pytest.fixture(scope="module", params=[stock, patched], ids=["stock", "patched"])
def wall(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Worker, Walled]]:
    """One server for all frames: it has to live on."""
    build: Callable[[], NativeInfo] = request.param
    folder = tmp_path_factory.mktemp("wall")
    with (
        Worker(build().binaries[RPC_SERVER], folder, stock=build is stock) as worker,
        Walled(worker.port) as walled,
    ):
        yield worker, walled


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_ends_its_own_connection_only(wall: tuple[Worker, Walled], name: str) -> None:
    worker, walled = wall
    why, make = HOSTILE[name]
    before = len(walled.refused)
    with RpcClient(walled.port) as client:
        client.hello()
        handle = client.alloc(ROOM)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            client.socket.sendall(make(handle, client.base(handle)))
        with pytest.raises(EOFError):
            while True:  # answers to what was allowed before come first
                client.receive(1)
        wait_until(lambda: len(walled.refused) > before, "it is refused")
    assert why in walled.refused[-1]
    with RpcClient(walled.port) as client:
        client.hello()
        handle = client.alloc(ROOM)
        tensor = Tensor(buffer=handle, data=client.base(handle))
        client.socket.sendall(talk.set_tensor(tensor, b"0123456789abcdef") + talk.get_tensor(tensor))
        assert client.receive(24)[8:] == b"0123456789abcdef"
    assert worker.process.poll() is None
