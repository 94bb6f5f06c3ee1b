"""What the API answers by itself: health, and the list of models."""

from collections.abc import Mapping
from dataclasses import asdict

from aiohttp import web

from meshd.gateway.failure import Failure, HttpRefusal, not_ready
from meshd.gateway.interface import Models, ModelWish, NamedModel, Readiness
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

    def find(self, asked: object, keys: tuple[bytes, ...] = ()) -> NamedModel:
        """The model for a request that names this one, and carries these keys. Raises HttpRefusal."""
        if self._models.only is not None:
            return self._models.only  # whatever a client calls it
        if asked is not None and not isinstance(asked, str):
            raise HttpRefusal(Failure(400, "`model` must be the name of a model", code="invalid_model"))
        found = self._models.find(ModelWish(asked or "", keys))
        if found is None:
            raise HttpRefusal(self._unknown(asked or ""))
        return found

    def check_ready(self) -> None:
        """Raises HttpRefusal when no request can be answered; of models on demand, each says that itself."""
        if not self._models.on_demand:
            check_ready(self._models.readiness)

    def health(self, asked: str, extra: Headers) -> web.Response:
        """Of the only model, or of the one that is `asked` for; of several: whether any can be had."""
        if asked and self._models.only is None:
            one = self.find(asked).upstream
            return _health(one.readiness, {"model": one.model_name}, extra)
        states = {one.name: str(one.state) for one in self._models.statuses}
        said: Mapping[str, object] = {"models": states} if self._models.on_demand else {"model": self._name}
        return _health(self._models.readiness, said, extra)

    def answers(self, path: str) -> bool:
        """Whether a model or all of them are asked about."""
        return path in MODELS_PATHS or path.startswith(MODEL_PREFIX)

    def about(self, path: str, extra: Headers) -> web.Response:
        """One model, or all. Raises HttpRefusal."""
        self.check_ready()  # a client takes a model that is listed for one that answers
        rows = [((one.name, *one.aliases), _described(one)) for one in self._models.statuses]
        if not self._models.on_demand:
            rows = [((name,), _model_object(name)) for name in self._names]
        if path in MODELS_PATHS:
            data = [row for _names, row in rows]
            return web.json_response({"object": "list", "data": data}, headers=extra)
        asked = path.removeprefix(MODEL_PREFIX)
        found = next((row for names, row in rows if asked in names), None)
        if found is None:
            raise HttpRefusal(self._unknown(asked))
        return web.json_response(found, headers=extra)

    @property
    def _names(self) -> list[str]:
        return [name for model in self._models.all if (name := model.upstream.model_name)]

    @property
    def _name(self) -> str:
        """Empty when there is none, or more than one."""
        names = self._names
        return names[0] if len(names) == 1 else ""

    def _unknown(self, asked: str) -> Failure:
        names = [f"`{name}`" for name in self._names]
        shown = ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
        served = f"{shown} {'is' if len(names) == 1 else 'are'}" if names else "no model is"
        message = f"the model `{asked[:200]}` is not served here; {served}"
        return Failure(404, message, code="model_not_found")


def check_ready(now: Readiness) -> None:
    """Raises HttpRefusal."""
    if now.state is not ModelState.READY:
        raise HttpRefusal(not_ready(now))


def _health(now: Readiness, said: Mapping[str, object], extra: Headers) -> web.Response:
    if now.state is ModelState.READY:
        return web.json_response({"status": "ok", **said}, headers=extra)
    failure = not_ready(now)
    whole = {"status": str(now.state), "reason": now.reason, "progress": now.progress, **said}
    workers = [asdict(worker) for worker in now.workers]
    headers = {**failure.headers(), **extra}
    return web.json_response(
        {**whole, "workers": workers, "error": failure.error()}, status=503, headers=headers
    )


def _described(status: ModelStatus) -> dict[str, object]:
    more = {"aliases": list(status.aliases), "state": str(status.state), "reason": status.reason}
    return {**_model_object(status.name), **more}


def _model_object(name: str) -> dict[str, object]:
    # OpenAI's clients demand `created`; nobody knows when a GGUF file was made
    return {"id": name, "object": "model", "created": 0, "owned_by": "meshd"}
