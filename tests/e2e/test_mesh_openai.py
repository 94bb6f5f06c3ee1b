"""The `openai` client, as users have it, on a real mesh."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.models import smollm2
from tests.e2e.nodes import SAME_THREADS, Fleet, api_of, model_of, play

if TYPE_CHECKING:  # its import takes long, and each process of `pytest -n` imports all tests
    from openai.types.chat import ChatCompletionUserMessageParam

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

QUESTION: "ChatCompletionUserMessageParam" = {"role": "user", "content": "What is the capital of France?"}


def _talk(url: str) -> tuple[list[str], str, str]:
    """Models, a chat in one piece, and the same chat streamed."""
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120.0) as client:
        models = [model.id for model in client.models.list()]
        whole = client.chat.completions.create(
            model=models[0], messages=[QUESTION], temperature=0, max_tokens=24
        )
        with client.chat.completions.create(
            model=models[0], messages=[QUESTION], temperature=0, max_tokens=24, stream=True
        ) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert whole.choices[0].message.content
    assert sum(map(bool, pieces)) > 2, "not streamed"
    return models, whole.choices[0].message.content, "".join(pieces)


def test_the_openai_client_lists_chats_and_streams(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2(), smollm2())
            head = await fleet.head(smollm2(), "--min-workers", "2", *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            models, whole, streamed = await asyncio.to_thread(_talk, api_of(status).url)
            assert models == [model_of(status).name]
            assert streamed == whole
            after = await head.status()
            assert after.api is not None
            assert after.api.requests == 2
            assert after.api.tokens > 4

    play(check())
