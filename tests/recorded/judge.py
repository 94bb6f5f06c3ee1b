"""Read a server's answer by the types of the official `openai` and `anthropic` packages.

Each event must be valid for its type and come in its order; what the answer says is returned. A fault raises
AssertionError (a pydantic ValidationError is shown in it).
"""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

from tests.recorded.answers import Json


@dataclass
class Said:
    """The content of an answer. `calls`: kind, namespace, name and arguments of each."""

    text: str = ""
    calls: list[tuple[str, str, str, str]] = field(default_factory=list)
    reason: str = ""

    @property
    def called(self) -> set[tuple[str, str]]:
        """Namespace and name of each tool that was called."""
        return {(namespace, name) for _, namespace, name, _ in self.calls}


def read_answer(path: str, kind: str, data: bytes) -> Said:
    """Read an answer of status 200 to a request of `path`. `kind`: its content type."""
    text = data.decode()
    if "event-stream" in kind:
        reads = {"completions": _chat_events, "responses": _response_events, "messages": _message_events}
        return reads[_form(path)](_events(text))
    wholes = {"completions": _chat, "responses": _response, "messages": _message}
    return wholes[_form(path)](json.loads(text))


def _form(path: str) -> str:
    return path.partition("?")[0].rpartition("/")[2]


def _events(text: str) -> list[tuple[str, str]]:
    """Return name and data of each event (WHATWG HTML, "Server-sent events"); comments are skipped."""
    found = []
    for block in re.split(r"\r?\n\r?\n", text):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        name = next((line[6:].strip() for line in lines if line.startswith("event:")), "")
        data = [line[5:].strip() for line in lines if line.startswith("data:")]
        if data:
            found.append((name, "\n".join(data)))
    return found


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _valid(kind: Any, fields: Json) -> Any:
    """Return the fields as the package's type. Raises AssertionError if they are not of that type."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(fields)
    except ValidationError as error:
        raise AssertionError(f"not a valid {getattr(kind, '__name__', kind)}: {error}\n{fields}") from error


@cache
def _by_type(union: Any) -> dict[str, Any]:
    """Return the classes of a union of events, by the `type` of each."""
    return {
        name: one
        for one in get_args(get_args(union)[0])
        for name in get_args(one.model_fields["type"].annotation)
    }


# -- chat completions


def _chat(fields: Json) -> Said:
    from openai.types.chat import ChatCompletion

    _valid(ChatCompletion, fields)
    [choice] = fields["choices"]
    message = choice["message"]
    calls = [
        ("function", "", call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
    return Said(message.get("content") or "", calls, choice["finish_reason"])


def _chat_events(events: list[tuple[str, str]]) -> Said:
    from openai.types.chat import ChatCompletionChunk

    assert events and events[-1][1] == "[DONE]", "no [DONE] at the end"
    said, calls = Said(), dict[int, Json]()
    for _, data in events[:-1]:
        chunk = json.loads(data)
        assert "error" not in chunk, chunk
        _valid(ChatCompletionChunk, chunk)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            said.text += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                begun = calls.setdefault(call["index"], {"name": "", "arguments": ""})
                for name, value in call.get("function", {}).items():
                    begun[name] += value or ""
            if choice.get("finish_reason"):
                assert not said.reason, "two finish reasons"
                said.reason = choice["finish_reason"]
    assert said.reason, "no finish reason"
    said.calls = [("function", "", call["name"], call["arguments"]) for call in calls.values()]
    return said


# -- responses


def _response(fields: Json) -> Said:
    from openai.types.responses import Response

    _valid(Response, fields)
    said = Said(reason=fields["status"])
    for item in fields["output"]:
        if item["type"] == "message":
            said.text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            said.calls.append(("function", item.get("namespace") or "", item["name"], item["arguments"]))
        elif item["type"] == "custom_tool_call":
            said.calls.append(("custom", item.get("namespace") or "", item["name"], item["input"]))
    return said


def _response_events(events: list[tuple[str, str]]) -> Said:
    from openai.types.responses import ResponseStreamEvent

    kinds, opened, final = _by_type(ResponseStreamEvent), dict[str, Json](), dict[str, Any]()
    parsed = [(name, json.loads(data)) for name, data in events if data != "[DONE]"]
    assert parsed and parsed[0][0] == "response.created", parsed[:1]
    for number, (name, event) in enumerate(parsed):
        assert event["type"] == name != "error", event
        _valid(kinds[name], event)
        assert event["sequence_number"] == number, event
        if name == "response.output_item.added":
            opened[event["item"]["id"]] = event
        elif name == "response.output_item.done":
            begun = opened.pop(event["item"]["id"])
            assert begun["output_index"] == event["output_index"]
        elif "item_id" in event:
            assert opened[event["item_id"]]["output_index"] == event["output_index"], event
        elif name in ("response.completed", "response.incomplete", "response.failed"):
            final = event["response"]
    assert not opened, f"items that never end: {opened}"
    assert final, "no last event"
    return _response(final)


# -- messages


def _message(fields: Json) -> Said:
    from anthropic.types import Message

    _valid(Message, fields)
    said = Said(reason=fields["stop_reason"])
    for block in fields["content"]:
        if block["type"] == "text":
            said.text += block["text"]
        elif block["type"] == "tool_use":
            said.calls.append(("function", "", block["name"], json.dumps(block["input"])))
    return said


def _message_events(events: list[tuple[str, str]]) -> Said:
    from anthropic.lib.streaming._messages import accumulate_event
    from anthropic.types import RawMessageStreamEvent

    kinds, whole, opened = _by_type(RawMessageStreamEvent), None, None
    parts: Any = {}
    for name, data in events:
        event = json.loads(data)
        assert event["type"] == name != "error", event
        if name == "ping":
            continue
        checked = _valid(kinds[name], event)
        if name == "content_block_start":
            assert opened is None, "a block begins inside another"
            opened = event["index"]
        elif name.startswith("content_block_"):
            assert event["index"] == opened, f"block {event['index']} is not open"
            opened = None if name == "content_block_stop" else opened
        whole = accumulate_event(event=checked, current_snapshot=whole, json_bufs=parts)
    assert events and events[0][0] == "message_start" and events[-1][0] == "message_stop", events[-1:]
    assert whole is not None
    return _message(whole.model_dump(mode="json"))
