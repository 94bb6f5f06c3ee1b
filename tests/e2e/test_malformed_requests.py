"""No fault of a request is told as the server's: malformed bodies for each path, to a real llama-server.

The gateway is real. Valid bodies are mutated anywhere. Values that may
end llama-server are those of test_mesh_hostile_requests.py.
"""

import asyncio
import json
import random
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import aiohttp
import pytest
from meshd.build.interface import LLAMA_SERVER
from meshd.gateway.dialects.fields import ENDPOINTS, Endpoint
from meshd.gateway.interface import GatewayConfig
from meshd.gateway.paths import SHOW_PATH

from tests.e2e.models import stock
from tests.e2e.native_rig import Head
from tests.e2e.random_models import random_model
from tests.hostile_dialects import DIALECTS
from tests.process.gateway_fake import says, world
from tests.soak import SEED, counts

pytestmark = [pytest.mark.native, pytest.mark.timeout(1200)]

BODIES = counts(40, 400)  # for each path
SECONDS = 900.0  # only a hang comes near it
# offers tools, which the model's own does not
_TEMPLATE = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}</s>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
_SCHEMA = {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"type": "integer"}}}
_FUNCTION = {"name": "f", "description": "d", "parameters": _SCHEMA}
_PICTURE = "data:image/png;base64,iVBORw0KGgo="
_CHAT: dict[str, object] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ],
    "tools": [{"type": "function", "function": _FUNCTION}],
    "tool_choice": "auto",
    "max_tokens": 1,
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": True},
}
_SHOWN = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": _PICTURE}}]}]
_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}}
_RESPONSE: dict[str, object] = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
        {"type": "reasoning", "id": "r1", "summary": []},
    ],
    "instructions": "s",
    "tools": [{"type": "function", **_FUNCTION}],
    "tool_choice": {"type": "function", "name": "f"},
    "reasoning": {"effort": "low"},
    "max_output_tokens": 1,
}
_MESSAGES: dict[str, object] = {
    "messages": [
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": "x"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "r"}]},
    ],
    "system": [{"type": "text", "text": "s"}],
    "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "auto"},
    "max_tokens": 1,
}
_VALID: Mapping[Endpoint, list[dict[str, object]]] = {
    Endpoint.CHAT: [
        _CHAT,
        {"messages": [{"role": "user", "content": "u"}], "response_format": _FORMAT, "max_tokens": 1},
    ],
    Endpoint.COMPLETION: [
        {"prompt": "a", "max_tokens": 1, "logit_bias": {"5": 1.0}, "stop": ["x"]},
        {"prompt": [1, "a"], "n_predict": 1},
    ],
    Endpoint.INFILL: [
        {
            "input_prefix": "a",
            "input_suffix": "b",
            "input_extra": [{"filename": "f", "text": "t"}],
            "n_predict": 1,
        }
    ],
    Endpoint.EMBEDDINGS: [{"input": ["a", [1, 2]]}, {"content": "a"}],
    Endpoint.RERANK: [{"query": "a", "documents": ["a", "b"], "top_n": 1}],
    Endpoint.TOKENIZE: [{"content": ["a", 1], "with_pieces": True}],
    Endpoint.DETOKENIZE: [{"tokens": [1, 2]}],
    Endpoint.CONTROL: [{"id": "chatcmpl-1", "action": "reasoning_end"}],
}
_RESPONSES: list[dict[str, object]] = [
    _RESPONSE,
    {"input": "u", "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}}},
]
_OLLAMA: Mapping[str, dict[str, object]] = {
    "/api/chat": {
        "messages": [
            {"role": "user", "content": "u", "images": []},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
            },
            {"role": "tool", "content": "r", "tool_name": "f"},
        ],
        "tools": [{"type": "function", "function": _FUNCTION}],
        "format": _SCHEMA,
        "options": {"num_predict": 1, "temperature": 0.5, "stop": ["x"]},
        "stream": False,
    },
    "/api/generate": {
        "prompt": "a",
        "system": "s",
        "format": "json",
        "options": {"num_predict": 1},
        "stream": False,
    },
    "/api/embed": {"input": ["a"]},
    "/api/embeddings": {"prompt": "a"},
    "/api/show": {"model": "m"},
}
# Paths whose bodies a dialect translates.
_TRANSLATED: Mapping[str, list[dict[str, object]]] = {
    **{f"{prefix}/responses{end}": _RESPONSES for prefix in ("/v1", "") for end in ("", "/input_tokens")},
    **{f"/v1/messages{end}": [_MESSAGES] for end in ("", "/count_tokens")},
    **{path: [one] for path, one in _OLLAMA.items()},
}
_JUNK: tuple[object, ...] = (
    _SHOWN,
    _SHOWN[0],
    *(
        None,
        True,
        False,
        0,
        -1,
        3,
        1.5,
        10**12,
        "",
        "a",
        "\0",
        "\ud800",
        "\u00e9",
        [],
        {},
        [[]],
        [None],
        [{}],
        {"a": 1},
    ),
    *(
        {"type": "function"},
        {"type": ["null"]},
        {"type": "bogus"},
        {"$ref": "#/x"},
        {"anyOf": []},
        {"enum": []},
    ),
    *(
        "data:image/png;base64,",
        "auto",
        "function",
        "assistant",
        "tool",
        "{",
        [5_000_000],
        [-1],
        "<s>",
        "{{ x }}",
    ),
)


