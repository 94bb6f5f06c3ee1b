"""Upstream's builds in a mesh, on either side: no weight crosses that both sides have."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.build.interface import RPC_SERVER

from tests.e2e.alone import alone
from tests.e2e.models import patched, small, smollm2, stock
from tests.e2e.native_protocol import RPC
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, model_of, peer_of, play
from tests.soak import drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

MB = 1_000_000


def _bin(is_stock: bool) -> tuple[str, ...]:
    native = stock() if is_stock else patched()
    return ("--native-bin", str(native.binaries[RPC_SERVER].parent))


@asynccontextmanager
async def _heads(
    folder: Path, has: Path, *, worker_is_stock: bool, heads: Sequence[bool], count: int = 1
) -> AsyncIterator[AsyncIterator[Status]]:
    """The status of each of these heads, stock or not, which use the same workers one after the other."""
    binaries = {is_stock: _bin(is_stock) for is_stock in (False, True)}
    async with Fleet(folder, protocol=RPC) as fleet:
        token, _ = await fleet.workers(*[has] * count, options=binaries[worker_is_stock])

        async def served() -> AsyncGenerator[Status, None]:
            for is_stock in heads:
                options = ("--min-workers", str(count), *binaries[is_stock], *SAME_THREADS)
                name = "stock" if is_stock else "patched"
                head = await fleet.head(smollm2(), *options, token=token, name=name)
                yield await fleet.ready(head)
                await head.stop()
                fleet.forget(head)

        async with aclosing(served()) as statuses:
            yield statuses


@pytest.mark.parametrize(
    ("worker_is_stock", "heads"), [(True, (False, True)), (False, (True,))], ids=["stock", "patched"]
)
@pytest.mark.parametrize("count", drawn("workers beside a stock build", [1, 2], 1, always=()))
def test_no_weight_crosses_the_mesh(
    tmp_path: Path, worker_is_stock: bool, heads: Sequence[bool], count: int
) -> None:
    reference = alone(smollm2(), 48)

    async def check() -> None:
        fleet = _heads(tmp_path, smollm2(), worker_is_stock=worker_is_stock, heads=heads, count=count)
        async with fleet as statuses:
            async for status in statuses:
                model = model_of(status)
                assert model.weights_network_bytes == 0
                assert model.tensors_from_network == ()
                assert model.weights_local_bytes > 20 * MB
                for number in range(count):
                    link = peer_of(status, f"worker-{number}").link
                    assert link is not None
                    assert link.sent_bytes + link.received_bytes < 2 * MB
                assert await api_of(status).complete(PROMPT, 48) == reference

    play(check())


@pytest.mark.parametrize("worker_is_stock", [False, True], ids=["patched-worker", "stock-worker"])
def test_a_worker_with_another_file_gets_the_weights_from_the_head(
    tmp_path: Path, worker_is_stock: bool
) -> None:
    """It keeps nothing, so the second head sends it all again."""
    reference, other = alone(smollm2(), 24), small()

    async def check() -> None:
        fleet = _heads(tmp_path, other, worker_is_stock=worker_is_stock, heads=(False, True))
        async with fleet as statuses:
            async for status in statuses:
                model = model_of(status)
                assert model.weights_network_bytes > 20 * MB
                assert {tensor.reason for tensor in model.tensors_from_network} == {"no-such-hash"}
                assert await api_of(status).complete(PROMPT, 24) == reference

    play(check())
