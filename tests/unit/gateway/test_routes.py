"""The allow-list of paths."""

from meshd.gateway.events import StreamForm
from meshd.gateway.own_answers import HEALTH_PATHS, MODELS_PATHS
from meshd.gateway.routes import ROUTES

# Registered by llama-server, and why they are not passed on.
FORBIDDEN = {
    "/slots": "shows prompts of others",
    "/slots/0": "saves and restores files",
    "/lora-adapters": "changes the model for everyone",
    "/models/load": "loads files",
    "/models/unload": "ends the model",
    "/v1/chat/completions/control": "interferes with requests of others",
    "/v1/stream": "shows answers of others",
    "/v1/streams/lookup": "shows answers of others",
    "/v1/audio/transcriptions": "takes no JSON",
    "/cors-proxy": "fetches any address",
    "/tools": "runs commands, reads and writes files",
}


def test_what_openai_clients_need_is_there() -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
        assert ROUTES[path].method == "POST"
    assert "/v1/models" in MODELS_PATHS
    assert "/health" in HEALTH_PATHS


def test_what_may_hurt_is_not() -> None:
    assert not FORBIDDEN.keys() & {*ROUTES, *HEALTH_PATHS, *MODELS_PATHS}


def test_properties_can_only_be_looked_at() -> None:
    assert {path for path, route in ROUTES.items() if route.method == "GET"} == {"/props", "/metrics"}


def test_tokens_are_counted_where_they_are_generated() -> None:
    counted = {path for path, route in ROUTES.items() if route.counts}
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/completion",
        "/v1/messages",
        "/v1/responses",
    } <= counted
    assert not counted & {"/tokenize", "/detokenize", "/v1/embeddings", "/props", "/v1/rerank"}


def test_requests_wait_for_a_turn_where_llama_server_computes() -> None:
    waits = {path for path, route in ROUTES.items() if route.computes}
    assert waits >= {path for path, route in ROUTES.items() if route.counts}
    assert {"/v1/embeddings", "/v1/rerank", "/embedding", "/reranking"} <= waits
    assert not waits & {"/tokenize", "/apply-template", "/v1/messages/count_tokens", "/props"}


def test_own_answers_are_not_passed_on() -> None:
    assert not ROUTES.keys() & (HEALTH_PATHS | MODELS_PATHS)


def test_dialects_belong_to_their_paths() -> None:
    other = {path: route.form for path, route in ROUTES.items() if route.form is not StreamForm.OPENAI}
    assert other == {"/v1/responses": StreamForm.RESPONSES, "/v1/messages": StreamForm.ANTHROPIC}
