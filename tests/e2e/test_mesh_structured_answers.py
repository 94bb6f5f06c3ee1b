"""Answers in a form are open at once when a process is killed: each goes on in its stream, within its form.

A JSON schema, a call of a tool, a grammar, reasoning: several share a batch, so another run of one falls
otherwise where two tokens are about equally likely, and most of them are sampled. So what they say differs
from run to run; it must be whole and in its form. There are two chat templates: one writes the arguments of a
call as JSON, the other has a tag for each of them, and reasoning.
"""

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.api_client import Api
from tests.e2e.mesh_losses import again_within
from tests.e2e.models import smollm2
from tests.e2e.nodes import (
    HIT_TRIES,
    Fleet,
    api_of,
    child_pid,
    model_of,
    play,
    replaced,
)
from tests.e2e.open_answers import HIT_AFTER, interruption
from tests.e2e.test_mesh_continued_api import (
    CALLS,
    FORCED,
    TEMPLATE,
    WEEK,
    Event,
    arguments_of,
    events_of,
    ids_of,
    text_of,
)
from tests.soak import counts, drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(1000)]

SKIES = {"enum": ["sun", "rain", "snow", "fog"]}
SKY = {"type": "array", "items": SKIES, "minItems": 20, "maxItems": 20}
SCHEMA = {"type": "object", "properties": {"sky": SKY}, "required": ["sky"]}
GRAMMAR = 'root ::= "[" (("sun" | "rain" | "snow") ","){30} "]"'
FOUND_SECONDS = 10.0
BEGIN_SECONDS = 60.0  # from the first answer to the last one


def _ask(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 400}


@dataclass(frozen=True, slots=True)
class Form:
    """A form to ask for, and the check of a whole answer."""

    path: str
    asked: Mapping[str, object]
    is_whole: Callable[[list[Event]], bool]


def _has_skies(text: str) -> bool:
    found = json.loads(text)
    return set(found) == {"sky"} and len(found["sky"]) == 20 and set(found["sky"]) <= set(SKIES["enum"])


def _is_called(events: list[Event]) -> bool:
    """Once or several times."""
    left, calls = arguments_of(events), []
    while left:
        found, end = json.JSONDecoder().raw_decode(left)
        calls.append(found)
        left = left[end:]
    return bool(calls) and all(one["city"] in ("Paris", "Rome") and len(one["days"]) == 12 for one in calls)


def _native_text(events: list[Event]) -> str:
    return "".join(event["content"] for event in events)


