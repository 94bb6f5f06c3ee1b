"""llama-server is killed under a stream of each of the API's dialects: the client's view of the answer."""

import asyncio
import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api_client import Api
from tests.e2e.models import smollm2
from tests.e2e.nodes import SAME_BATCHES, SAME_THREADS, Fleet, api_of, child_pid, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

QUESTION = [{"role": "user", "content": "Name some animals, and say what each of them eats."}]
CHAT = {"messages": QUESTION, "max_tokens": 60, "temperature": 0, "stream_options": {"include_usage": True}}
SCHEMA = {"type": "object", "properties": {"animal": {"type": "string"}}, "required": ["animal"]}
REQUESTS: dict[str, tuple[str, dict[str, object]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat with a seed": ("/v1/chat/completions", CHAT | {"temperature": 1, "seed": 11}),
    "chat with penalties": ("/v1/chat/completions", CHAT | {"repeat_penalty": 1.3}),
    "JSON": (
        "/v1/chat/completions",
        CHAT | {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    ),
    "completion": ("/v1/completions", {"prompt": "The sea", "max_tokens": 60, "temperature": 0}),
    "messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 60, "temperature": 0}),
    "responses": (
        "/v1/responses",
        {"input": "Name some animals.", "max_output_tokens": 60, "temperature": 0},
    ),
}
HIT_AFTER = 12  # events

Event = dict[str, Any]


def _events(api: Api, path: str, body: dict[str, object], on_event: Callable[[int], None]) -> list[Event]:
    connection = api.open()
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return list(_parsed(answer, on_event))
    finally:
        connection.close()


def _parsed(answer: http.client.HTTPResponse, on_event: Callable[[int], None]) -> Iterator[Event]:
    number = 0
    for line in answer:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            number += 1
            yield json.loads(line.removeprefix(b"data: "))
            on_event(number)


def text_of(events: list[Event]) -> str:
    """Of any dialect: what a user reads."""
    found = ""
    for event in events:
        assert "error" not in event and event.get("type") != "error", event
        for choice in event.get("choices", ()):
            found += choice.get("text") or choice.get("delta", {}).get("content") or ""
        delta = event.get("delta")
        if isinstance(delta, dict) and event.get("type") == "content_block_delta":
            found += delta["text"]
        if event.get("type") == "response.output_text.delta":
            found += str(delta)
    return found


def kinds_of(events: list[Event]) -> list[str]:
    """What kinds of events there were, each once for a row of it."""
    kinds = [str(event.get("type") or event.get("object")) for event in events]
    return [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]


def ids_of(events: list[Event]) -> set[str]:
    return {str(event["id"]) for event in events if "id" in event}


def usage_of(events: list[Event]) -> list[tuple[int, int]]:
    """Tokens of prompt and answer."""
    usages = [event["usage"] for event in events if event.get("usage")]
    return [(one["prompt_tokens"], one["completion_tokens"]) for one in usages if "prompt_tokens" in one]


@pytest.mark.parametrize("case", REQUESTS)
def test_a_client_sees_one_answer(tmp_path: Path, case: str) -> None:
    path, asked = REQUESTS[case]
    body = asked | {"stream": True, "cache_prompt": False}

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            options = ("--continue-answers", "100", *SAME_THREADS, *SAME_BATCHES)
            head = await fleet.head(smollm2(), *options, token=token)
            api = api_of(await fleet.ready(head))
            whole = await asyncio.to_thread(_events, api, path, body, lambda _: None)
            pid = child_pid(await head.status(), "llama-server")

            def hit(number: int) -> None:
                if number == HIT_AFTER:
                    os.kill(pid, signal.SIGKILL)

            seen = await asyncio.to_thread(_events, api, path, body, hit)
            assert len(seen) > HIT_AFTER
            assert child_pid(await head.status(), "llama-server") != pid
            assert text_of(seen) == text_of(whole) != ""
            assert kinds_of(seen) == kinds_of(whole)
            assert len(ids_of(seen)) == len(ids_of(whole)) <= 1
            assert usage_of(seen) == usage_of(whole)

    play(check())
