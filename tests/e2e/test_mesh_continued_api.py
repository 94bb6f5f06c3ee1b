"""A process is killed under a stream of each of the API's dialects: the client's view of the answer."""

import asyncio
import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from meshd.fleet.fleet import LocalNode
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.api_client import Api
from tests.e2e.models import smollm2
from tests.e2e.nodes import (
    HIT_TRIES,
    SAME_BATCHES,
    SAME_THREADS,
    Fleet,
    api_of,
    child_pid,
    model_of,
    play,
    replaced,
)
from tests.e2e.used_tool import used_tool

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

QUESTION = [{"role": "user", "content": "Name some animals, and say what each of them eats."}]
CHAT = {"messages": QUESTION, "max_tokens": 60, "temperature": 0, "stream_options": {"include_usage": True}}
SCHEMA = {"type": "object", "properties": {"animal": {"type": "string"}}, "required": ["animal"]}
# A call that takes some sixty tokens, so that what is lost is lost in the middle of its arguments.
WEEK = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"type": "array", "items": {"enum": ["sun", "rain"]}, "minItems": 12, "maxItems": 12},
    },
    "required": ["city", "days"],
}
_USED = [
    turn
    for city in ("Rome", "Paris")
    for turn in used_tool("week", city, {"city": city, "days": ["sun", "rain"] * 6})
]
FORCED = {"temperature": 0, "logit_bias": {"{": 30}}
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
CALLS: dict[str, tuple[str, dict[str, object]]] = {
    "chat": (
        "/v1/chat/completions",
        CHAT
        | FORCED
        | {"max_tokens": 200, "tool_choice": "required", "parallel_tool_calls": False}
        | {"tools": [{"type": "function", "function": {"name": "week", "parameters": WEEK}}]},
    ),
    "messages": (
        "/v1/messages",
        {"max_tokens": 200, "tool_choice": {"type": "any"}, "temperature": 0}
        | {"messages": [*_USED, {"role": "user", "content": "Weather in Rome?"}]}
        | {"tools": [{"name": "week", "description": "of a city", "input_schema": WEEK}]},
    ),
    "responses": (
        "/v1/responses",
        {"input": "Name some animals.", "max_output_tokens": 200, "tool_choice": "required"}
        | FORCED
        | {"tools": [{"type": "function", "name": "week", "parameters": WEEK}]},
    ),
}
TEMPLATE = Path(__file__).with_name("tools.jinja")
HIT_AFTER = 12  # events

Event = dict[str, Any]


def events_of(api: Api, path: str, body: dict[str, object], on_event: Callable[[int], None]) -> list[Event]:
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
    """Return the text that a user reads, in any dialect."""
    found = ""
    for event in events:
        assert "error" not in event and event.get("type") != "error", event
        for choice in event.get("choices", ()):
            found += choice.get("text") or choice.get("delta", {}).get("content") or ""
        delta = event.get("delta")
        if isinstance(delta, dict) and event.get("type") == "content_block_delta":
            found += delta.get("text", "")
        if event.get("type") == "response.output_text.delta":
            found += str(delta)
    return found


def kinds_of(events: list[Event]) -> list[str]:
    """Return the kinds of the events, each once for a row of it."""
    kinds = [str(event.get("type") or event.get("object")) for event in events]
    return [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]


def ids_of(events: list[Event]) -> set[str]:
    return {str(event["id"]) for event in events if "id" in event}


def usage_of(events: list[Event]) -> list[tuple[int, int]]:
    """Tokens of prompt and answer."""
    usages = [event["usage"] for event in events if event.get("usage")]
    return [(one["prompt_tokens"], one["completion_tokens"]) for one in usages if "prompt_tokens" in one]


def arguments_of(events: list[Event]) -> str:
    """Return the arguments of the one call, in any dialect."""
    found = ""
    for event in events:
        for choice in event.get("choices", ()):
            for call in choice.get("delta", {}).get("tool_calls", ()):
                found += call["function"].get("arguments") or ""
        if event.get("type") == "content_block_delta":
            found += event["delta"].get("partial_json", "")
        if event.get("type") == "response.function_call_arguments.delta":
            found += event["delta"]
    return found


