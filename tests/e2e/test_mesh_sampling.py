"""Daemons that speak the mesh protocol take candidates from the worker; texts stay as they are."""

import asyncio
import statistics
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
TOKENS, MORE = 16, 48  # of a short answer, and of what a longer one has more
STREAMS = 4  # slots, without being asked for
LOGITS = 49152 * 4  # bytes of a token
MOST_BYTES = 8000  # of a token of each stream


def crossed(status: Status) -> dict[str, int]:
    """Bytes on the connections of llama-server, or of a worker's mesh-server to others, by peer."""
    return {one.peer_name: one.sent_bytes + one.received_bytes for one in status.tunnels}


async def text(api: Api, asked: Mapping[str, object]) -> str:
    answer = await api.ask("POST", "/completion", dict(asked))
    assert answer.status == 200, answer
    return str(answer.body["content"])


def test_no_logits_cross_and_texts_are_those_of_all_logits(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS + MORE)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _workers = await fleet.workers(smollm2(), smollm2())
            head = await fleet.head(smollm2(), *OPTIONS, *SAME_THREADS, token=token)
            api = api_of(await fleet.ready(head))

            async def cost(*requests: Mapping[str, object]) -> tuple[int, list[str]]:
                before = sum(crossed(await head.status()).values())
                texts = await asyncio.gather(*(text(api, asked) for asked in requests))
                return sum(crossed(await head.status()).values()) - before, texts

            async def of_a_token(streams: int) -> float:
                both = []
                for tokens in (TOKENS, TOKENS + MORE):
                    sampled = generation(PROMPT, tokens) | {"temperature": 1}
                    bytes_, texts = await cost(*({**sampled, "seed": seed} for seed in range(streams)))
                    assert len(set(texts)) == streams
                    both.append(bytes_)
                return (both[1] - both[0]) / (MORE * streams)

            assert await text(api, generation(PROMPT, TOKENS + MORE)) == reference
            for seed in range(3):
                asked = generation(PROMPT, MORE) | {"temperature": 1.2, "seed": seed}
                with_logits, expected = await cost({**asked, "backend_sampling": False})
                without, got = await cost(asked)
                assert got == expected
                assert with_logits - without > MORE * LOGITS * 0.9
            assert 0 < await of_a_token(1) <= MOST_BYTES
            # a stream that begins late, in the short or the long one, has rounds and graphs of its own
            assert 0 < statistics.median([await of_a_token(STREAMS) for _ in range(3)]) <= MOST_BYTES

    play(check())
