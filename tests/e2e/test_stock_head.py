"""A stock llama-server through its tunnel to one worker: what crosses, and how often it waits."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from meshd.base.tasks import Owner
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.fleet.rpc_count import RpcListener
from meshd.peer.interface import Stream
from meshd.role.head.stock_weights import OpenNamedWeights
from meshd.rpc import protocol as rpc
from meshd.rpc.firewall import Firewall
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile
from meshd.tunnel.expose import connect_through
from meshd.tunnel.forward import Forward
from meshd.tunnel.interface import SavedWeights

from tests.conformance.run import run
from tests.e2e.counting_proxy import Counts
from tests.e2e.models import patched, smollm2, stock, text_alone
from tests.e2e.native_rig import Head, Worker
from tests.unit.tunnel.far import PEER, FarMesh

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

WAITED = frozenset(number for number, command in rpc.COMMANDS.items() if command.answer != rpc.NO_ANSWER)
BARE = 45  # answers that a stock llama-server waits for with one CPU worker, by itself


class Counted(Firewall):
    """Sees what crosses the mesh, as the worker's side of a tunnel does."""

    def __init__(self, counts: Counts) -> None:
        super().__init__(memory=1 << 34)
        self._counts = counts
        self._listener = RpcListener(counts.rpc, on_request=self._count)

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        self._listener.sent(bytes(data))
        return super().from_peer(data)

    def _count(self, command: int, size: int) -> None:
        self._counts.calls[command] += 1
        self._counts.sent[command] += size

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        self._counts.received += len(data)
        return super().to_peer(data)


@dataclass(frozen=True, slots=True)
class Way:
    """How the tunnel of a load is made: `plain` as for a worker with CPUs, `filled` as before a stock one."""

    saves: bool = True
    filled: bool = False
    plain: bool = False


async def _load(
    folder: Path, worker: Worker, way: Way, ask: Callable[[Head], None] = lambda _head: None
) -> tuple[Counts, list[tuple[str, str]]]:
    """One life of a stock llama-server with SmolLM2; what crossed, and each weight with why it did."""
    file = await ModelFile.open(smollm2(), cache=HashCache(folder / "hashes"))
    index, counts, placed = await file.index(), Counts(), list[tuple[str, str]]()
    own = OpenNamedWeights(index, file)
    saved = SavedWeights(
        own, lambda _endpoint, name, _size, why: placed.append((name, why)), plain_sizes=way.plain
    )
    theirs = OpenNamedWeights(index, file) if way.filled else None

    async with Owner() as owner:

        def handle(stream: Stream) -> None:
            owner.start(
                connect_through(
                    stream, ("127.0.0.1", worker.port), inspector=Counted(counts), weights=theirs
                ),
                name="worker's side",
            )

        forward = Forward(
            mesh=FarMesh(handle),
            peer=PEER,
            service="rpc",
            metadata={},
            saved=saved if way.saves else None,
        )
        owner.start(forward.serve(), name="head's side")

        def live() -> None:
            with Head(stock().binaries[LLAMA_SERVER], folder, smollm2(), [forward.endpoint]) as head:
                ask(head)

        await asyncio.to_thread(live)
        owner.cancel()
    for opened in (own, theirs, file):
        if opened is not None:
            opened.close()
    return counts, placed


def _waits(counts: Counts) -> int:
    return sum(count for command, count in counts.calls.items() if command in WAITED)


@pytest.mark.parametrize(
    ("is_stock", "plain", "expected"),
    [(False, True, 12), (True, True, 16), (True, False, 33)],
    ids=["patched", "stock", "stock-of-unknown-devices"],
)
def test_a_stock_head_waits_for_few_answers(
    tmp_path: Path, is_stock: bool, plain: bool, expected: int
) -> None:
    """It asks nothing twice, and no hash; a patched worker tells most of it with HELLO."""
    binary, text = (stock() if is_stock else patched()).binaries[RPC_SERVER], text_alone(smollm2())

    def answers(head: Head) -> None:
        assert head.complete() == text

    weights = [] if is_stock else [smollm2()]
    way = Way(filled=is_stock, plain=plain)
    with Worker(binary, tmp_path, weights=weights, stock=is_stock) as worker:
        before, _ = run(_load(tmp_path, worker, Way(saves=False)), seconds=200)
        assert _waits(before) == BARE
        assert before.weights > 90_000_000
        after, placed = run(_load(tmp_path, worker, way), seconds=200)
        assert after.connections == before.connections
        waited = _waits(after) - (after.calls[rpc.HELLO] - 1)  # it gets the answer of before at once
        assert waited == expected
        assert after.calls[rpc.SET_TENSOR_HASH] == 0
        assert after.weights == 0
        assert sum(after.sent.values()) + after.received < 1_000_000  # most of it the graph of the warm-up
        assert len(placed) == 272
        assert {why for _, why in placed} == {""}
        run(_load(tmp_path, worker, way, answers), seconds=200)
