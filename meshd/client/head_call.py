"""One request of a client's API: the head that answers it, and the one that continues if that is lost."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from meshd.base.errors import Broken, MeshdError
from meshd.base.tasks import Owner
from meshd.client.follow_heads import HeadFollower
from meshd.client.head_choice import (
    HeadOffer,
    HeadWish,
    choose_head,
    may_come,
    told_fingerprint,
    why_none,
)
from meshd.devices.interface import Tunnel, TunnelRequest
from meshd.gateway.interface import AnswerTimings, ModelWish, Readiness
from meshd.identity.keys import PeerId
from meshd.identity.proof import MAX_PROOFS, prove_key
from meshd.model.device_sampling import DeviceSampling
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState
from meshd.peer.interface import MetadataValue
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.models import API_SERVICE, KEY_PROOF

_REFUSALS = (502, 503)  # a gateway's status codes for a model that is lost, not ready or busy


@dataclass(frozen=True, slots=True)
class CallMeans:
    """The means of a call. `owner` returns the owner of connections while the role runs."""

    heads: HeadFollower
    open_tunnel: Callable[[TunnelRequest], Tunnel]
    owner: Callable[[], Owner | None]
    me: PeerId
    open_calls: "set[HeadCall]" = field(default_factory=set)
    """The calls that a connection carries now."""


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


class HeadCall:
    """The upstream of one request (implements Upstream).

    `model` is the heads' name for it, empty for the default.
    """

    slots = None
    crashes = 0  # the head handles crashes

    def __init__(self, means: CallMeans, model: str, wish: ModelWish) -> None:
        self._means = means
        self._keys = wish.keys[:MAX_PROOFS]
        self._wish = HeadWish(model)
        self._weights_unknown = False  # it is unknown with which weights the answer was begun
        self._carried: _Carried | None = None
        self._is_refused = False
        self._reasons: list[str] = []  # why each head failed the request

    @property
    def readiness(self) -> Readiness:
        """The state of the wanted model. FAILED if no head can continue a request that was lost."""
        # An answer that was begun can only continue with the same weights.
        heads, now = self._means.heads.known(), _now()
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
        """The model's name at the heads."""
        return self._wish.model

    @property
    def facts(self) -> ServedFacts:
        """No facts: heads do not report them."""
        return ServedFacts()

    @property
    def device_sampling(self) -> DeviceSampling | None:
        """None: the head decides."""
        return None

    def _told_weights(self) -> bytes:
        """Return the fingerprint of the weights that answer; empty while it is unknown."""
        if self._wish.fingerprint or self._carried is None:
            return self._wish.fingerprint
        # The offer may be older than the load of the model: the head has reported more since.
        offer = self._carried.offer
        return offer.model.fingerprint or told_fingerprint(self._means.heads.known(), offer)

    async def connect(self) -> socket.socket:
        """Connect to the head that is the best one now. Raises Broken if there is none."""
        owner = self._means.owner()
        offer = choose_head(self._means.heads.known(), self._wish, _now())
        if offer is None or owner is None:
            raise Broken(self.readiness.reason or "this node is starting or stopping")
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        carried = self._carried = _Carried(offer)
        self._is_refused = False
        carried.tunnel = self._means.open_tunnel(
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
        """Say whether this status code means that the head refuses the request."""
        self._is_refused = status in _REFUSALS
        return self._is_refused

    async def upstream_broke(self, why: str) -> str:
        """Exclude the head that broke the answer off, and return why all heads so far failed."""
        if (carried := self._carried) is None:
            return why
        head = carried.offer.head
        self._wish = replace(self._wish, without=self._wish.without | {head.peer})
        self._means.heads.avoid(head.peer, _now())
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

    @property
    def holds_turns(self) -> str:
        """Empty: only the head's own queue knows."""
        return ""

    def queued(self, waiting: int) -> None:
        """Ignore the queue: heads have their own."""

    def requested(self, active: int) -> None:
        """Ignore the number of active requests: heads count them."""

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        """Ignore the timings: heads use them."""

    # For the role.

    @property
    def tunnel(self) -> TunnelStatus | None:
        """The connection that carries the request now."""
        tunnel = self._carried.tunnel if self._carried is not None else None
        return tunnel.status if tunnel is not None else None

    def leave_lost_head(self, now: float) -> None:
        """Give up a head that has been away for long if another head can answer."""
        carried, heads = self._carried, self._means.heads.known()
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
        if not self._keys or offer.head.told is None or not offer.head.told.asks_key:
            return {}
        return {KEY_PROOF: b"".join(prove_key(key, head=peer, member=self._means.me) for key in self._keys)}

    def _start(self, owner: Owner, carried: _Carried, tunnel: Tunnel) -> None:
        peer, means = carried.offer.head.peer, self._means
        means.heads.began(peer, 1)
        means.open_calls.add(self)

        def ended(_task: object) -> None:
            tunnel.close()  # even if its task never began
            means.heads.began(peer, -1)
            if self._carried is carried:
                means.open_calls.discard(self)

        try:
            carried.task = owner.start_for(f"peer {peer.short}", tunnel.serve(), name="api call")
        except BaseException:
            ended(None)
            raise
        carried.task.add_done_callback(ended)


def _now() -> float:
    return asyncio.get_running_loop().time()
