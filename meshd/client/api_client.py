"""The client: it offers the API of the mesh's heads on this machine, without a model.

The client implements what its gateway asks (Models): the available models, and for each request the head that
answers it (head_call.py). It computes nothing, and no request waits for a turn here: heads have queues.
"""

import asyncio
from collections.abc import Callable, Sequence

from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.client.follow_heads import HeadFollower
from meshd.client.head_call import CallMeans, HeadCall
from meshd.client.head_choice import (
    HeadWish,
    find_model,
    model_names,
    models_and_heads,
    shortened,
    why_none,
)
from meshd.devices.interface import RoleStatus, Tunnel, TunnelRequest
from meshd.gateway.interface import ModelWish, NamedModel, Readiness, Upstream
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.model.status import ModelState, ModelStatus

_LOOK_SECONDS = 0.5  # between two checks of the heads, for changes and for answers whose head is lost
LOG = log.get("client")


class ApiClient:
    """The models of all heads, as one API (implements RunningRole, and Models of gateway.interface)."""

    only = None
    on_demand = False  # here; a head may load a model on request
    statuses: Sequence[ModelStatus] = ()

    def __init__(
        self,
        heads: HeadFollower,
        open_tunnel: Callable[[TunnelRequest], Tunnel],
        me: PeerId,
        named: Callable[[Upstream], NamedModel],
    ) -> None:
        """Use `named` to wrap a call as the model that is asked at once (PlainModel of the gateway)."""
        self._heads = heads
        self._means = CallMeans(heads, open_tunnel, lambda: self._owner, me)
        self._named = named
        self._owner: Owner | None = None
        self._said: tuple[ModelState, Sequence[str]] | None = None

    # Models.

    @property
    def all(self) -> Sequence[NamedModel]:
        """The models that some head takes requests for, each once."""
        names = model_names(self._heads.known(), _now())
        return [self._named(HeadCall(self._means, name, ModelWish(name))) for name in names]

    @property
    def readiness(self) -> Readiness:
        """The state of the API: READY while some head takes requests."""
        heads, now = self._heads.known(), _now()
        if models := models_and_heads(heads, now):
            return Readiness(ModelState.READY, f"models: {shortened(models, ', ')}")
        state, why = why_none(heads, HeadWish(), now)
        unknown = [f"no head is called `{name}`" for name in self._heads.unknown_names()]
        return Readiness(state, "; ".join([*unknown, why]))

    def find(self, wish: ModelWish) -> NamedModel | None:
        """Return the model that `wish` names, or None if no head serves it."""
        model = find_model(self._heads.known(), wish.model, _now())
        if model is None:
            return None
        return self._named(HeadCall(self._means, model, wish))

    # RunningRole.

    @property
    def status(self) -> RoleStatus:
        """The tunnels to heads that carry requests now."""
        tunnels = [tunnel for call in self._means.open_calls if (tunnel := call.tunnel) is not None]
        return RoleStatus(children=(), tunnels=tunnels, model=None)

    async def serve(self) -> None:
        """Follow the heads until cancelled, and move requests away from heads that are lost."""
        async with Owner() as owner:
            self._owner = owner
            try:
                owner.start(self._heads.serve(), name="heads")
                while True:
                    self._say()
                    now = _now()
                    for call in tuple(self._means.open_calls):
                        call.leave_lost_head(now)
                    await asyncio.sleep(_LOOK_SECONDS)
            finally:
                self._owner = None
                owner.cancel()

    def _say(self) -> None:
        now, names = self.readiness, model_names(self._heads.known(), _now())
        if (now.state, names) != self._said:
            self._said = (now.state, names)
            LOG.info("api_state", state=now.state.value, why=now.reason)


def check_may_use(roles: frozenset[Role]) -> None:
    """Check that a node with these roles may call the API of heads. Raises UserError."""
    if Role.USE not in roles:
        raise UserError(
            "this node cannot call the API of others: its certificate lacks the role `use`",
            hint="get an invite with that role (`meshd invite --role use` on a member that can grant it), "
            "run `meshd leave` here, then start again with `--join INVITE`",
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
