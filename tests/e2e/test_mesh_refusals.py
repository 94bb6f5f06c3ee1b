"""A worker that fails each load: the others serve, it is named, and it is not tried again and again."""

from pathlib import Path

import pytest

from tests.e2e import half_mesh
from tests.e2e.alone import alone
from tests.e2e.left_out import ready_without, servers_started, with_a_good_one
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, cli, model_of, play

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(3000),
]

WHY = {
    half_mesh.NO_MEMORY: "llama-server lost worker half: it has no memory for a buffer of ",
    half_mesh.CRASHES: "`mesh-server` was ended by SIGABRT",
}


@pytest.mark.parametrize("what", list(WHY))
def test_the_others_serve_without_it(tmp_path: Path, what: str) -> None:
    reference = alone(smollm2(), 16)
    cache = half_mesh.install(tmp_path / "cache", half_mesh.half(what))

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, half = await with_a_good_one(fleet, cache)
            head = await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=token)
            status = await ready_without(head)
            why = f"worker half is left out for 30 s after 2 tries: {WHY[what]}"
            assert why in model_of(status).reason
            assert {part.node for part in model_of(status).split if part.layers} == {"good"}
            assert await api_of(status).complete(PROMPT, 16) == reference
            shown = await cli(head.spec.home, "status")
            assert why in " ".join(shown.stdout.split())
            assert servers_started(half) == 2

    play(check())