FORMS: Mapping[str, Form] = {
    "schema": Form(
        "/v1/chat/completions",
        _ask("Weather?") | {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        lambda events: _has_skies(text_of(events)),
    ),
    "call": Form(
        "/v1/chat/completions",
        _ask("Weather in Rome?")
        | FORCED
        | {"tools": [{"type": "function", "function": {"name": "week", "parameters": WEEK}}]}
        | {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 1},
        _is_called,
    ),
    "messages": Form(CALLS["messages"][0], CALLS["messages"][1] | {"temperature": 1}, _is_called),
    "grammar": Form(
        "/completion",
        {"prompt": "The weather: ", "n_predict": 400, "grammar": GRAMMAR, "temperature": 0},
        lambda events: re.fullmatch(r"\[((sun|rain|snow),){30}\]", _native_text(events)) is not None,
    ),
}


TAGGED = Path(__file__).with_name("tagged_tools.jinja")
THINKING = 100  # tokens
LONG = "Name some animals, and say what each of them eats."
NEARLY_GREEDY = {"temperature": 0.01}  # it says much for long, and greedy answers are made again
USED = ("Rome", "Paris", "Oslo")
_WEEK = {"days": ["sun", "rain"] * 6}
_AGAIN = "Weather in Rome?"
_SILENT = {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 0.3}


def _used_in_chat(city: str) -> list[dict[str, object]]:
    call = {"name": "week", "arguments": json.dumps({"city": city, **_WEEK})}
    return [
        {"role": "user", "content": f"Weather in {city}?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"id-{city}", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": f"id-{city}", "content": "sunny"},
    ]


def _used_in_response(city: str) -> list[dict[str, object]]:
    said = json.dumps({"city": city, **_WEEK})
    return [
        {"role": "user", "content": f"Weather in {city}?"},
        {"type": "function_call", "call_id": f"id-{city}", "name": "week", "arguments": said},
        {"type": "function_call_output", "call_id": f"id-{city}", "output": "sunny"},
    ]


def _has_thought_in_messages(events: list[Event]) -> bool:
    """A block for thinking, one for text, each begun once, and all of them ended."""
    begun = [one["content_block"]["type"] for one in events if one["type"] == "content_block_start"]
    ended = [one["index"] for one in events if one["type"] == "content_block_stop"]
    thought = [one for one in events if "thinking" in one.get("delta", {})]
    whole = begun == ["thinking", "text"] and ended == [0, 1] and bool(text_of(events))
    return whole and _is_the_budget(len(thought))


def _is_the_budget(pieces: int) -> bool:
    """Which this model uses up: it never says that it has thought enough, and its end takes some tokens."""
    return THINKING - 8 <= pieces <= THINKING


def _has_thought_in_response(events: list[Event]) -> bool:
    """Return True if the response at the end is what came in pieces, and each item began once."""
    said = {"reasoning": "", "message": text_of(events)}
    begun, thought = [], 0
    for one in events:
        if one["type"] == "response.reasoning_text.delta":
            said["reasoning"] += one["delta"]
            thought += 1
        elif one["type"] == "response.output_item.added":
            begun.append((one["item"]["type"], one["item"]["id"]))
    response = events[-1]["response"]
    whole = {item["type"]: item["content"][0]["text"] for item in response["output"]}
    ids = [(item["type"], item["id"]) for item in response["output"]]
    has_ids = ids == begun and response["id"] == events[0]["response"]["id"]
    return whole == said and all(said.values()) and has_ids and _is_the_budget(thought)


TAGGED_FORMS: Mapping[str, Form] = {
    "call": Form(
        "/v1/chat/completions",
        {
            "messages": [*(turn for city in USED for turn in _used_in_chat(city)), *_ask(_AGAIN)["messages"]],
            "tools": [{"type": "function", "function": {"name": "week", "parameters": WEEK}}],
            "tool_choice": "required",
            "max_tokens": 200,
            **_SILENT,
        },
        _is_called,
    ),
    "messages": Form(CALLS["messages"][0], CALLS["messages"][1] | _SILENT, _is_called),
    "response with a call": Form(
        "/v1/responses",
        {
            "input": [
                *(turn for city in USED for turn in _used_in_response(city)),
                {"role": "user", "content": _AGAIN},
            ],
            "tools": [{"type": "function", "name": "week", "parameters": WEEK}],
            "tool_choice": "required",
            "max_output_tokens": 200,
            **_SILENT,
        },
        _is_called,
    ),
    "thinking": Form(
        "/v1/messages",
        {
            "messages": _ask(LONG)["messages"],
            "thinking": {"type": "enabled", "budget_tokens": THINKING},
            "max_tokens": 250,
            **NEARLY_GREEDY,
        },
        _has_thought_in_messages,
    ),
    "response": Form(
        "/v1/responses",
        {
            "input": LONG,
            "reasoning_budget_tokens": THINKING,
            "max_output_tokens": 250,
            **NEARLY_GREEDY,
            "ignore_eos": True,
        },
        _has_thought_in_response,
    ),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Answers that are open at once."""

    template: Path
    forms: Mapping[str, Form]


GROUPS: Mapping[str, Group] = {"forms": Group(TEMPLATE, FORMS), "tagged": Group(TAGGED, TAGGED_FORMS)}


class _Streams:
    """Each is read in a thread; the last one to have some events hits."""

    def __init__(self, api: Api, forms: Mapping[str, Form], hit: Callable[[], None]) -> None:
        self._api = api
        self._forms = forms
        self._reached = threading.Barrier(len(forms), hit, BEGIN_SECONDS)
        self.seconds = dict.fromkeys(forms, 0.0)
        self.events: dict[str, list[Event]] = {}

    def read(self, name: str) -> None:
        form, last = self._forms[name], time.monotonic()

        def on_event(number: int) -> None:
            nonlocal last
            if number == HIT_AFTER:
                self._reached.wait()
            if number > HIT_AFTER:
                self.seconds[name] = max(self.seconds[name], time.monotonic() - last)
            last = time.monotonic()

        body = {**form.asked, "stream": True, "cache_prompt": False}
        self.events[name] = events_of(self._api, form.path, body, on_event)

    def is_whole(self, name: str) -> bool:
        events = self.events[name]
        if any("error" in event or event.get("type") == "error" for event in events):
            return False
        assert len(ids_of(events)) <= 1
        return self._forms[name].is_whole(events)


LOST = ("llama-server", CHILD_NAME)
# the gateway makes the same of both losses, so a short run has each loss and each group once
ORDERS = drawn("which group loses what", [LOST, LOST[::-1]], 1, always=())


@pytest.mark.parametrize(
    ("group", "lost"),
    [pair for order in ORDERS for pair in zip(GROUPS, order, strict=True) for _ in range(counts(1, 10))],
)
def test_killed_under_forms(tmp_path: Path, group: str, lost: str) -> None:
    template, forms = GROUPS[group].template, GROUPS[group].forms

    async def check() -> None:
        began = time.monotonic()
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2(), options=("--threads", "1"))
            slots = ("--set", "serve.continue_answers=100", "--slots", str(len(forms)))
            head = await fleet.head(
                smollm2(), *slots, "--", "-t", "1", "--chat-template-file", str(template), token=token
            )
            status = await fleet.ready(head)
            answers = model_of(status).answers
            assert answers is not None and answers.slots >= len(forms), "they share no batch"
            at = worker if lost == CHILD_NAME else head
            interrupted = 0
            with interruption("mesh-server" if at is worker else lost, f"kill -9, {group}") as noted:
                # what comes out otherwise has its prompt computed once more
                noted.within = FOUND_SECONDS + 2 * again_within(began)
                for _ in range(HIT_TRIES):
                    before = interrupted
                    pid = child_pid(await at.status(), lost)
                    streams = _Streams(api_of(status), forms, partial(os.kill, pid, signal.SIGKILL))
                    await asyncio.gather(*(asyncio.to_thread(streams.read, name) for name in forms))
                    noted.seconds += streams.seconds.values()
                    for name in forms:
                        print(name, f"{streams.seconds[name]:.1f} s", streams.events[name][-3:])  # noqa: T201
                        noted.incomplete += not streams.is_whole(name)
                    await replaced(at, lost, pid)
                    await fleet.ready(head)
                    interrupted = (head.spec.home / "logs" / "meshd.log").read_text().count("upstream_lost")
                    if interrupted >= before + len(forms):
                        break
            assert interrupted == before + len(forms), "one was over before, or was lost twice"

    play(check(), seconds=900.0)
