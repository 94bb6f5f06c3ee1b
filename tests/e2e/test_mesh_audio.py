"""Sounds: the head encodes them, and the model computes what they say on one machine and split alike."""

import asyncio
import base64
import io
import math
import wave
from array import array
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nodes import Fleet, api_of, model_of, play
from tests.e2e.random_models import random_model
from tests.e2e.random_parts import WIDTH
from tests.e2e.random_projector import SECOND_TOKENS, random_audio_projector

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

NODES = ("worker-0",)
RATE = 16000  # samples a second


def tone(hertz: int, seconds: float) -> bytes:
    """A WAV file."""
    samples = array(
        "h", (int(9000 * math.sin(math.tau * hertz * at / RATE)) for at in range(int(RATE * seconds)))
    )
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes(samples.tobytes())
    return file.getvalue()


def heard(url: str, sound: bytes) -> tuple[str, int]:
    """What the model says of a sound, and how many tokens the prompt had."""
    from openai import OpenAI

    data = base64.b64encode(sound).decode()
    content: Any = [
        {"type": "text", "text": "bula?"},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    ]
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=250.0) as ai:
        said = ai.chat.completions.create(
            model="any", messages=[{"role": "user", "content": content}], max_tokens=12, temperature=0
        )
    assert said.usage is not None
    return said.choices[0].message.content or "", said.usage.prompt_tokens


def _all_heard(url: str) -> list[tuple[str, int]]:
    return [heard(url, tone(*sound)) for sound in ((440, 0.9), (2000, 0.9), (440, 2.9))]


async def _served(folder: Path, *, workers: int) -> list[tuple[str, int]]:
    model = random_model("llama")
    given = ("--mmproj", str(random_audio_projector(WIDTH)), "--min-workers", str(workers), "--", "-t", "1")
    async with Fleet(folder) as fleet:
        token, _ = await fleet.workers(*[model] * workers) if workers else ("", [])
        head = await fleet.head(model, *given, token=token)
        status = await fleet.ready(head)
        assert {part.node for part in model_of(status).split} == {"head", *NODES[:workers]}
        return await asyncio.to_thread(_all_heard, api_of(status).url)


def test_a_sound_is_heard_by_the_head_and_the_split_model_says_the_same(tmp_path: Path) -> None:
    alone = play(_served(tmp_path / "alone", workers=0))
    (low, short), (high, as_short), (_, long) = alone
    assert low and high and low != high, "the sound made no difference"
    assert (as_short - short, long - short) == (0, 2 * SECOND_TOKENS)
    assert play(_served(tmp_path / "split", workers=1)) == alone
