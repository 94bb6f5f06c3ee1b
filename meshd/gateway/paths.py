"""The paths that the API passes on, each with its dialect. Pure.

This is an allow-list: it has no path that writes files, changes slots, adapters or properties, shows other
users' prompts or fetches from elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshd.gateway.dialects.chat import ChatDialect, PlainDialect
from meshd.gateway.dialects.dialect import Dialect
from meshd.gateway.dialects.messages import MessagesDialect
from meshd.gateway.dialects.ollama import OllamaChat, OllamaDialect, OllamaEmbed, OllamaGenerate
from meshd.gateway.dialects.responses import ResponsesDialect

OLLAMA_PREFIX = "/api/"
LM_STUDIO_PREFIX = "/api/v0/"
PROPS_PATH = "/props"
METRICS_PATH = "/metrics"  # of llama-server only with `?model=NAME`
SHOW_PATH = "/api/show"  # answered here, though it has a body

# What llama.cpp's web UI asks for and meshd does not have, with answers that say so: tools that run on the
# server, and answers that go on without their reader. A refusal would be an error on the page.
LACKING: Mapping[str, Mapping[str, object]] = {
    "/tools": {"GET": [], "POST": {"error": "meshd runs no tools"}},
    "/v1/streams/lookup": {"POST": []},
    "/v1/stream": {"GET": None, "DELETE": None},
}


@dataclass(frozen=True, slots=True)
class Route:
    """A path that is passed on.

    `counts`: its answers have generated tokens. `computes`: its requests take a slot of llama-server, for
    which they wait. `is_form`: its body is a form, which may hold a file.
    """

    method: str
    dialect: Dialect
    counts: bool = False
    computes: bool = False
    is_form: bool = False


# Ollama's paths that change what is stored.
_OLLAMA_STORE = frozenset({f"{OLLAMA_PREFIX}{verb}" for verb in ("pull", "push", "create", "copy", "delete")})
_CHAT = "/v1/chat/completions"
_COUNT = "/v1/chat/completions/input_tokens"


def _asks(dialect: Dialect | None, *paths: str, method: str = "POST") -> dict[str, Route]:
    """Return the routes of paths that share a dialect; None: each has llama-server's own form."""
    return {path: Route(method, dialect or PlainDialect(path)) for path in paths}


def _computes(dialect: Dialect | None, *paths: str) -> dict[str, Route]:
    return {path: replace(route, computes=True) for path, route in _asks(dialect, *paths).items()}


def _generates(dialect: Dialect | None, *paths: str, is_form: bool = False) -> dict[str, Route]:
    routes = _computes(dialect, *paths)
    return {path: replace(route, counts=True, is_form=is_form) for path, route in routes.items()}


ROUTES: Mapping[str, Route] = {
    **_generates(ChatDialect(_CHAT), _CHAT, "/chat/completions"),
    **_asks(ChatDialect(_COUNT), _COUNT, "/chat/completions/input_tokens"),
    **_generates(ResponsesDialect(), "/v1/responses", "/responses"),
    **_asks(ResponsesDialect(counts=True), "/v1/responses/input_tokens", "/responses/input_tokens"),
    **_generates(MessagesDialect(), "/v1/messages"),
    **_asks(MessagesDialect(counts=True), "/v1/messages/count_tokens"),
    # Ollama's
    **_generates(OllamaChat(), "/api/chat"),
    **_generates(OllamaGenerate(), "/api/generate"),
    **_computes(OllamaEmbed(), "/api/embed"),
    **_computes(OllamaEmbed(single=True), "/api/embeddings"),
    **_asks(OllamaDialect(), SHOW_PATH),
    # in llama-server's own form
    **_generates(None, "/v1/completions", "/completion", "/completions", "/infill"),
    **_generates(None, "/v1/audio/transcriptions", "/audio/transcriptions", is_form=True),
    **_computes(None, "/v1/embeddings", "/embedding", "/embeddings"),
    **_computes(None, "/v1/rerank", "/v1/reranking", "/rerank", "/reranking"),
    **_asks(None, "/tokenize", "/detokenize", "/v1/chat/completions/control"),
    **_asks(ChatDialect("/apply-template"), "/apply-template"),
    **_asks(None, PROPS_PATH, METRICS_PATH, method="GET"),
}


def unknown_path(path: str) -> str:
    """Return the message for an unknown path, with what to use instead if many clients ask for it."""
    unknown = f"the API has no path `{path[:200]}`"
    meant = _within_v1(path) or path
    if meant.startswith(LM_STUDIO_PREFIX):
        return f"{unknown}; meshd does not offer LM Studio's own API: use the paths below `/v1`"
    if meant in _OLLAMA_STORE:
        return f"{unknown}: models are not managed over the API, use `meshd model` and `meshd serve --model`"
    if meant != path:
        return f"{unknown}: use the base URL `http://HOST:PORT` (without `/v1`)"
    return unknown


def _within_v1(path: str) -> str:
    """Return the path that a client appends, if its base URL wrongly ends in `/v1`; else "".

    The libraries for Anthropic's and Ollama's APIs append `/v1/…` and `/api/…` to the base URL.
    """
    return path.removeprefix("/v1") if path.startswith(("/v1/v1/", f"/v1{OLLAMA_PREFIX}")) else ""


def error_dialect(path: str) -> Dialect:
    """Return the dialect of errors for `path`, which need not exist."""
    path = _within_v1(path) or path
    if (route := ROUTES.get(path)) is not None:
        return route.dialect
    if path.startswith(OLLAMA_PREFIX) and not path.startswith(LM_STUDIO_PREFIX):
        return OllamaDialect()
    return ROUTES["/v1/messages" if path.startswith("/v1/messages") else _CHAT].dialect
