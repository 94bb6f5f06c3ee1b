"""Weights stay where they are: every worker loads its share from its own file, and the mesh carries none."""

from pathlib import Path

import pytest

from tests.e2e.alone import alone
from tests.e2e.models import copy_to, smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, model_of, play
from tests.soak import drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

SMOLLM2_LAYERS = 30
MB = 1_000_000


@pytest.mark.parametrize("count", drawn("workers with a file each", [1, 2, 3], 2, always=()))
def test_no_weight_crosses_and_the_text_is_that_of_one_machine(tmp_path: Path, count: int) -> None:
    reference = alone(smollm2(), 48)

    async def check() -> None:
        copies = [copy_to(smollm2(), tmp_path / f"disk-{n}", f"file {n}.bin") for n in range(count)]
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(*copies)
            head = await fleet.head(smollm2(), "--min-workers", str(count), *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            model = model_of(status)
            names = {worker.spec.name for worker in workers}
            layers = {part.node: part.layers for part in model.split}
            assert names < set(layers)
            assert sum(layers.values()) == SMOLLM2_LAYERS
            assert all(layers[name] >= SMOLLM2_LAYERS / 5 for name in names), layers
            assert model.weights_network_bytes == 0
            assert model.tensors_from_network == ()
            assert model.weights_local_bytes >= sum(p.bytes for p in model.split if p.node in names)
            for peer in status.peers:
                assert peer.link is not None
                crossed = peer.link.sent_bytes + peer.link.received_bytes
                print(f"{peer.name}: {layers[peer.name]} layers, {crossed} bytes until loaded")  # noqa: T201
                assert crossed < 1 * MB
            for worker in workers:  # told while the model loads
                assert "weights_loaded" in (worker.spec.home / "logs" / "meshd.log").read_text()
            assert await api_of(status).complete(PROMPT, 48) == reference

    play(check())


def test_a_token_costs_at_most_10_kb(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), token=token)
            status = await fleet.ready(head)
            assert model_of(status).bytes_per_token is None, "it is measured on what clients ask"
            await api_of(status).stream(PROMPT, 48)
            cost = model_of(await head.status()).bytes_per_token
            assert cost is not None
            print(f"{cost:.0f} bytes a token")  # noqa: T201
            assert 0 < cost <= 10_000

    play(check())
