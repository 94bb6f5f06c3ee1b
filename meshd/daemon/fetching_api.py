"""The API of a node that still fetches its models: each answer reports the progress.

The gateway listens from the start. `ModelsOnceFetched` refuses requests until the role begins, and then
passes everything on to the role's models.
"""

from collections.abc import Callable, Sequence
from socket import socket

from meshd.base.errors import Refused
from meshd.gateway.interface import AnswerTimings, Models, ModelWish, NamedModel, Readiness
from meshd.gateway.request import OneModel
from meshd.model.device_sampling import DeviceSampling
from meshd.model.served_facts import ServedFacts
from meshd.model.status import FetchStatus, ModelState, ModelStatus

_LEAST_RETRY, _MOST_RETRY = 5, 60  # seconds in the Retry-After of an answer


class FetchedUpstream:
    """A model that is not here yet, so requests are refused (implements Upstream)."""

    crashes = 0
    device_sampling: DeviceSampling | None = None
    facts = ServedFacts()
    holds_turns = ""
    slots: int | None = None  # a fetch may take hours: no request waits for its turn

    def __init__(self, fetching: Callable[[], FetchStatus]) -> None:
        self._fetching = fetching

    @property
    def readiness(self) -> Readiness:
        """The progress of the fetch, as readiness."""
        now = self._fetching()
        left = now.seconds_left or _LEAST_RETRY
        return Readiness(
            ModelState.FETCHING,
            f"`{now.name}`: {now.text}",
            retry_after=round(min(max(left, _LEAST_RETRY), _MOST_RETRY)),
            progress=now.share,
        )

    @property
    def model_name(self) -> str:
        """The name of the model that is being fetched."""
        return self._fetching().name

    async def connect(self) -> socket:
        """Raise Refused, with the progress."""
        raise Refused(self.readiness.reason, code="fetching")

    def is_refusal(self, status: int) -> bool:
        """Return False: there is no answer."""
        return False

    async def upstream_broke(self, why: str) -> str:
        """Return `why`."""
        return why

    def queued(self, waiting: int) -> None:
        """Do nothing."""

    def requested(self, active: int) -> None:
        """Do nothing."""

    def generated(self, total: int, grown: int, *, alone: bool) -> None:
        """Do nothing."""

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        """Do nothing."""


class ModelsOnceFetched:
    """The models of a role, which arrive later (implements Models)."""

    def __init__(self, fetching: Callable[[], FetchStatus], *, on_demand: bool) -> None:
        """Begin without a model. `on_demand`: as in Models, for the models to come."""
        self.on_demand = on_demand
        self._models: Models = OneModel(FetchedUpstream(fetching))

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
