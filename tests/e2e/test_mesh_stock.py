"""Workers with upstream's rpc-server, without our patches: their own files give the weights all the same."""

from pathlib import Path

import pytest
from meshd.build.interface import RPC_SERVER

from tests.e2e.alone import alone
from tests.e2e.models import small, smollm2, stock
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

MB = 1_000_000


def _bin() -> str:
    return str(stock().binaries[RPC_SERVER].parent)


@pytest.mark.parametrize("count", [1, 2])
def test_no_weight_crosses_to_a_stock_worker(tmp_path: Path, count: int) -> None:
    reference = alone(smollm2(), 48)
    native = ("--native-bin", _bin())

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(*[smollm2()] * count, options=native)
            head = await fleet.head(smollm2(), "--min-workers", str(count), *SAME_THREADS, token=token)
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


def test_a_stock_worker_with_another_file_gets_the_weights_from_the_head(tmp_path: Path) -> None:
    reference, other = alone(smollm2(), 24), small()
    native = ("--native-bin", _bin())

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(other, options=native)
            head = await fleet.head(smollm2(), "--min-workers", "1", *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            model = model_of(status)
            assert model.weights_network_bytes > 20 * MB
            assert {tensor.reason for tensor in model.tensors_from_network} == {"no-such-hash"}
            assert await api_of(status).complete(PROMPT, 24) == reference

    play(check())
