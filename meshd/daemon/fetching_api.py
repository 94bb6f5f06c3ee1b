"""The API of a node that still fetches its models: each answer reports the progress.

The gateway listens from the start. `ModelsOnceFetched` refuses requests until the role begins, and then
passes everything on to the role's models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from socket import socket

from meshd.base.errors import Refused
from meshd.daemon.role_kind import FetchingRole
from meshd.gateway.interface import Models, ModelWish, NamedModel, Readiness, Upstream
from meshd.gateway.request import OneModel, PlainModel
from meshd.model.status import FetchStatus, ModelState, ModelStatus

_LEAST_RETRY, _MOST_RETRY = 5, 60  # seconds in the Retry-After of an answer


class FetchedUpstream(Upstream):
    """A model that is not here yet, so requests are refused.

    It has no slots, so that no request waits for its turn: a fetch may take hours.
    """

    def __init__(self, fetching: FetchingRole, model: "AwaitedModel | None" = None) -> None:
        """Take `model`; None: the only one of the node, for which everything is fetched."""
        self._fetching = fetching
        self._model = model

    @property
    def readiness(self) -> Readiness:
        """The progress of the fetch, as readiness."""
        now = self._fetching.now
        said = f"`{now.name}`: {now.text}"
        if self._model is None or now.name in self._model.wants:
            return _readiness(now, said)
        lacks = self._fetching.lacks
        later = [name for name in self._model.wants if name in lacks]
        if later:
            return replace(_readiness(now, f"`{later[0]}` is fetched after {said}"), progress=None)
        here = f"it is here, and waits for {said}"
        return replace(_readiness(now, here), state=ModelState.UNLOADED, progress=None)

    @property
    def model_name(self) -> str:
        """The name of the model in requests; of an only one, that of the file that is being fetched."""
        return self._fetching.now.name if self._model is None else self._model.name

    async def connect(self) -> socket:
        """Raise Refused, with the progress."""
        raise Refused(self.readiness.reason, code="fetching")


def _readiness(now: FetchStatus, reason: str) -> Readiness:
    left = now.seconds_left or _LEAST_RETRY
    return Readiness(
        ModelState.FETCHING,
        reason,
        retry_after=round(min(max(left, _LEAST_RETRY), _MOST_RETRY)),
        progress=now.share,
    )


@dataclass(frozen=True, slots=True)
class AwaitedModel:
    """One of several models to come, by its name in requests. `wants`: names of what is fetched for it."""

    name: str
    wants: Sequence[str]
    aliases: tuple[str, ...] = ()
    group: str = ""
    ttl_s: int = 0


class AwaitedModels:
    """Implements Models with all models that a node will serve, none of which answers yet."""

    only = None
    on_demand = True

    def __init__(self, fetching: FetchingRole, awaited: Sequence[AwaitedModel]) -> None:
        self._fetching = fetching
        self._awaited = awaited
        self.all = [PlainModel(FetchedUpstream(fetching, one)) for one in awaited]
        named = zip(awaited, self.all, strict=True)
        self._by_name = {name: model for one, model in named for name in (one.name, *one.aliases)}

    @property
    def readiness(self) -> Readiness:
        """The progress of what is fetched now."""
        return FetchedUpstream(self._fetching).readiness

    def find(self, wish: ModelWish) -> PlainModel | None:
        """Find a model by its name or an alias."""
        return self._by_name.get(wish.model) if wish.model else self.all[0]

    @property
    def statuses(self) -> Sequence[ModelStatus]:
        """The state of each model."""
        return [
            _status(one, model.upstream.readiness) for one, model in zip(self._awaited, self.all, strict=True)
        ]


def _status(model: AwaitedModel, now: Readiness) -> ModelStatus:
    return ModelStatus(
        name=model.name,
        fingerprint="",
        state=now.state,
        reason=now.reason,
        load_seconds=None,
        weights_local_bytes=0,
        weights_network_bytes=0,
        tensors_from_network=(),
        bytes_per_token=None,
        split=(),
        progress=now.progress,
        aliases=model.aliases,
        group=model.group,
        ttl_s=model.ttl_s,
    )


class ModelsOnceFetched:
    """The models of a role, which arrive later (implements Models)."""

    def __init__(self, fetching: FetchingRole, awaited: Sequence[AwaitedModel]) -> None:
        """Begin without a model. `awaited`: the models to come if they are loaded on demand; else none."""
        self._models: Models = (
            AwaitedModels(fetching, awaited) if awaited else OneModel(FetchedUpstream(fetching))
        )
        self.on_demand = self._models.on_demand

    def come(self, models: Models) -> None:
        """Use these models from now on."""
        self._models = models

    @property
    def all(self) -> Sequence[NamedModel]:
        """The models that can be requested now."""
        return self._models.all

    @property
    def only(self) -> NamedModel | None:
        """The single model, if there is one."""
        return self._models.only

    @property
    def readiness(self) -> Readiness:
        """The readiness of all models together."""
        return self._models.readiness

    def find(self, wish: ModelWish) -> NamedModel | None:
        """Find the model for one request."""
        return self._models.find(wish)

    @property
    def statuses(self) -> Sequence[ModelStatus]:
        """The statuses of models on demand."""
        return self._models.statuses
