"""Offer the API of the mesh's heads on this machine, without a model.

`ApiClient` implements what its gateway asks (Models): the available models. `HeadCall` is the upstream of one
request: the head that answers it, and the one that continues if that is lost. Nothing is computed, and no
request waits for a turn here: heads have queues.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from meshd.base import log
from meshd.base.errors import Broken, MeshdError, UserError
from meshd.base.tasks import Owner
from meshd.client.follow_heads import HeadFollower
from meshd.client.head_choice import (
    HeadOffer,
    HeadWish,
    choose_head,
    find_model,
    may_come,
    model_names,
    models_and_heads,
    shortened,
    told_fingerprint,
    why_none,
)
from meshd.devices.interface import RoleStatus, Tunnel, TunnelRequest
from meshd.gateway.interface import ModelWish, NamedModel, Readiness, Upstream
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.identity.proof import MAX_PROOFS, prove_key
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState, ModelStatus
from meshd.peer.interface import MetadataValue
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.models import API_SERVICE, KEY_PROOF

_REFUSALS = (502, 503)  # a gateway's status codes for a model that is lost, not ready or busy
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
        self.heads = heads
        self.open_tunnel = open_tunnel
        self.me = me
        self.owner: Owner | None = None  # of connections, while `serve` runs
        self.open_calls: set[HeadCall] = set()  # that a connection carries now
        self._named = named
        self._last_report: tuple[ModelState, Sequence[str]] | None = None

    # Models.

    @property
    def all(self) -> Sequence[NamedModel]:
        """Return the models that some head takes requests for, each once."""
        names = model_names(self.heads.known(), _now())
        return [self._named(HeadCall(self, name, ModelWish(name))) for name in names]

    @property
    def readiness(self) -> Readiness:
        """Return the state of the API: READY while some head takes requests."""
        heads, now = self.heads.known(), _now()
        if models := models_and_heads(heads, now):
            return Readiness(ModelState.READY, f"models: {shortened(models, ', ')}")
        state, why = why_none(heads, HeadWish(), now)
        unknown = [f"no head is called `{name}`" for name in self.heads.unknown_names()]
        return Readiness(state, "; ".join([*unknown, why]))

    def find(self, wish: ModelWish) -> NamedModel | None:
        """Return the model that `wish` names, or None if no head serves it."""
        model = find_model(self.heads.known(), wish.model, _now())
        if model is None:
            return None
        return self._named(HeadCall(self, model, wish))

    # RunningRole.

    @property
    def status(self) -> RoleStatus:
        """Return the tunnels to heads that carry requests now."""
        tunnels = [tunnel for call in self.open_calls if (tunnel := call.tunnel) is not None]
        return RoleStatus(children=(), tunnels=tunnels, model=None)

    async def serve(self) -> None:
        """Follow the heads until cancelled, and move requests away from heads that are lost."""
        async with Owner() as owner:
            self.owner = owner
            try:
                owner.start(self.heads.serve(), name="heads")
                while True:
                    self._say()
                    now = _now()
                    for call in tuple(self.open_calls):
                        call.leave_lost_head(now)
                    await asyncio.sleep(_LOOK_SECONDS)
            finally:
                self.owner = None
                owner.cancel()

    def _say(self) -> None:
        now, names = self.readiness, model_names(self.heads.known(), _now())
        if (now.state, names) != self._last_report:
            self._last_report = (now.state, names)
            LOG.info("api_state", state=now.state.value, why=now.reason)


def check_may_use(roles: frozenset[Role]) -> None:
    """Check that a node with these roles may call the API of heads. Raises UserError."""
    if Role.USE not in roles:
        raise UserError(
            "this node cannot call the API of others: its certificate lacks the role `use`",
            hint="get an invite with that role (`meshd invite --role use` on a member that can grant it), "
            "run `meshd leave` here, then start again with `--join INVITE`",
        ).final()


class _Carried:
    """The connection to one head. `why` is set once it has broken."""

    def __init__(self, offer: HeadOffer) -> None:
        self.offer = offer
        self.why = ""
        self.tunnel: Tunnel | None = None
        self.task: asyncio.Task[None] | None = None

    def broke(self, error: MeshdError) -> None:
        """Note why the connection broke; the first reason is kept."""
        self.why = self.why or error.what


class HeadCall(Upstream):
    """The upstream of one request. The head counts, queues and samples.

    `model` is the heads' name for it, empty for the default.
    """

    def __init__(self, client: ApiClient, model: str, wish: ModelWish) -> None:
        self._client = client
        self._keys = wish.keys[:MAX_PROOFS]
        self._wish = HeadWish(model)
        self._weights_unknown = False  # it is unknown with which weights the answer was begun
        self._carried: _Carried | None = None
        self._is_refused = False
        self._reasons: list[str] = []  # why each head failed the request

    @property
    def readiness(self) -> Readiness:
        """Return the state of the wanted model, FAILED if no head can continue a request that was lost."""
        # An answer that was begun can only continue with the same weights.
        heads, now = self._client.heads.known(), _now()
        if self._weights_unknown and self._wish.without:
            return Readiness(ModelState.FAILED, "it is not known with which weights the answer was begun")
        if choose_head(heads, self._wish, now) is not None:
            return Readiness(ModelState.READY, "")
        state, why = why_none(heads, self._wish, now)
        if self._wish.without:
            state = ModelState.LOADING if may_come(heads, self._wish, now) else ModelState.FAILED
        return Readiness(state, why)

    @property
    def model_name(self) -> str:
        """Return the model's name at the heads."""
        return self._wish.model

    @property
    def facts(self) -> ServedFacts:
        """Return the facts that the head which would be asked now has told."""
        offer = choose_head(self._client.heads.known(), self._wish, _now())
        if offer is None:
            return ServedFacts()
        model = offer.model
        capabilities = model.capabilities or ServedFacts().capabilities  # an older head tells none
        return ServedFacts(context=model.context, created=model.created, capabilities=capabilities)

    def _told_weights(self) -> bytes:
        """Return the fingerprint of the weights that answer; empty while it is unknown."""
        if self._wish.fingerprint or self._carried is None:
            return self._wish.fingerprint
        # The offer may be older than the load of the model: the head has reported more since.
        offer = self._carried.offer
        return offer.model.fingerprint or told_fingerprint(self._client.heads.known(), offer)

    async def connect(self) -> socket.socket:
        """Connect to the head that is the best one now. Raises Broken if there is none."""
        owner = self._client.owner
        offer = choose_head(self._client.heads.known(), self._wish, _now())
        if offer is None or owner is None:
            raise Broken(self.readiness.reason or "this node is starting or stopping")
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        carried = self._carried = _Carried(offer)
        self._is_refused = False
        carried.tunnel = self._client.open_tunnel(
            TunnelRequest(
                peer=offer.head.peer,
                service=API_SERVICE,
                metadata=self._proofs(offer),
                end=ours,
                endpoint="",
                inspector=None,
                on_broken=carried.broke,
            )
        )
        try:
            self._start(owner, carried, carried.tunnel)
        except BaseException:
            theirs.close()
            raise
        return theirs

    def is_refusal(self, status: int) -> bool:
        """Return True if this status code means that the head refuses the request."""
        self._is_refused = status in _REFUSALS
        return self._is_refused

    async def upstream_broke(self, why: str) -> str:
        """Exclude the head that broke the answer off, and return why all heads so far failed."""
        if (carried := self._carried) is None:
            return why
        head = carried.offer.head
        self._wish = replace(self._wish, without=self._wish.without | {head.peer})
        self._client.heads.avoid(head.peer, _now())
        if self._is_refused:
            self._reasons.append(f"`{head.name}`: {why}")
        elif carried.why:
            self._reasons.append(f"the connection to `{head.name}` was lost: {carried.why}")
        else:
            self._reasons.append(f"`{head.name}` broke the answer off")
        return "; ".join(self._reasons)

    def generated(self, total: int, grown: int, *, alone: bool) -> None:
        """Note that the answer has begun: only the same weights can continue it."""
        if self._carried is None or self._wish.fingerprint:
            return
        self._wish = replace(self._wish, fingerprint=self._told_weights())
        self._weights_unknown = not self._wish.fingerprint

    # For the role.

    @property
    def tunnel(self) -> TunnelStatus | None:
        """Return the connection that carries the request now."""
        tunnel = self._carried.tunnel if self._carried is not None else None
        return tunnel.status if tunnel is not None else None

    def leave_lost_head(self, now: float) -> None:
        """Give up a head that has been away for long if another head can answer."""
        carried, heads = self._carried, self._client.heads.known()
        if carried is None or carried.task is None:
            return
        peer = carried.offer.head.peer
        is_away = any(head.peer == peer and head.is_away(now) for head in heads)
        wish = replace(self._wish, without=self._wish.without | {peer})
        if is_away and choose_head(heads, wish, now) is not None:
            carried.why = carried.why or "nothing was heard from it for some seconds"
            carried.task.cancel()

    def _proofs(self, offer: HeadOffer) -> dict[str, MetadataValue]:
        """Return proofs of the request's keys for a head that asks for a key; empty if there are none."""
        peer = offer.head.peer
        if not self._keys or offer.head.serving is None or not offer.head.serving.asks_key:
            return {}
        return {KEY_PROOF: b"".join(prove_key(key, head=peer, member=self._client.me) for key in self._keys)}

    def _start(self, owner: Owner, carried: _Carried, tunnel: Tunnel) -> None:
        peer, client = carried.offer.head.peer, self._client
        client.heads.began(peer, 1)
        client.open_calls.add(self)

        def ended(_task: object) -> None:
            tunnel.close()  # even if its task never began
            client.heads.began(peer, -1)
            if self._carried is carried:
                client.open_calls.discard(self)

        try:
            carried.task = owner.start_for(f"peer {peer.short}", tunnel.serve(), name="api call")
        except BaseException:
            ended(None)
            raise
        carried.task.add_done_callback(ended)


def _now() -> float:
    return asyncio.get_running_loop().time()
