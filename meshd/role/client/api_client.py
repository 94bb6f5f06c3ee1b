"""The client: the API of the mesh's heads on this machine, without a model.

It implements what its gateway asks (Upstreams): which models there are, and for each request the head that
answers it (head_call.py). Nothing is computed here.
"""

import asyncio
from collections.abc import Callable, Sequence

from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.gateway.interface import ModelWish, Readiness
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.model.status import ModelState
from meshd.role.client.follow_heads import HeadFollower
from meshd.role.client.head_call import CallMeans, HeadCall
from meshd.role.client.head_choice import HeadWish, choose_head, find_model, model_names, shortened, why_none
from meshd.role.interface import RoleStatus, Tunnel, TunnelRequest

_LOOK_SECONDS = 0.5  # between two looks at the heads, for what has changed and for answers whose head is lost
LOG = log.get("client")


class ApiClient:
    """Implements RunningRole, and Upstreams of gateway.interface."""

    def __init__(
        self, heads: HeadFollower, open_tunnel: Callable[[TunnelRequest], Tunnel], me: PeerId
    ) -> None:
        self._heads = heads
        self._means = CallMeans(heads, open_tunnel, lambda: self._owner, me)
        self._owner: Owner | None = None
        self._said: tuple[ModelState, Sequence[str]] | None = None

    # Upstreams.

    @property
    def readiness(self) -> Readiness:
        """See Upstreams. READY when some head takes requests."""
        heads, now = self._heads.known(), _now()
        if choose_head(heads, HeadWish(), now) is not None:
            return Readiness(ModelState.READY, f"models: {shortened(model_names(heads, now), ', ')}")
        state, why = why_none(heads, HeadWish(), now)
        unknown = [f"no head is called `{name}`" for name in self._heads.unknown_names()]
        return Readiness(state, "; ".join([*unknown, why]))

    @property
    def model_names(self) -> Sequence[str]:
        """See Upstreams."""
        return model_names(self._heads.known(), _now())

    @property
    def model_name(self) -> str:
        """See Upstreams."""
        names = self.model_names
        return names[0] if len(names) == 1 else ""

    def route(self, wish: ModelWish) -> HeadCall | None:
        """See Upstreams."""
        model = find_model(self._heads.known(), wish.model, _now())
        if model is None:
            return None
        return HeadCall(self._means, model, wish)

    def requested(self, active: int) -> None:
        """See Upstreams."""

    # RunningRole.

    @property
    def status(self) -> RoleStatus:
        """See RunningRole."""
        tunnels = [tunnel for call in self._means.open_calls if (tunnel := call.tunnel) is not None]
        return RoleStatus(children=(), tunnels=tunnels, model=None)

    async def serve(self) -> None:
        """See RunningRole."""
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
        now, names = self.readiness, self.model_names
        if (now.state, names) != self._said:
            self._said = (now.state, names)
            LOG.info("api_state", state=now.state.value, why=now.reason)


def check_may_use(roles: frozenset[Role]) -> None:
    """Raises UserError when a node whose certificate has these roles may not call the API of heads."""
    if Role.USE not in roles:
        raise UserError(
            "this node cannot call the API of others: its certificate lacks the role `use`",
            hint="get a token with that role (`meshd invite --role use` on a member that can grant it), run "
            "`meshd leave` here, then start again with `--join TOKEN`",
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
