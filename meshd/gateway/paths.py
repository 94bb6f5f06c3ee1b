"""The paths that the API passes on, each with its dialect. Pure.

This is an allow-list: it has no path that writes files, changes slots, adapters or properties, shows other
users' prompts or fetches from elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshd.gateway.dialects.chat import ChatDialect, PlainDialect
from meshd.gateway.dialects.dialect import Dialect
from meshd.gateway.dialects.messages import MessagesDialect
from meshd.gateway.dialects.ollama import OllamaChat, OllamaDialect, OllamaEmbed, OllamaGenerate
from meshd.gateway.dialects.responses import ResponsesDialect
from meshd.gateway.events import StreamForm

OLLAMA_PREFIX = "/api/"
LM_STUDIO_PREFIX = "/api/v0/"
PROPS_PATH = "/props"
SHOW_PATH = "/api/show"  # answered here, though it has a body


@dataclass(frozen=True, slots=True)
class Route:
    """A path that is passed on.

    `counts`: its answers have generated tokens. `computes`: its requests take a slot of llama-server, for
    which they wait. `is_form`: its body is a form, which may hold a file. `form`: the form in which
    llama-server's streams carry text.
    """

    method: str
    dialect: Dialect
    counts: bool = False
    computes: bool = False
    is_form: bool = False
    form: StreamForm = StreamForm.OPENAI


# Ollama's paths that change what is stored.
_OLLAMA_STORE = frozenset({f"{OLLAMA_PREFIX}{verb}" for verb in ("pull", "push", "create", "copy", "delete")})


def _generate(dialect: Dialect) -> Route:
    return Route("POST", dialect, counts=True, computes=True)


def _plain(path: str) -> Route:
    return _generate(PlainDialect(path))


def _compute(path: str) -> Route:
    return Route("POST", PlainDialect(path), computes=True)


def _ask(path: str) -> Route:
    return Route("POST", PlainDialect(path))


def _look(path: str) -> Route:
    return Route("GET", PlainDialect(path))


def _transcribe(path: str) -> Route:
    dialect, form = PlainDialect(path), StreamForm.TRANSCRIPT
    return Route("POST", dialect, counts=True, computes=True, is_form=True, form=form)


_CHAT = "/v1/chat/completions"
_COUNT = "/v1/chat/completions/input_tokens"
_RESPOND, _COUNT_RESPONSE = _generate(ResponsesDialect()), Route("POST", ResponsesDialect(counts=True))

ROUTES: Mapping[str, Route] = {
    _CHAT: _generate(ChatDialect(_CHAT)),
    "/v1/completions": _plain("/v1/completions"),
    "/v1/responses": _RESPOND,
    "/v1/messages": _generate(MessagesDialect()),
    _COUNT: Route("POST", ChatDialect(_COUNT)),
    "/v1/responses/input_tokens": _COUNT_RESPONSE,
    "/v1/messages/count_tokens": Route("POST", MessagesDialect(counts=True)),
    "/v1/audio/transcriptions": _transcribe("/v1/audio/transcriptions"),
    "/v1/embeddings": _compute("/v1/embeddings"),
    "/v1/rerank": _compute("/v1/rerank"),
    "/v1/reranking": _compute("/v1/reranking"),
    SHOW_PATH: Route("POST", OllamaDialect()),
    "/api/chat": _generate(OllamaChat()),
    "/api/generate": _generate(OllamaGenerate()),
    "/api/embed": Route("POST", OllamaEmbed(), computes=True),
    "/api/embeddings": Route("POST", OllamaEmbed(single=True), computes=True),
    # llama.cpp's own
    "/chat/completions": _generate(ChatDialect(_CHAT)),
    "/chat/completions/input_tokens": Route("POST", ChatDialect(_COUNT)),
    "/responses": _RESPOND,
    "/responses/input_tokens": _COUNT_RESPONSE,
    "/completion": _plain("/completion"),
    "/completions": _plain("/completions"),
    "/infill": _plain("/infill"),
    "/audio/transcriptions": _transcribe("/audio/transcriptions"),
    "/embedding": _compute("/embedding"),
    "/embeddings": _compute("/embeddings"),
    "/rerank": _compute("/rerank"),
    "/reranking": _compute("/reranking"),
    "/tokenize": _ask("/tokenize"),
    "/detokenize": _ask("/detokenize"),
    "/apply-template": Route("POST", ChatDialect("/apply-template")),
    PROPS_PATH: _look(PROPS_PATH),
    "/metrics": _look("/metrics"),
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
    near = next((prefix for prefix in ("/v1/messages",) if path.startswith(prefix)), _CHAT)
    return ROUTES[near].dialect
