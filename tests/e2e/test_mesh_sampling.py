"""Daemons that speak the mesh protocol take candidates from the worker; texts stay as they are."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.build.interface import MESH_PROGRAM
from meshd.build.native import folder_of_ours

from tests.e2e.alone import alone
from tests.e2e.api_client import Api, generation
from tests.e2e.models import cache_folder, smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, play

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(
        not (folder_of_ours(cache_folder()) / MESH_PROGRAM).is_file(),
        reason="native/mesh is not built: `meshd native build`",
    ),
]

OPTIONS = (
    "--device",
    "none",
    "--min-workers",
    "2",
    "--set",
    "serve.output=worker",
    "--set",
    "links.compress=off",
)
TOKENS = 48
LOGITS = 49152 * 4  # bytes of a token


def crossed(status: Status) -> int:
    """Bytes on the connections of llama-server with its workers."""
    return sum(one.sent_bytes + one.received_bytes for one in status.tunnels)


async def text(api: Api, asked: Mapping[str, object]) -> str:
    answer = await api.ask("POST", "/completion", dict(asked))
    assert answer.status == 200, answer
    return str(answer.body["content"])


def test_no_logits_cross_and_texts_are_those_of_all_logits(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _workers = await fleet.workers(smollm2(), smollm2())
            head = await fleet.head(smollm2(), *OPTIONS, *SAME_THREADS, token=token)
            api = api_of(await fleet.ready(head))

            async def cost(asked: Mapping[str, object]) -> tuple[int, str]:
                before = crossed(await head.status())
                said = await text(api, asked)
                return crossed(await head.status()) - before, said

            assert await text(api, generation(PROMPT, TOKENS)) == reference
            for seed in range(3):
                asked = generation(PROMPT, TOKENS) | {"temperature": 1.2, "seed": seed}
                with_logits, expected = await cost({**asked, "backend_sampling": False})
                without, got = await cost(asked)
                assert got == expected
                assert with_logits - without > TOKENS * LOGITS * 0.9

    play(check())
