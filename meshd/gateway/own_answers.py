"""What the API answers by itself: health, and the list of models."""

from collections.abc import Mapping
from dataclasses import asdict

from aiohttp import web

from meshd.gateway.failure import Failure, HttpRefusal, not_ready
from meshd.gateway.interface import Models, NamedModel, Upstream
from meshd.model.status import ModelState, ModelStatus

HEALTH_PATHS = frozenset({"/health", "/v1/health"})
MODELS_PATHS = frozenset({"/v1/models", "/models"})
MODEL_PREFIX = "/v1/models/"
_SHOWN_NAMES = 32  # of models, in an error

Headers = Mapping[str, str]


class OwnAnswers:
    """Of one gateway. `extra`: headers of every answer."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def find(self, asked: object) -> NamedModel:
        """The model that a request names; the default for none. Raises HttpRefusal."""
        if asked is not None and not isinstance(asked, str):
            raise HttpRefusal(Failure(400, "`model` must be the name of a model", code="invalid_model"))
        found = self._models.find(asked or "")
        if found is None:
            raise HttpRefusal(self._unknown(asked or ""))
        return found

    def _unknown(self, asked: str) -> Failure:
        names = [model.upstream.model_name for model in self._models.all]
        shown = ", ".join(f"`{name}`" for name in names[:_SHOWN_NAMES]) + (
            ", …" if len(names) > _SHOWN_NAMES else ""
        )
        message = f"the model `{asked[:200]}` is not served here; {shown} {'are' if len(names) > 1 else 'is'}"
        return Failure(404, message, code="model_not_found")

    def health(self, asked: str, extra: Headers) -> web.Response:
        """Of the only model, or of the one that is `asked` for; of several: whether any can be had."""
        only = self._models.only
        if only is not None or asked:
            return _health(only.upstream if only is not None else self.find(asked).upstream, extra)
        statuses = self._models.statuses
        said = {"models": {one.name: str(one.state) for one in statuses}}
        if any(one.state is not ModelState.FAILED for one in statuses):
            return web.json_response({"status": "ok", **said}, headers=extra)
        failure = Failure(503, "no model can be served", type="unavailable_error", code="model_failed")
        whole = {"status": "failed", "reason": failure.message, **said, "error": failure.error()}
        return web.json_response(whole, status=503, headers={**failure.headers(), **extra})

    def answers(self, path: str) -> bool:
        """Whether a model or all of them are asked about."""
        return path in MODELS_PATHS or path.startswith(MODEL_PREFIX)

    def about(self, path: str, extra: Headers) -> web.Response:
        """One model, or all. Raises HttpRefusal."""
        if (only := self._models.only) is not None:
            return _of_one(only.upstream, path, extra)
        statuses = {one.name: _described(one) for one in self._models.statuses}
        if path in MODELS_PATHS:
            return web.json_response({"object": "list", "data": list(statuses.values())}, headers=extra)
        asked = path.removeprefix(MODEL_PREFIX)
        found = self._models.find(asked) if asked else None
        if found is None:
            raise HttpRefusal(self._unknown(asked))
        return web.json_response(statuses[found.upstream.model_name], headers=extra)


def _health(upstream: Upstream, extra: Headers) -> web.Response:
    now, model = upstream.readiness, upstream.model_name
    if now.state is ModelState.READY:
        return web.json_response({"status": "ok", "model": model}, headers=extra)
    failure = not_ready(now)
    said = {"status": str(now.state), "reason": now.reason, "progress": now.progress, "model": model}
    workers = [asdict(worker) for worker in now.workers]
    headers = {**failure.headers(), **extra}
    return web.json_response(
        {**said, "workers": workers, "error": failure.error()}, status=503, headers=headers
    )


def _of_one(upstream: Upstream, path: str, extra: Headers) -> web.Response:
    if (now := upstream.readiness).state is not ModelState.READY:
        raise HttpRefusal(not_ready(now))  # a client takes a model that is listed for one that answers
    name = upstream.model_name
    if path in MODELS_PATHS:
        data = [_model_object(name)] if name else []
        return web.json_response({"object": "list", "data": data}, headers=extra)
    asked = path.removeprefix(MODEL_PREFIX)
    if not name or asked != name:
        message = f"the model `{asked[:200]}` is not served here, `{name}` is"
        raise HttpRefusal(Failure(404, message, code="model_not_found"))
    return web.json_response(_model_object(name), headers=extra)


def _described(status: ModelStatus) -> dict[str, object]:
    more = {"aliases": list(status.aliases), "state": str(status.state), "reason": status.reason}
    return {**_model_object(status.name), **more}


def _model_object(name: str) -> dict[str, object]:
    # OpenAI's clients demand `created`; nobody knows when a GGUF file was made
    return {"id": name, "object": "model", "created": 0, "owned_by": "meshd"}
