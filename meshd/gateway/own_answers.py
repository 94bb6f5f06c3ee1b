"""Answer what needs no llama-server: health, the lists of models, and the chat page."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from aiohttp import web

from meshd.gateway.dialects.ollama import VERSION, ListedModel, running, shown, tags
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.interface import Models
from meshd.gateway.request import check_ready, find_model, model_names, not_ready, unknown_model
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState

HEALTH_PATHS = frozenset({"/health", "/v1/health"})
MODELS_PATHS = frozenset({"/v1/models", "/models"})
MODEL_PREFIX = "/v1/models/"
TAGS_PATH, RUNNING_PATH, VERSION_PATH = "/api/tags", "/api/ps", "/api/version"
_OWN_PATHS = MODELS_PATHS | {TAGS_PATH, RUNNING_PATH, VERSION_PATH}

Headers = Mapping[str, str]


class OwnAnswers:
    """The answers that a gateway gives without a llama-server. `extra`: headers of every answer."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def health(self, asked: str, extra: Headers) -> web.Response:
        """Report the health of the only model, of the one called `asked`, or of all together."""
        now, names = self._models.readiness, model_names(self._models)
        fields: dict[str, object] = {"model": names[0] if len(names) == 1 else ""}
        if asked and self._models.only is None:
            upstream = find_model(self._models, asked).upstream
            now, fields = upstream.readiness, {"model": upstream.model_name}
        elif self._models.on_demand:
            fields = {"models": {status.name: str(status.state) for status in self._models.statuses}}
        if now.state is ModelState.READY:
            return web.json_response({"status": "ok", **fields}, headers=extra)
        failure = not_ready(now)
        body = {"status": str(now.state), "reason": now.reason, "progress": now.progress, **fields}
        body |= {"workers": [asdict(worker) for worker in now.workers], "error": failure.error()}
        return web.json_response(body, status=503, headers={**failure.headers(), **extra})

    def answers(self, path: str) -> bool:
        """Return True if `path` asks about one model or all."""
        return path in _OWN_PATHS or path.startswith(MODEL_PREFIX)

    def about(self, path: str, extra: Headers) -> web.Response:
        """Describe one model, or all. Raises HttpRefusal."""
        return web.json_response(self._about(path), headers=extra)

    def _about(self, path: str) -> dict[str, object]:
        if path == VERSION_PATH:
            return {"version": VERSION}
        if path == RUNNING_PATH:
            return running(self._listed)
        if not self._models.on_demand:  # their rows tell the state of each
            check_ready(self._models.readiness)  # a client takes a model that is listed for one that answers
        if path == TAGS_PATH:
            return tags(self._listed)
        facts = {model.upstream.model_name: model.upstream.facts for model in self._models.all}
        rows: list[tuple[tuple[str, ...], dict[str, object]]] = []
        if not self._models.on_demand:
            rows = [((name,), model_object(name, known)) for name, known in facts.items() if name]
        for status in self._models.statuses:
            more = {"aliases": [*status.aliases], "state": str(status.state), "reason": status.reason}
            row = model_object(status.name, facts.get(status.name, ServedFacts())) | more
            rows.append(((status.name, *status.aliases), row))
        if path in MODELS_PATHS:
            return {"object": "list", "data": [row for _names, row in rows]}
        asked = path.removeprefix(MODEL_PREFIX)
        found = next((row for names, row in rows if asked in names), None)
        if found is None:
            raise HttpRefusal(unknown_model(self._models, asked))
        return found

    def show(self, asked: Mapping[str, object], extra: Headers) -> web.Response:
        """Answer `POST /api/show`; older clients name the model in `name`. Raises HttpRefusal."""
        upstream = find_model(self._models, asked.get("model") or asked.get("name")).upstream
        return web.json_response(shown(upstream.model_name, upstream.facts), headers=extra)

    @property
    def _listed(self) -> list[ListedModel]:
        states = {status.name: status.state for status in self._models.statuses}
        return [
            ListedModel(name, upstream.facts, states.get(name, upstream.readiness.state))
            for upstream in (model.upstream for model in self._models.all)
            if (name := upstream.model_name)
        ]


def model_object(name: str, facts: ServedFacts) -> dict[str, object]:
    """Return OpenAI's model object, with further fields that clients look for; unknown ones are omitted.

    The context has the names of vLLM (`max_model_len`), OpenRouter (`context_length`), Groq
    (`context_window`) and llama-server (`meta.n_ctx`).
    """
    meta = {
        "n_ctx": facts.context,
        "n_ctx_train": facts.trained_context,
        "n_params": facts.parameters,
        "size": facts.size,
        "ftype": facts.quantization,
        "architecture": facts.architecture,
    }
    contexts = ("max_model_len", "context_length", "context_window") if facts.context else ()
    return {
        "id": name,
        "object": "model",
        "created": facts.created,  # OpenAI's clients demand a number
        "owned_by": "meshd",
        **dict.fromkeys(contexts, facts.context),
        "capabilities": list(facts.capabilities),
        "meta": {field: value for field, value in meta.items() if value},
    }


_PAGE_FOLDER = Path(__file__).parent / "page"
_PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/chat.js": ("chat.js", "text/javascript"),
    "/chat.css": ("chat.css", "text/css"),
}

# Its own two files and the API, and no other page around it: a text of a model that became HTML by mistake
# could neither run a script nor send anything away.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {
    "Content-Security-Policy": _PAGE_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # the files of the version that runs
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the chat page. The page needs no key, but its requests to the API do."""

    content_type: str
    body: bytes

    def response(self, extra: Mapping[str, str]) -> web.Response:
        """Return the whole file; aiohttp omits the body for a HEAD request."""
        return web.Response(
            body=self.body,
            content_type=self.content_type,
            charset="utf-8",
            headers={**_PAGE_HEADERS, **extra},
        )


def load_page() -> Mapping[str, PageFile]:
    """Read the files, by path."""
    return {
        path: PageFile(kind, (_PAGE_FOLDER / name).read_bytes()) for path, (name, kind) in _PAGE_FILES.items()
    }
