"""The allow-list of paths."""

import re

import pytest
from meshd.gateway.failure import Failure
from meshd.gateway.own_answers import HEALTH_PATHS, MODELS_PATHS
from meshd.gateway.paths import OLLAMA_PREFIX, PROPS_PATH, ROUTES, SHOW_PATH, error_dialect, unknown_path
from meshd.gateway.router_answers import ROUTER_PATHS

from tests.pinned_source import pinned_source

# Registered by llama-server, and why they are not passed on.
REFUSED = {
    "POST /props": "changes the defaults for everyone",
    "GET /slots": "shows prompts of others",
    "POST /slots/:id_slot": "saves and restores files",
    "GET /lora-adapters": "of no use where they cannot be changed",
    "POST /lora-adapters": "changes the model for everyone",
    "POST /models": "fetches from elsewhere",
    "DELETE /models": "removes files",
    "GET /v1/stream": "shows answers of others",
    "DELETE /v1/stream": "ends answers of others",
    "POST /v1/streams/lookup": "shows answers of others",
    "GET /cors-proxy": "fetches any address",
    "POST /cors-proxy": "fetches any address",
    "GET /tools": "runs commands, reads and writes files",
    "POST /tools": "runs commands, reads and writes files",
}
_REGISTERED = re.compile(r'\bctx_http\.(get|post|del)\s*\(\s*"([^"]+)"')
_METHODS = {"get": "GET", "post": "POST", "del": "DELETE"}
TOKENS_COUNTED = {
    *("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens", "/v1/responses/input_tokens"),
    *("/responses/input_tokens", "/v1/messages/count_tokens"),
}
OWN = HEALTH_PATHS | MODELS_PATHS
ANSWERED = {f"GET {path}" for path in OWN} | {f"{method} {path}" for path, method in ROUTER_PATHS.items()}


def test_each_route_of_the_pinned_llama_server_is_passed_on_answered_or_refused() -> None:
    source = pinned_source("tools/server/server.cpp")
    registered = {f"{_METHODS[method]} {path}" for method, path in _REGISTERED.findall(source)}
    assert len(registered) > 40, "they are written otherwise now"
    passed_on = {
        f"{route.method} {path}" for path, route in ROUTES.items() if not path.startswith(OLLAMA_PREFIX)
    }
    assert passed_on <= registered
    assert registered - passed_on - ANSWERED == REFUSED.keys()


def test_tokens_are_counted_where_they_are_generated() -> None:
    counted = {path for path, route in ROUTES.items() if route.counts}
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/completion",
        "/v1/messages",
        "/v1/responses",
        "/v1/audio/transcriptions",
    } <= counted
    assert not counted & {"/tokenize", "/detokenize", "/v1/embeddings", "/props", "/v1/rerank"}
    assert not counted & TOKENS_COUNTED


def test_requests_wait_for_a_turn_and_count_for_their_key_where_llama_server_computes() -> None:
    waits = {path for path, route in ROUTES.items() if route.computes}
    free = {SHOW_PATH, PROPS_PATH, "/metrics", "/tokenize", "/detokenize", "/apply-template"}
    free |= {"/v1/chat/completions/control"}
    assert ROUTES.keys() - waits == TOKENS_COUNTED | free


def test_own_answers_are_not_passed_on() -> None:
    assert not ROUTES.keys() & (OWN | ROUTER_PATHS.keys())


def test_a_base_url_with_v1_too_many_is_told_and_only_that() -> None:
    without = "use the base URL `http://HOST:PORT` (without `/v1`)"
    for path in ("/v1/v1/messages", "/v1/v1/models", "/v1/api/chat", "/v1/api/tags"):
        assert unknown_path(path) == f"the API has no path `{path}`: {without}"
    for path in ("/v1/messages/batches", "/v1/apis", "/v2/v1/models", "/v1/api/v0/models", "/v1/api/pull"):
        assert without not in unknown_path(path)
    assert "use the paths below `/v1`" in unknown_path("/v1/api/v0/models")
    assert "use `meshd model`" in unknown_path("/v1/api/pull")


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/v1/chat/completions", "openai"),
        ("/v1/messages", "anthropic"),
        ("/v1/messages/batches", "anthropic"),
        ("/v1/v1/messages", "anthropic"),
        ("/v1/v1/models", "openai"),
        ("/api/chat", "ollama"),
        ("/api/nothing", "ollama"),
        ("/v1/api/chat", "ollama"),
        ("/api/v0/models", "openai"),
        ("/completion", "openai"),
        ("/nothing", "openai"),
        ("/", "openai"),
    ],
)
def test_errors_have_the_form_of_the_path_or_of_what_is_near(path: str, form: str) -> None:
    error = error_dialect(path).error(Failure(404, "none", code="unknown_path"))
    forms = {"anthropic": "type" in error, "ollama": isinstance(error["error"], str)}
    assert forms == {"anthropic": form == "anthropic", "ollama": form == "ollama"}
