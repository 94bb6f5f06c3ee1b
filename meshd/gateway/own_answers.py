"""The answers that a gateway gives without a llama-server: health, and what is known of the models."""

from collections.abc import Mapping
from dataclasses import asdict

from aiohttp import web

from meshd.gateway.dialects.ollama import VERSION, ListedModel, running, shown, tags
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.interface import Models
from meshd.gateway.request import check_ready, find_model, model_names, not_ready, unknown_model
from meshd.gateway.router_answers import router_fields
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState

HEALTH_PATHS = frozenset({"/health", "/v1/health"})
MODELS_PATHS = frozenset({"/v1/models", "/models"})
MODEL_PREFIX = "/v1/models/"
TAGS_PATH, RUNNING_PATH, VERSION_PATH = "/api/tags", "/api/ps", "/api/version"
OWN_PATHS = MODELS_PATHS | {TAGS_PATH, RUNNING_PATH, VERSION_PATH}

Headers = Mapping[str, str]


class OwnAnswers:
    """The answers of one gateway. `extra`: headers of every answer."""

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
        return path in OWN_PATHS or path.startswith(MODEL_PREFIX)

    def about(self, path: str) -> dict[str, object]:
        """Describe one model, or all. Raises HttpRefusal."""
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
            choice = (
                {} if self._models.only is not None else router_fields(ModelState.READY, 0, ServedFacts())
            )
            rows = [((name,), model_object(name, known) | choice) for name, known in facts.items() if name]
        for status in self._models.statuses:
            known = facts.get(status.name, ServedFacts())
            more: dict[str, object] = {
                "aliases": [*status.aliases],
                "state": str(status.state),
                "reason": status.reason,
            }
            row = model_object(status.name, known) | more
            row |= router_fields(status.state, status.waiting, known)
            rows.append(((status.name, *status.aliases), row))
        if path in MODELS_PATHS:
            return {"object": "list", "data": [row for _names, row in rows]}
        asked = path.removeprefix(MODEL_PREFIX)
        found = next((row for names, row in rows if asked in names), None)
        if found is None:
            raise HttpRefusal(unknown_model(self._models, asked))
        return found

    def _plain_row(self, name: str, facts: ServedFacts) -> dict[str, object]:
        """Describe a model that is there; beside others, also as a choice."""
        is_choice = self._models.only is None
        return model_object(name, facts) | (router_fields(ModelState.READY, 0, facts) if is_choice else {})

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