def _mutated(rng: random.Random, valid: object) -> object:
    """Return a copy with one to three of its parts replaced, dropped or doubled."""
    body = deepcopy(valid)
    for _ in range(rng.randrange(1, 4)):
        at = body
        while isinstance(at, dict | list) and at:
            key: object = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
            inner = at[key]  # type: ignore[call-overload]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.75:
                at = inner
                continue
            if rng.random() < 0.25:
                del at[key]  # type: ignore[arg-type]
            elif isinstance(at, list) and rng.random() < 0.2:
                at.append(deepcopy(inner))
            else:
                at[key] = deepcopy(rng.choice(_JUNK))  # type: ignore[call-overload]
            break
    return body


def _valid(path: str) -> list[dict[str, object]]:
    return _TRANSLATED[path] if path in _TRANSLATED else _VALID[ENDPOINTS[path]]


async def _faults(head: Head, paths: list[str]) -> list[str]:
    """Ask a gateway before `head`; return what was answered with 5xx, and for what."""
    found = []
    async with world(says(500, {}), config=GatewayConfig(port=0), seconds=SECONDS) as here:
        here.upstream.socket_path = head.socket_path
        for path in paths:
            rng = random.Random(f"{SEED} {path}")
            for one in _valid(path):
                async with here.http.post(here.url + path, json={**one, "max_output_tokens": 1}) as answer:
                    assert answer.status in (200, 501 if path == "/infill" else 200), await answer.text()
            for _ in range(BODIES):
                body = json.dumps(_mutated(rng, rng.choice(_valid(path))))
                timeout = aiohttp.ClientTimeout(60)
                headers = {"Content-Type": "application/json"}
                async with here.http.post(
                    here.url + path, data=body, headers=headers, timeout=timeout
                ) as answer:
                    said = await answer.text()
                # the model has no tokens for filling in, and says so
                lacks = path == "/infill" and answer.status == 501 and "not_served" in said
                if (answer.status >= 500 and not lacks) or "server_error" in said:
                    found.append(f"{path}: {answer.status} {said[:300]} for {body[:1500]}")
                assert head.process.poll() is None, f"llama-server ended at {path} with {body[:3000]}"
    return found


@pytest.mark.parametrize(
    ("extra", "endpoints"),
    [
        ((), set(Endpoint) - {Endpoint.EMBEDDINGS, Endpoint.RERANK}),
        (("--embeddings", "--pooling", "mean"), {Endpoint.EMBEDDINGS}),
        (("--reranking",), {Endpoint.RERANK}),
    ],
    ids=["generation", "embeddings", "reranking"],
)
def test_no_fault_of_a_request_is_told_as_the_servers(
    extra: tuple[str, ...], endpoints: set[Endpoint], tmp_path: Path
) -> None:
    assert _TRANSLATED.keys() == {*DIALECTS, SHOW_PATH}
    paths = [path for path, endpoint in ENDPOINTS.items() if endpoint in endpoints]
    if Endpoint.RERANK not in endpoints:
        embeds = Endpoint.EMBEDDINGS in endpoints
        paths += [path for path in _TRANSLATED if ("embed" in path) == embeds]
    template = tmp_path / "template.jinja"
    template.write_text(_TEMPLATE, encoding="utf-8")
    extra = (*extra, "--jinja", "--chat-template-file", str(template))
    with Head(stock().binaries[LLAMA_SERVER], tmp_path, random_model("llama"), [], extra=extra) as head:
        faults = asyncio.run(_faults(head, paths))
    assert not faults, "\n".join(faults)