@dataclass(frozen=True, slots=True)
class Served:
    """A head that computes with one worker, and answers all that a test asks."""

    head: LocalNode
    worker: LocalNode
    api: Api

    async def undisturbed_and_hit(
        self, path: str, asked: dict[str, object], *, lost: str = "llama-server"
    ) -> tuple[list[Event], list[Event]]:
        """The events of an answer, and of the same one under which a process was killed."""
        body = asked | {"stream": True, "cache_prompt": False}
        before = self._losses()
        whole = await asyncio.to_thread(events_of, self.api, path, body, lambda _: None)
        for _ in range(HIT_TRIES):
            seen = await self._hit(path, body, self.worker if lost == CHILD_NAME else self.head, lost)
            if self._losses() > before:
                break
            assert kinds_of(seen) == kinds_of(whole)
        assert self._losses() == before + 1, f"{path}: the answer was over before"
        return whole, seen

    async def _hit(self, path: str, body: dict[str, object], at: LocalNode, lost: str) -> list[Event]:
        """Kill the process during an answer; return the answer once another process is ready."""
        pid = child_pid(await at.status(), lost)

        def hit(number: int) -> None:
            if number == HIT_AFTER:
                os.kill(pid, signal.SIGKILL)

        seen = await asyncio.to_thread(events_of, self.api, path, body, hit)
        assert len(seen) >= HIT_AFTER
        await replaced(at, lost, pid)
        await self.head.until(lambda status: model_of(status).state == "ready")
        return seen

    def _losses(self) -> int:
        return (self.head.spec.home / "logs" / "meshd.log").read_text().count("upstream_lost")


def _check_one_answer(whole: list[Event], seen: list[Event]) -> None:
    assert len(seen) > HIT_AFTER
    assert text_of(seen) == text_of(whole)
    assert kinds_of(seen) == kinds_of(whole)
    assert len(ids_of(seen)) == len(ids_of(whole)) <= 1
    assert usage_of(seen) == usage_of(whole)


async def _one_answer(mesh: Served) -> None:
    for case, (path, asked) in REQUESTS.items():
        whole, seen = await mesh.undisturbed_and_hit(path, asked)
        print(case)  # noqa: T201
        _check_one_answer(whole, seen)
        assert text_of(whole)


async def _one_call_of_a_tool(mesh: Served) -> None:
    for case, lost in [*((case, "llama-server") for case in CALLS), ("chat", CHILD_NAME)]:
        whole, seen = await mesh.undisturbed_and_hit(*CALLS[case], lost=lost)
        print(case, lost)  # noqa: T201
        _check_one_answer(whole, seen)
        had = arguments_of(seen[:HIT_AFTER])
        assert had and len(had) < len(arguments_of(whole)) // 2, "not in the middle of the arguments"
        assert arguments_of(seen) == arguments_of(whole)
        arguments = json.loads(arguments_of(seen))
        assert arguments["city"] in ("Paris", "Rome") and len(arguments["days"]) == 12


async def _penalties_of_what_was_sent(mesh: Served) -> None:
    """Sampled, so the rest is asked for. With this penalty no token comes twice within the last 64."""
    asked = {"prompt": "The sea, the sea,", "n_predict": 50, "temperature": 1, "return_tokens": True}
    whole, seen = await mesh.undisturbed_and_hit(
        "/completion", asked | {"presence_penalty": 100, "ignore_eos": True}
    )
    for events in (whole, seen):
        tokens = [token for event in events for token in event["tokens"]]
        assert len(tokens) == 50
        assert len(set(tokens)) == 50, "it was said before"
    assert seen[:HIT_AFTER] != whole[:HIT_AFTER], "not sampled"


def test_a_client_sees_one_answer_and_one_call_with_penalties_of_all_that_was_sent(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            llama = (*SAME_THREADS, "--chat-template-file", str(TEMPLATE), *SAME_BATCHES)
            head = await fleet.head(smollm2(), "--set", "serve.continue_answers=100", *llama, token=token)
            mesh = Served(head, worker, api_of(await fleet.ready(head)))
            for scene in (_one_answer, _one_call_of_a_tool, _penalties_of_what_was_sent):
                await scene(mesh)

    play(check())
