"""A model that nobody loads for a request: while it is not ready, requests are refused with the reason."""

from collections.abc import Sequence

from meshd.gateway.interface import ModelWish, Readiness, Upstream
from meshd.model.status import ModelState, ModelStatus


class TurnAtOnce:
    """Implements ModelTurn."""

    notice = ""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def begin(self) -> Readiness | None:
        """See ModelTurn."""
        now = self._upstream.readiness
        return None if now.state is ModelState.READY else now

    def end(self) -> None:
        """See ModelTurn."""


class PlainModel:
    """Implements NamedModel."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream

    def turn(self) -> TurnAtOnce:
        """See NamedModel."""
        return TurnAtOnce(self.upstream)


class OneModel:
    """Implements Models: one that is always meant."""

    on_demand = False
    statuses: Sequence[ModelStatus] = ()

    def __init__(self, upstream: Upstream) -> None:
        self.only = PlainModel(upstream)

    @property
    def all(self) -> Sequence[PlainModel]:
        """See Models."""
        return (self.only,)

    @property
    def readiness(self) -> Readiness:
        """See Models."""
        return self.only.upstream.readiness

    def find(self, wish: ModelWish) -> PlainModel:
        """See Models: clients name whatever model they know."""
        return self.only
