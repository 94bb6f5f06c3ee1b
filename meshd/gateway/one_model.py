"""The one model of a gateway: while it is not ready, requests are refused with the reason."""

from collections.abc import Sequence

from meshd.gateway.interface import Readiness, Upstream
from meshd.model.status import ModelState, ModelStatus


class TurnAtOnce:
    """Implements ModelTurn: of a model that nobody loads for a request."""

    notice = ""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def begin(self) -> Readiness | None:
        """See ModelTurn."""
        now = self._upstream.readiness
        return None if now.state is ModelState.READY else now

    def end(self) -> None:
        """See ModelTurn."""


class OneModel:
    """Implements Models and NamedModel."""

    statuses: Sequence[ModelStatus] = ()

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream

    @property
    def all(self) -> Sequence["OneModel"]:
        """See Models."""
        return (self,)

    @property
    def only(self) -> "OneModel":
        """See Models."""
        return self

    def find(self, name: str) -> "OneModel":
        """See Models: clients name whatever model they know."""
        return self

    def turn(self) -> TurnAtOnce:
        """See NamedModel."""
        return TurnAtOnce(self.upstream)
