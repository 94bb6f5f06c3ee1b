"""Write one scripted answer in the forms of the three chat APIs, whole or streamed.

Sources: platform.openai.com/docs/api-reference/chat-streaming and /responses-streaming,
docs.anthropic.com/en/api/messages-streaming. All ids follow from the step, so a session stays the same
when it is recorded again.
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Event = tuple[str, Json | str]  # the event's name (may be empty), and its data

_TIME = 1_700_000_000
_PIECE = 12  # characters of streamed arguments


@dataclass(frozen=True)
class Call:
    """A call of a tool: `text` is its arguments as JSON, or free text if the tool is custom."""

    name: str
    text: str
    custom: bool = False


@dataclass(frozen=True)
class Answer:
    """The words of the assistant in this step."""

    step: int
    model: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str = ""

    def id(self, kind: str, index: int = 0) -> str:
        """Return an id of the form that the public servers use."""
        return f"{kind}_{self.step:012d}{index:012d}"


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


# -- chat completions


def chat_whole(answer: Answer) -> Json:
    message: Json = {"role": "assistant", "content": answer.text or None}
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": answer.id("call", index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for index, call in enumerate(answer.calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
    head = {"id": answer.id("chatcmpl"), "object": "chat.completion", "created": _TIME, "model": answer.model}
    return {**head, "choices": [choice], "usage": _chat_usage()}


def chat_stream(answer: Answer) -> Iterator[Event]:
    head: Json = {
        "id": answer.id("chatcmpl"),
        "object": "chat.completion.chunk",
        "created": _TIME,
        "model": answer.model,
    }

    def chunk(delta: Json, reason: str | None = None) -> Event:
        return "", {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": ""})
    for word in _words(answer.thought):
        yield chunk({"reasoning_content": word})
    for word in _words(answer.text):
        yield chunk({"content": word})
    for index, call in enumerate(answer.calls):
        begun = {"index": index, "id": answer.id("call", index), "type": "function"}
        yield chunk({"tool_calls": [{**begun, "function": {"name": call.name, "arguments": ""}}]})
        for at in range(0, len(call.text), _PIECE):
            more = {"index": index, "function": {"arguments": call.text[at : at + _PIECE]}}
            yield chunk({"tool_calls": [more]})
    yield chunk({}, _finish(answer))
    yield "", {**head, "choices": [], "usage": _chat_usage()}
    yield "", "[DONE]"


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _chat_usage() -> Json:
    return {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


# -- responses


def response_whole(answer: Answer) -> Json:
    return _response(answer, _items(answer), "completed")


def response_stream(answer: Answer) -> Iterator[Event]:
    items, numbers = _items(answer), itertools.count()

    def event(kind: str, **fields: object) -> Event:
        return kind, {"type": kind, "sequence_number": next(numbers), **fields}

    begun = _response(answer, [], "in_progress")
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(items):
        empty = {"content": [], "arguments": "", "input": "", "summary": []}
        started = {field: empty.get(field, value) for field, value in item.items()}
        if "status" in started:
            started["status"] = "in_progress"
        yield event("response.output_item.added", output_index=index, item=started)
        for kind, fields in _item_parts(item):
            yield event(f"response.{kind}", output_index=index, item_id=item["id"], **fields)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=_response(answer, items, "completed"))


def _item_parts(item: Json) -> Iterator[tuple[str, Json]]:
    """Yield the events between an item's first and last, without the fields that all have."""
    if item["type"] == "message":
        [part] = item["content"]
        at: Json = {"content_index": 0}
        yield "content_part.added", {**at, "part": {**part, "text": ""}}
        for word in _words(part["text"]):
            yield "output_text.delta", {**at, "delta": word, "logprobs": []}
        yield "output_text.done", {**at, "text": part["text"], "logprobs": []}
        yield "content_part.done", {**at, "part": part}
    elif item["type"] == "reasoning":
        [part] = item["summary"]
        at = {"summary_index": 0}
        yield "reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
        yield "reasoning_summary_text.delta", {**at, "delta": part["text"]}
        yield "reasoning_summary_text.done", {**at, "text": part["text"]}
        yield "reasoning_summary_part.done", {**at, "part": part}
    elif item["type"] == "custom_tool_call":
        yield "custom_tool_call_input.delta", {"delta": item["input"]}
        yield "custom_tool_call_input.done", {"input": item["input"]}
    else:
        yield "function_call_arguments.delta", {"delta": item["arguments"]}
        yield "function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}


def _items(answer: Answer) -> list[Json]:
    items: list[Json] = []
    if answer.thought:
        summary = [{"type": "summary_text", "text": answer.thought}]
        opaque = {"id": answer.id("rs"), "encrypted_content": "b3BhcXVl"}
        items.append({"type": "reasoning", **opaque, "summary": summary})
    if answer.text:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        said = {"id": answer.id("msg"), "status": "completed", "role": "assistant", "content": [part]}
        items.append({"type": "message", **said})
    for index, call in enumerate(answer.calls):
        ids = {"id": answer.id("fc", index), "call_id": answer.id("call", index), "name": call.name}
        kind, field = ("custom_tool_call", "input") if call.custom else ("function_call", "arguments")
        items.append({"type": kind, **ids, field: call.text, "status": "completed"})
    return items


def _response(answer: Answer, items: list[Json], status: str) -> Json:
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    details = {
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": answer.id("resp"),
        "object": "response",
        "created_at": _TIME,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": answer.model,
        "output": items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {**usage, **details} if status == "completed" else None,
    }


# -- messages


def message_whole(answer: Answer) -> Json:
    return _message(answer, _blocks(answer), "tool_use" if answer.calls else "end_turn")


def message_stream(answer: Answer) -> Iterator[Event]:
    def event(kind: str, **fields: object) -> Event:
        return kind, {"type": kind, **fields}

    yield event("message_start", message=_message(answer, [], None))
    for index, block in enumerate(_blocks(answer)):
        empty = {"text": "", "thinking": "", "signature": "", "input": {}}
        started = {field: empty.get(field, value) for field, value in block.items()}
        yield event("content_block_start", index=index, content_block=started)
        for delta in _deltas(block):
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    reason = "tool_use" if answer.calls else "end_turn"
    ended = {"stop_reason": reason, "stop_sequence": None}
    yield event("message_delta", delta=ended, usage={"output_tokens": 10})
    yield event("message_stop")


def _deltas(block: Json) -> Iterator[Json]:
    if block["type"] == "text":
        for word in _words(block["text"]):
            yield {"type": "text_delta", "text": word}
    elif block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        yield {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}


def _blocks(answer: Answer) -> list[Json]:
    blocks: list[Json] = []
    if answer.thought:
        blocks.append({"type": "thinking", "thinking": answer.thought, "signature": "c2lnbmF0dXJl"})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    for index, call in enumerate(answer.calls):
        used = {"id": answer.id("toolu", index), "name": call.name, "input": json.loads(call.text)}
        blocks.append({"type": "tool_use", **used})
    return blocks


def _message(answer: Answer, blocks: list[Json], reason: str | None) -> Json:
    return {
        "id": answer.id("msg"),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": blocks,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 10},
    }
