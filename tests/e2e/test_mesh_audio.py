"""Sounds: the head encodes them, and the model computes what they say on one machine and split alike."""

import asyncio
import base64
import io
import math
import os
import signal
import wave
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from meshd.fleet.fleet import LocalNode

from tests.e2e.nodes import (
    HIT_TRIES,
    Fleet,
    api_of,
    child_pid,
    model_of,
    play,
    replaced,
)
from tests.e2e.random_models import random_model
from tests.e2e.random_parts import WIDTH
from tests.e2e.random_projector import SECOND_TOKENS, random_audio_projector

if TYPE_CHECKING:  # its import takes long, and each process of `pytest -n` imports all tests
    from openai import OpenAI

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

NODES = ("worker-0",)
HIT_AFTER = 5  # events
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


def client(url: str) -> "OpenAI":
    from openai import OpenAI

    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=250.0)


def heard(url: str, sound: bytes) -> tuple[str, int]:
    """Return what the model says of a sound, and how many tokens the prompt had."""
    data = base64.b64encode(sound).decode()
    content: Any = [
        {"type": "text", "text": "bula?"},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    ]
    with client(url) as ai:
        said = ai.chat.completions.create(
            model="any", messages=[{"role": "user", "content": content}], max_tokens=12, temperature=0
        )
    assert said.usage is not None
    return said.choices[0].message.content or "", said.usage.prompt_tokens


def transcribed(url: str, sound: bytes) -> tuple[str, int]:
    """The same of a transcription."""
    with client(url) as ai:
        said: Any = ai.audio.transcriptions.create(
            model="any", file=("a.wav", sound), temperature=0, extra_body={"max_tokens": "12"}
        )
    return said.text, said.usage.input_tokens


def transcribed_in_pieces(url: str, sound: bytes, on_piece: Callable[[int], None]) -> str:
    """The same of a longer one that is streamed."""
    text, extra = "", {"max_tokens": "100"}
    with client(url) as ai:
        stream = ai.audio.transcriptions.create(
            model="any", file=("a.wav", sound), temperature=0, extra_body=extra, stream=True
        )
        for number, event in enumerate(stream, start=1):
            if event.type == "transcript.text.delta":
                text += event.delta
            on_piece(number)
    assert event.type == "transcript.text.done" and event.text == text
    return text


def all_heard(url: str) -> list[tuple[str, int]]:
    sounds = [tone(*sound) for sound in ((440, 0.9), (2000, 0.9), (440, 2.9))]
    return [hear(url, sound) for hear in (heard, transcribed) for sound in sounds]


@asynccontextmanager
async def served(folder: Path, *options: str, workers: int) -> AsyncIterator[LocalNode]:
    """A head that hears, and is ready."""
    model = random_model("llama")
    given = ("--mmproj", str(random_audio_projector(WIDTH)), "--min-workers", str(workers), *options)
    async with Fleet(folder) as fleet:
        token, _ = await fleet.workers(*[model] * workers) if workers else ("", [])
        head = await fleet.head(model, *given, "--", "-t", "1", token=token)
        status = await fleet.ready(head)
        assert {part.node for part in model_of(status).split} == {"head", *NODES[:workers]}
        yield head


def test_a_sound_is_heard_by_the_head_and_the_split_model_says_the_same(tmp_path: Path) -> None:
    async def hear(workers: int) -> list[tuple[str, int]]:
        async with served(tmp_path / str(workers), workers=workers) as head:
            return await asyncio.to_thread(all_heard, api_of(await head.status()).url)

    alone = play(hear(0))
    for (low, short), (high, as_short), (_, long) in (alone[:3], alone[3:]):
        assert low and high and low != high, "the sound made no difference"
        assert (as_short - short, long - short) == (0, 2 * SECOND_TOKENS)
    assert play(hear(1)) == alone


def test_a_transcription_goes_on_when_llama_server_is_lost(tmp_path: Path) -> None:
    async def check() -> None:
        async with served(tmp_path, "--set", "serve.continue_answers=100", workers=1) as head:
            url = api_of(await head.status()).url
            whole = await asyncio.to_thread(transcribed_in_pieces, url, tone(440, 0.9), lambda _: None)
            for _ in range(HIT_TRIES):
                assert await _hit(head, url) == whole != ""
                log = (head.spec.home / "logs" / "meshd.log").read_text()
                if lost := log.count("upstream_lost"):
                    break
            assert lost == 1, "the answer was over before"

    play(check())


async def _hit(head: LocalNode, url: str) -> str:
    """Kill llama-server during a transcription; return its text once another is ready."""
    pid, events = child_pid(await head.status(), "llama-server"), 0

    def hit(number: int) -> None:
        nonlocal events
        events = number
        if number == HIT_AFTER:
            os.kill(pid, signal.SIGKILL)

    text = await asyncio.to_thread(transcribed_in_pieces, url, tone(440, 0.9), hit)
    assert events >= HIT_AFTER
    await replaced(head, "llama-server", pid)
    await head.until(lambda status: model_of(status).state == "ready")
    return text
