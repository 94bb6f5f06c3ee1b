"""Upstream's builds in a mesh, on either side: no weight crosses that both sides have."""

from pathlib import Path

import pytest
from meshd.build.interface import RPC_SERVER

from tests.e2e.alone import alone
from tests.e2e.models import patched, small, smollm2, stock
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

MB = 1_000_000


def _bin(is_stock: bool) -> tuple[str, ...]:
    native = stock() if is_stock else patched()
    return ("--native-bin", str(native.binaries[RPC_SERVER].parent))


@pytest.mark.parametrize(
    ("head_is_stock", "worker_is_stock", "count"),
    [(False, True, 1), (False, True, 2), (True, False, 1), (True, True, 2)],
    ids=["patched-stock", "patched-two-stock", "stock-patched", "stock-two-stock"],
)
def test_no_weight_crosses_the_mesh(
    tmp_path: Path, head_is_stock: bool, worker_is_stock: bool, count: int
) -> None:
    reference = alone(smollm2(), 48)
    head_bin, worker_bin = _bin(head_is_stock), _bin(worker_is_stock)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(*[smollm2()] * count, options=worker_bin)
            options = ("--min-workers", str(count), *head_bin, *SAME_THREADS)
            head = await fleet.head(smollm2(), *options, token=token)
            status = await fleet.ready(head)
            model = model_of(status)
            assert model.weights_network_bytes == 0
            assert model.tensors_from_network == ()
            assert model.weights_local_bytes > 20 * MB
            for peer in status.peers:
                assert peer.link is not None
                assert peer.link.sent_bytes + peer.link.received_bytes < 2 * MB
            assert await api_of(status).complete(PROMPT, 48) == reference

    play(check())


@pytest.mark.parametrize("head_is_stock", [False, True], ids=["patched-head", "stock-head"])
@pytest.mark.parametrize("worker_is_stock", [False, True], ids=["patched-worker", "stock-worker"])
def test_a_worker_with_another_file_gets_the_weights_from_the_head(
    tmp_path: Path, head_is_stock: bool, worker_is_stock: bool
) -> None:
    reference, other = alone(smollm2(), 24), small()
    head_bin, worker_bin = _bin(head_is_stock), _bin(worker_is_stock)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(other, options=worker_bin)
            options = ("--min-workers", "1", *head_bin, *SAME_THREADS)
            head = await fleet.head(smollm2(), *options, token=token)
            status = await fleet.ready(head)
            model = model_of(status)
            assert model.weights_network_bytes > 20 * MB
            assert {tensor.reason for tensor in model.tensors_from_network} == {"no-such-hash"}
            assert await api_of(status).complete(PROMPT, 24) == reference

    play(check())
