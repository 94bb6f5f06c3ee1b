"""A key is charged at least what llama-server computes for it, whatever is asked for and in whatever form.

The fake llama-server answers as the pinned one writes it (tools/server/server-task.cpp, the `to_json` of each
result, and server-common.cpp, format_embeddings_response_oaicompat and format_response_rerank).
"""

import json
from collections.abc import Mapping, Sequence

import aiohttp
import pytest
from aiohttp import web
from meshd.gateway.dialects.fields import ENDPOINTS, Endpoint
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits
from meshd.gateway.paths import ROUTES
from meshd.gateway.upstream import HELD_ANSWER_BYTES

from tests.process.gateway_fake import DONE, FakeServer, World, begin_stream, event, world

KEY = "sk-0123456789"
CONFIG = GatewayConfig(port=0, api_keys=(ApiKey(KEY, "anna", KeyLimits(tokens_per_day=1_000_000)),))
GENERATED = 5  # tokens of each answer, in a single piece: some tokens are no whole letter
TEXT = "a long text to read " * 50
IDS = list(range(10_000, 10_300))
SPECIAL = 2  # tokens around each input
Json = dict[str, object]


def tokens(value: object) -> int:
    """Of a prompt: of four letters each, or as they are given."""
    if isinstance(value, str):
        return -(-len(value) // 4)
    if isinstance(value, list):
        return sum(map(tokens, value))
    if isinstance(value, dict):
        return sum(tokens(one) for name, one in value.items() if name in ("content", "text", "prompt_string"))
    return 1


class Computing:
    """A fake llama-server that notes what it computes; `padding` makes whole answers long."""

    def __init__(self, *, padding: int = 0) -> None:
        self.computed = 0
        self._padding = "x" * padding

    async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if "transcriptions" in request.path:
            return web.json_response(self._transcript())
        asked: Json = json.loads(server.seen[-1][3])
        if request.path == "/apply-template":
            return web.json_response({"prompt": ""})
        endpoint = ENDPOINTS[request.path]
        if endpoint is Endpoint.RERANK:
            return web.json_response(self._ranked(asked))
        if endpoint is Endpoint.EMBEDDINGS:
            return web.json_response(self._embedded(asked, native=request.path != "/v1/embeddings"))
        native = endpoint is Endpoint.INFILL or request.path in ("/completion", "/completions")
        prompt = sum(
            tokens(asked.get(one, "")) for one in ("prompt", "messages", "input_prefix", "input_suffix")
        )
        choices = asked.get("n_cmpl", asked.get("n", 1))
        assert isinstance(choices, int)
        self.computed += prompt + GENERATED * choices
        if not asked.get("stream"):
            ends = [self._native(asked, prompt) if native else self._openai(prompt) for _ in range(choices)]
            if not native:  # the usage is that of the first one
                return web.json_response(
                    {**ends[0], "choices": [{"index": 0, "text": self._padding}] * choices}
                )
            return web.json_response(ends if choices > 1 else ends[0])
        response = await begin_stream(request)
        for index in range(choices):
            await response.write(self._piece(index, prompt, native=native))
        for index in range(choices):
            end = self._native(asked, prompt) if native else self._last(prompt, index)
            await response.write(event(end))
        if not native:
            await response.write(DONE)
        return response

    def _timings(self, prompt: int) -> Json:
        return {
            "cache_n": 1,
            "prompt_n": prompt - 1,
            "prompt_ms": 1.0,
            "predicted_n": GENERATED,
            "predicted_ms": 1.0,
        }

    def _piece(self, index: int, prompt: int, *, native: bool) -> bytes:
        if native:
            told = {"tokens_predicted": 1, "tokens_evaluated": prompt}
            return event(
                {"index": index, "content": "so", "tokens": [1], "stop": False, "id_slot": 0, **told}
            )
        choice = {
            "index": index,
            "delta": {"content": "so"},
            "text": "so",
            "logprobs": None,
            "finish_reason": None,
        }
        return event({"choices": [choice], "object": "chat.completion.chunk"})

    def _native(self, asked: Mapping[str, object], prompt: int) -> Json:
        whole: Json = {
            "index": 0,
            "content": self._padding,
            "stop": True,
            "tokens_predicted": GENERATED,
            "tokens_evaluated": prompt,
            "prompt": "",
            "timings": self._timings(prompt),
        }
        wanted = asked.get("response_fields") or list(whole)
        assert isinstance(wanted, list)
        return {name: whole[name] for name in wanted if name in whole}

    def _openai(self, prompt: int) -> Json:
        message = {"role": "assistant", "content": "so"}
        return {
            "choices": [{"index": 0, "text": self._padding, "message": message, "finish_reason": "stop"}],
            "usage": {
                "completion_tokens": GENERATED,
                "prompt_tokens": prompt,
                "total_tokens": GENERATED + prompt,
            },
            "timings": self._timings(prompt),
        }

    def _last(self, prompt: int, index: int) -> Json:
        end: Json = {"choices": [{"index": index, "delta": {}, "text": "", "finish_reason": "stop"}]}
        return {**end, "timings": self._timings(prompt)}

    def _transcript(self) -> Json:
        self.computed += 50 + GENERATED
        usage = {"type": "tokens", "input_tokens": 50, "output_tokens": GENERATED}
        return {"type": "transcript.text.done", "text": "so", "usage": usage}

    def _embedded(self, asked: Mapping[str, object], *, native: bool) -> object:
        given = asked.get("input", asked.get("content"))
        inputs = [given] if not isinstance(given, list) or isinstance(given[0], int) else given
        took = sum(tokens(one) + SPECIAL * isinstance(one, str) for one in inputs)
        self.computed += took
        if native or "input" not in asked:
            return [{"index": at, "embedding": [[0.5]]} for at, _ in enumerate(inputs)]
        data = [{"embedding": [0.5], "index": at, "object": "embedding"} for at, _ in enumerate(inputs)]
        return {"object": "list", "usage": {"prompt_tokens": took, "total_tokens": took}, "data": data}

    def _ranked(self, asked: Mapping[str, object]) -> object:
        documents = asked.get("documents", asked.get("texts"))
        assert isinstance(documents, list)
        took = sum(tokens(asked["query"]) + tokens(one) + 2 * SPECIAL for one in documents)
        self.computed += took
        if "texts" in asked:  # the form of Text Embeddings Inference
            return [{"index": at, "score": 0.5} for at, _ in enumerate(documents)]
        results = [{"index": at, "relevance_score": 0.5} for at, _ in enumerate(documents)]
        return {"object": "list", "usage": {"prompt_tokens": took, "total_tokens": took}, "results": results}


MESSAGES: Json = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": GENERATED}
PROMPTS: list[Json] = [{"prompt": TEXT}, {"prompt": [TEXT, TEXT]}, {"prompt": IDS}, {"prompt": TEXT, "n": 3}]
GIVEN: list[object] = [TEXT, [TEXT] * 20, IDS, [IDS, IDS]]
INPUTS: list[Json] = [
    *({name: given} for name in ("input", "content") for given in GIVEN),
    {"input": ["a"] * 40},
    {"input": "1234567890" * 2000},
]
RANKED: list[Json] = [{"query": TEXT, name: ["a", TEXT] * 10} for name in ("documents", "texts")]
ASKED: Mapping[str, Sequence[Json]] = {
    **dict.fromkeys(("/v1/chat/completions", "/chat/completions"), (MESSAGES, {**MESSAGES, "n": 3})),
    **dict.fromkeys(("/v1/messages", "/api/chat"), (MESSAGES,)),
    **dict.fromkeys(("/v1/responses", "/responses"), ({"input": TEXT},)),
    "/api/generate": [{"prompt": TEXT}, {"prompt": TEXT, "raw": True}, {"prompt": TEXT, "suffix": TEXT}, {}],
    **dict.fromkeys(("/v1/completions", "/completion", "/completions"), PROMPTS),
    "/infill": [{"input_prefix": TEXT, "input_suffix": TEXT, "prompt": "a", "n_cmpl": n} for n in (1, 3)],
    **dict.fromkeys(("/v1/embeddings", "/embedding", "/embeddings"), INPUTS),
    **dict.fromkeys(("/v1/rerank", "/v1/reranking", "/rerank", "/reranking"), RANKED),
    "/api/embed": [{"input": TEXT}, {"input": [TEXT] * 20}],
    "/api/embeddings": [{"prompt": TEXT}],
    **dict.fromkeys(("/v1/audio/transcriptions", "/audio/transcriptions"), ({"file": TEXT},)),
}


def charged(here: World) -> int:
    [used] = here.gateway.status.keys
    return used.tokens_today or 0


async def ask(here: World, path: str, body: Mapping[str, object]) -> int:
    headers = {"Authorization": f"Bearer {KEY}"}
    sent = aiohttp.FormData(default_to_multipart=True)
    for name, value in body.items():
        sent.add_field(name, str(value).lower() if isinstance(value, bool) else str(value))
    how: Json = {"data": sent} if ROUTES[path].is_form else {"json": body}
    async with here.http.post(here.url + path, headers=headers, **how) as answer:  # type: ignore[arg-type]
        await answer.read()
        return answer.status


def test_each_path_that_computes_is_in_the_table() -> None:
    assert set(ASKED) == {path for path, route in ROUTES.items() if route.computes}


# those of one endpoint that llama-server calls by several names are read by the same code
ONE_NAME = [path for path in ASKED if not path.startswith(("/chat", "/responses", "/embeddings", "/rerank"))]
SHAPED = ("/completion", "/v1/completions", "/infill")  # where llama-server heeds `response_fields`, or might


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        *((path, None) for path in ONE_NAME),
        *((path, shape) for path in SHAPED for shape in (["content"], ["index", "timings/prompt_ms"])),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_at_least_what_is_computed_is_charged(path: str, stream: bool, shape: list[str] | None) -> None:
    for fields in ASKED[path]:
        body = {**fields, "stream": stream} | ({"response_fields": shape} if shape else {})
        if stream:  # one with several answers tells each by itself
            body = {name: one for name, one in body.items() if name not in ("n", "n_cmpl")}
        several = isinstance(prompt := fields.get("prompt"), list) and isinstance(prompt[0], str)
        server = Computing()
        async with world(server, config=CONFIG) as here:
            if several and stream:
                assert await ask(here, path, body) == 400  # it is not offered
                continue
            assert await ask(here, path, body) == 200
            assert 0 < server.computed <= charged(here) < 6 * server.computed, fields


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
async def test_an_answer_that_is_too_long_to_be_held_is_charged(path: str) -> None:
    server = Computing(padding=HELD_ANSWER_BYTES + 1)

    async with world(server, config=CONFIG) as here:
        assert await ask(here, path, {"prompt": TEXT}) == 200
        assert server.computed == charged(here)
