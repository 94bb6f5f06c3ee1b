"""Answer chats as llama-server does, for the tests of dialects: streams, whole and hostile answers."""

import json
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import httpx2
from hypothesis import strategies as st
from meshd.gateway.dialects.dialect import Answering, RequestFacts

FACTS = RequestFacts("0123456789abcdef01234567", 1_700_000_000, "tiny")
DONE = b"data: [DONE]\n\n"
USAGE = {
    "completion_tokens": 5,
    "prompt_tokens": 20,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 8},
}


def event(fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(fields: object, reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": reason}], "id": "chatcmpl-x"})


def text(said: str) -> bytes:
    return delta({"content": said})


def thought(said: str) -> bytes:
    return delta({"reasoning_content": said})


def call(number: int, arguments: str, name: str = "") -> bytes:
    head = {"id": f"id{number}", "type": "function"} if name else {}
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return delta({"tool_calls": [{"index": number, **head, "function": function}]})


def end(reason: str = "stop") -> bytes:
    return delta({}, reason) + event({"choices": [], "usage": USAGE}) + DONE


BEGIN = delta({"role": "assistant", "content": None})


def whole(
    said: str = "", thinks: str = "", calls: Iterable[tuple[str, str]] = (), reason: str = "stop"
) -> dict[str, object]:
    made = [
        {"type": "function", "id": f"id{at}", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": said, "reasoning_content": thinks, "tool_calls": made}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": USAGE}


def transport(body: bytes) -> httpx2.Client:
    """A client of HTTP for a library, to which each request is answered with this stream."""
    head = {"content-type": "text/event-stream"}
    answer = partial(httpx2.Response, 200, headers=head, content=body)
    return httpx2.Client(transport=httpx2.MockTransport(lambda _request: answer()))


def streamed(answering: Answering, *events: bytes) -> list[dict[str, Any]]:
    """The client's events, whose names and types agree."""
    return events_in(b"".join(answering.events(one) for one in events))


def events_in(stream: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream in which each has a name, which is its type."""
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = re.fullmatch(r"event: (\S+)\ndata: (.*)", block, re.DOTALL).groups()  # type: ignore[union-attr]
        fields = json.loads(data)
        assert fields["type"] == name
        found.append(fields)
    return found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("messages", "input", "role", "content", "type", "text", "tools", "name", "tool_choice"),
                    *("source", "data", "media_type", "id", "call_id", "output", "arguments", "tool_use_id"),
                    *("max_tokens", "system", "instructions", "function", "choices", "delta", "tool_calls"),
                    *("index", "usage", "error", "message", "finish_reason", "format", "schema", "thinking"),
                    *("reasoning", "text", "title", "context", "image_url", "output_config", "mode"),
                    *("images", "seed"),
                ]
            ),
            inner
            | st.sampled_from(
                [
                    *("user", "assistant", "system", "tool", "text", "message", "function", "custom"),
                    *("tool_use", "tool_result", "document", "image", "function_call", "reasoning"),
                    *("function_call_output", "namespace", "json_schema", "base64", "search_result"),
                    *("input_text", "input_image", "allowed_tools", "enabled", "local_shell_call"),
                ]
            ),
            max_size=5,
        )
    ),
    max_leaves=25,
)
