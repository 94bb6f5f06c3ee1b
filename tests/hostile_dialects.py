"""Hostile requests for each path of the API: those of llama-server's own forms are drawn from the gateway's
table, those of a dialect from what the dialect reads.

A form below describes a value: an object has its fields, a list and `Many` some of their forms, a tuple is a
choice, a function draws, and everything else is itself. Anywhere, another value may stand instead.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshd.gateway.dialects.dialect import RequestFacts
from meshd.gateway.dialects.fields import ENDPOINTS, Endpoint
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.paths import ROUTES
from meshd.gateway.request import upstream_request

from tests.hostile_requests import SCHEMAS, any_value, hostile_fields, hostile_value

FACTS = RequestFacts("0" * 24, 1, "m")
_ODDS = 0.06  # of another value, at each place
_PICTURE = "data:image/png;base64,iVBORw0KGgo="
_TEXT = ("u", "", "x " * 3000, "\0", "{", "\u00e9\u200b", "f")
_URL = (_PICTURE, "http://127.0.0.1:1/x", "file:///etc/passwd", "data:,", "data:image/png;base64,=")
_EFFORT = ("none", "minimal", "low", "high", "xhigh", "max", "x" * 100)


def _schema(rng: random.Random) -> object:
    return rng.choice(SCHEMAS)


def _field_of(name: str) -> Callable[[random.Random], object]:
    return lambda rng: hostile_value(rng, name)


@dataclass(frozen=True)
class Many:
    """A list of none, a few or `most` of a form."""

    form: object
    most: int


# OpenAI's Responses API.
_PARTS = (
    {"type": ("input_text", "output_text", "text", "summary_text", "reasoning_text"), "text": _TEXT},
    {"type": "refusal", "refusal": _TEXT},
    {"type": "input_image", "image_url": (_URL, {"url": _URL}), "file_id": "f"},
    {"type": "input_file", "filename": _TEXT, "file_data": _PICTURE},
    {"type": "input_audio", "input_audio": {"data": ("UklGRg==", "="), "format": ("wav", "x")}},
    {"type": ("computer_screenshot", "encrypted_content", "bogus")},
)
_CONTENT = (_TEXT, [_PARTS])
_CALL_ID = ("c1", "c2", "")
_ITEM: object = (
    {"type": "message", "role": ("user", "assistant", "system", "developer", "tool"), "content": _CONTENT},
    {"role": ("user", "assistant"), "content": _CONTENT},
    {"type": "reasoning", "id": "r", "summary": [], "content": (None, [_PARTS])},
    {
        "type": ("function_call", "custom_tool_call"),
        "call_id": _CALL_ID,
        "id": "i",
        "name": ("f", "", "n__f"),
        "namespace": (None, "n", "n__"),
        "arguments": ("{}", "{", '{"a": "x', "", {"a": 1}),
        "input": _TEXT,
    },
    {
        "type": ("function_call_output", "custom_tool_call_output"),
        "call_id": _CALL_ID,
        "output": (_TEXT, None, [_PARTS], {"a": 1}),
    },
    {
        "type": ("local_shell_call", "shell_call", "apply_patch_call"),
        "call_id": _CALL_ID,
        "action": {"command": ["ls"]},
        "operation": {"diff": _TEXT},
    },
    {"type": ("local_shell_call_output", "shell_call_output"), "call_id": _CALL_ID, "output": ("", [{}])},
    {"type": ("web_search_call", "mcp_call", "item_reference", "compaction", "bogus"), "id": "i"},
)
_RESPONSES_FUNCTION = {
    "type": ("function", "custom"),
    "name": ("f", "g", "", "x" * 300),
    "description": _TEXT,
    "parameters": (_schema, None),
    "strict": (True, False, None),
    "format": {"type": "grammar", "syntax": "lark", "definition": _TEXT},
}
_RESPONSES_TOOL = (
    _RESPONSES_FUNCTION,
    {"type": "namespace", "name": ("n", "n__"), "tools": Many(_RESPONSES_FUNCTION, 40)},
    {"type": ("web_search", "mcp", "code_interpreter", "bogus")},
)
_CHOICE = {"type": ("function", "custom"), "name": ("f", "no"), "namespace": (None, "n")}
RESPONSES: Mapping[str, object] = {
    "input": (_TEXT, [_ITEM], Many(_ITEM, 30)),
    "instructions": (_TEXT, None),
    "tools": (Many(_RESPONSES_TOOL, 40), None),
    "tool_choice": (
        ("auto", "none", "required"),
        _CHOICE,
        {"type": "allowed_tools", "mode": ("auto", "required"), "tools": [_CHOICE]},
        {"type": "web_search"},
    ),
    "text": {
        "format": (
            {"type": "json_schema", "name": "n", "schema": _schema},
            {"type": ("text", "json_object", "x")},
        )
    },
    "reasoning": {"effort": _EFFORT, "summary": "auto"},
    "stream": (True, False),
    "max_output_tokens": (8, 0, -1, 1.5, 1 << 40),
    "temperature": (0, 1, 2, 2.1, -1),
    "top_p": (0, 0.5, 1, 1.1),
    "top_logprobs": (0, 5, 20, 21),
    "previous_response_id": (None, "resp_1"),
    "conversation": (None, "c"),
    "prompt": (None, {"id": "p"}),
    "background": (False, True),
    "metadata": ({}, {"a": "b"}, None),
    "truncation": ("auto", "disabled", None),
}

# Anthropic's Messages API.
_SOURCE = (
    {"type": "base64", "media_type": ("image/png", "application/pdf", ""), "data": ("iVBORw0KGgo=", "=")},
    {"type": "url", "url": _URL},
    {"type": "text", "data": _TEXT, "media_type": "text/plain"},
    {"type": "content", "content": (_TEXT, [{"type": ("text", "image", "x"), "text": _TEXT}])},
)
_BLOCK = (
    {"type": "text", "text": _TEXT},
    {"type": "image", "source": _SOURCE},
    {"type": "document", "source": _SOURCE, "title": _TEXT, "context": _TEXT},
    {"type": "search_result", "title": _TEXT, "source": _TEXT, "content": [{"type": "text", "text": _TEXT}]},
    {"type": "thinking", "thinking": _TEXT, "signature": "s"},
    {"type": ("redacted_thinking", "server_tool_use", "web_search_tool_result", "bogus")},
)
_CALLING = {"type": "tool_use", "id": _CALL_ID, "name": ("f", ""), "input": ({}, {"a": "x"}, "{", None)}
_RESULT = {
    "type": "tool_result",
    "tool_use_id": _CALL_ID,
    "is_error": (True, False),
    "content": (_TEXT, [_BLOCK], None),
}
_MESSAGE = {
    "role": ("user", "assistant", "system", "bob"),
    "content": (_TEXT, [(*_BLOCK, _CALLING, _RESULT)]),
}
MESSAGES: Mapping[str, object] = {
    "messages": ([_MESSAGE], Many(_MESSAGE, 30)),
    "system": (_TEXT, [{"type": "text", "text": (*_TEXT, "x-anthropic-billing-header: cch=00000;")}], None),
    "max_tokens": (8, 1, 0, -1, 1.5, 1 << 40),
    "stop_sequences": (["x"], [], ["x" * 2000], ["x"] * 100, None),
    "stream": (True, False),
    "temperature": (0, 1, 1.1, -1),
    "top_p": (0, 0.5, 1, 1.1),
    "top_k": (0, 40, -1, 1 << 40),
    "tools": Many(
        (
            {"name": ("f", "g", ""), "description": _TEXT, "input_schema": (_schema, None)},
            {"type": ("custom", "web_search_20250305", "bash_20250124"), "name": "f"},
        ),
        40,
    ),
    "tool_choice": {
        "type": ("auto", "none", "any", "tool", "bogus"),
        "name": ("f", "no"),
        "disable_parallel_tool_use": (True, False),
    },
    "thinking": {"type": ("enabled", "disabled", "adaptive"), "budget_tokens": (None, 0, 1024, -1, 1 << 40)},
    "output_config": {"effort": _EFFORT, "format": (None, {"type": "json_schema", "schema": _schema})},
    "output_format": (None, {"type": ("json_schema", "x"), "schema": _schema}),
    "chat_template_kwargs": ({}, {"enable_thinking": True}, {"add_generation_prompt": 1}),
    "seed": _field_of("seed"),
    "min_p": _field_of("min_p"),
    "mcp_servers": (None, [], [{"type": "url", "url": "http://127.0.0.1:9/", "name": "n"}], "bogus", 5),
    "model": _TEXT,
}

# Ollama's API.
_OPTIONS = {
    **{name: _field_of(name) for name in ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty")},
    **{name: _field_of(name) for name in ("presence_penalty", "frequency_penalty", "mirostat_tau")},
    **{name: _field_of(name) for name in ("mirostat_eta", "seed", "top_k", "repeat_last_n", "mirostat")},
    "num_predict": (8, 1, 0, -1, -2),
    "stop": (["x"], "x", [], ["x"] * 100, "x" * 2000),
    "num_ctx": _field_of("n_keep"),
}
_IMAGES: object = (None, [], [("iVBORw0KGgo=", "/9j/", "UklGRg==", "=", "\u00e9", "")])
_OLLAMA_FORMAT = ("json", "", "xml", _schema)
_THINK = (None, True, False, "low", "max", "x")
_OLLAMA_MESSAGE = {
    "role": ("system", "user", "assistant", "tool", "bob"),
    "content": _TEXT,
    "images": _IMAGES,
    "thinking": _TEXT,
    "tool_name": ("f", ""),
    "name": ("f", ""),
    "tool_call_id": _CALL_ID,
    "tool_calls": (
        None,
        [{"id": _CALL_ID, "function": {"name": ("f", ""), "arguments": ({}, {"a": 1}, "{", None)}}],
    ),
}
OLLAMA_CHAT: Mapping[str, object] = {
    "messages": ([_OLLAMA_MESSAGE], Many(_OLLAMA_MESSAGE, 30)),
    "tools": (
        Many(
            {"type": "function", "function": {"name": "f", "description": _TEXT, "parameters": _schema}}, 40
        ),
        None,
    ),
    "format": _OLLAMA_FORMAT,
    "think": _THINK,
    "options": _OPTIONS,
    "stream": (True, False),
}
OLLAMA_GENERATE: Mapping[str, object] = {
    "prompt": _TEXT,
    "suffix": (None, _TEXT),
    "system": _TEXT,
    "images": _IMAGES,
    "raw": (True, False),
    "format": _OLLAMA_FORMAT,
    "think": _THINK,
    "options": _OPTIONS,
    "stream": (True, False),
}
OLLAMA_EMBED: Mapping[str, object] = {"input": (_TEXT, [_TEXT], ["a"] * 3000), "dimensions": (None, 8, -1)}

_USER = [{"role": "user", "content": "hi"}]
_RESPONSE = {"input": "hi", "max_output_tokens": 8}
_MESSAGES = {"messages": _USER, "max_tokens": 8}
# For each path of a dialect: what it reads, and a small request.
DIALECTS: Mapping[str, tuple[Mapping[str, object], dict[str, object]]] = {
    "/v1/responses": (RESPONSES, _RESPONSE),
    "/v1/responses/input_tokens": (RESPONSES, _RESPONSE),
    "/responses": (RESPONSES, _RESPONSE),
    "/responses/input_tokens": (RESPONSES, _RESPONSE),
    "/v1/messages": (MESSAGES, _MESSAGES),
    "/v1/messages/count_tokens": (MESSAGES, _MESSAGES),
    "/api/chat": (OLLAMA_CHAT, {"messages": _USER, "options": {"num_predict": 8}, "stream": False}),
    "/api/generate": (OLLAMA_GENERATE, {"prompt": "hi", "options": {"num_predict": 8}, "stream": False}),
    "/api/embed": (OLLAMA_EMBED, {"input": "a"}),
    "/api/embeddings": ({"prompt": _TEXT, "dimensions": (None, 8)}, {"prompt": "a"}),
}
_SMALL: Mapping[Endpoint, dict[str, object]] = {
    Endpoint.CHAT: {"messages": _USER, "max_tokens": 8},
    Endpoint.COMPLETION: {"prompt": "Once upon", "max_tokens": 8},
    Endpoint.INFILL: {"input_prefix": "a", "input_suffix": "b", "n_predict": 8},
    Endpoint.EMBEDDINGS: {"input": "a"},
    Endpoint.RERANK: {"query": "a", "documents": ["a", "b"]},
    Endpoint.TOKENIZE: {"content": "a"},
    Endpoint.DETOKENIZE: {"tokens": [1]},
    Endpoint.CONTROL: {"id": "chatcmpl-1", "action": "reasoning_end"},
}


def small(path: str) -> dict[str, object]:
    """Return a small request for this path."""
    return DIALECTS[path][1] if path in DIALECTS else _SMALL[ENDPOINTS[path]]


def draw(rng: random.Random, form: object) -> object:
    """Return a value of this form, or with others anywhere in it."""
    if rng.random() < _ODDS:
        return any_value(rng)
    if isinstance(form, dict):
        return {name: draw(rng, one) for name, one in form.items() if rng.random() < 0.9}
    if isinstance(form, list):
        return [draw(rng, rng.choice(form)) for _ in range(rng.randrange(1, 4))] if form else []
    if isinstance(form, Many):
        return [draw(rng, form.form) for _ in range(rng.choice([0, 1, 2, form.most]))]
    if isinstance(form, tuple):
        return draw(rng, rng.choice(form))
    return form(rng) if callable(form) else form


def hostile(rng: random.Random, path: str) -> dict[str, object]:
    """Return one to four fields for this path with values of all kinds."""
    if path not in DIALECTS:
        return hostile_fields(rng, ENDPOINTS[path])
    form, _ = DIALECTS[path]
    fields = {
        name: draw(rng, form[name]) for name in rng.sample(sorted(form), min(len(form), rng.randrange(1, 5)))
    }
    # the Responses API takes llama-server's own fields as well
    return {**hostile_fields(rng, Endpoint.CHAT), **fields} if rng.random() < 0.3 else fields


def admitted(rng: random.Random, path: str) -> dict[str, object]:
    """Return the same as an attacker does who knows the bounds: what the gateway passes on."""
    while True:
        asked = hostile(rng, path)
        for name in list(asked):
            if not is_admitted(path, {**small(path), name: asked[name]}):
                del asked[name]
        if asked and is_admitted(path, {**small(path), **asked}):
            return asked


def is_admitted(path: str, asked: Mapping[str, object]) -> bool:
    """Say whether the gateway passes a request on."""
    try:
        upstream_request(ROUTES[path].dialect.read(dict(asked), FACTS))
    except HttpRefusal as refusal:
        assert refusal.failure.status == 400
        return False
    return True
