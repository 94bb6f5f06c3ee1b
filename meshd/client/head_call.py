"""One request of a client's API: which head answers it, and which one goes on when that is lost."""

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
from meshd.identity.key_proof import MAX_PROOFS, prove_key
from meshd.identity.keys import PeerId
from meshd.model.device_sampling import DeviceSampling
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState
from meshd.peer.interface import MetadataValue
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.serving import API_SERVICE, KEY_PROOF

_REFUSALS = (502, 503)  # a gateway's, of a model that is lost, not ready or busy


@dataclass(frozen=True, slots=True)
class CallMeans:
    """What calls work with. `owner` gives the owner of connections while the role runs."""

    heads: HeadFollower
    open_tunnel: Callable[[TunnelRequest], Tunnel]
    owner: Callable[[], Owner | None]
    me: PeerId
    open_calls: "set[HeadCall]" = field(default_factory=set)
    """Those that a connection carries now."""


class _Carried:
    """The connection to one head. `why`: it has broken."""

    def __init__(self, offer: HeadOffer) -> None:
        self.offer = offer
        self.why = ""
        self.tunnel: Tunnel | None = None
        self.task: asyncio.Task[None] | None = None

    def broke(self, error: MeshdError) -> None:
        """The first reason is kept."""
        self.why = self.why or error.what


class HeadCall:
    """Implements Upstream for one request. `model` as heads call it, empty for their default."""

    slots = None
    crashes = 0  # the head sees to those

    def __init__(self, means: CallMeans, model: str, wish: ModelWish) -> None:
        self._means = means
        self._keys = wish.keys[:MAX_PROOFS]
        self._wish = HeadWish(model)
        self._weights_unknown = False  # those with which an answer was begun
        self._carried: _Carried | None = None
        self._is_refused = False
        self._reasons: list[str] = []  # of the heads that it was lost at

    @property
    def readiness(self) -> Readiness:
        """See Upstream. FAILED where nobody could go on with a request that was lost."""
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
        """See Upstream."""
        return self._wish.model

    @property
    def facts(self) -> ServedFacts:
        """See Upstream. Heads do not tell."""
        return ServedFacts()

    @property
    def device_sampling(self) -> DeviceSampling | None:
        """See Upstream. The head decides."""
        return None

    def _told_weights(self) -> bytes:
        """Return the fingerprint of the weights that answer; empty while it is not known."""
        if self._wish.fingerprint or self._carried is None:
            return self._wish.fingerprint
        offer = self._carried.offer  # made before the model was loaded, perhaps: the head has told more since
        return offer.model.fingerprint or told_fingerprint(self._means.heads.known(), offer)

    async def connect(self) -> socket.socket:
        """See Upstream: to the head that is the best one now."""
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
        """See Upstream."""
        self._is_refused = status in _REFUSALS
        return self._is_refused

    async def upstream_broke(self, why: str) -> str:
        """See Upstream."""
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
        """See Upstream. What was begun goes on with the same weights alone."""
        if self._carried is None or self._wish.fingerprint:
            return
        self._wish = replace(self._wish, fingerprint=self._told_weights())
        self._weights_unknown = not self._wish.fingerprint

    @property
    def holds_turns(self) -> str:
        """See Upstream. The head's own queue knows."""
        return ""

    def queued(self, waiting: int) -> None:
        """See Upstream."""

    def requested(self, active: int) -> None:
        """See Upstream."""

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        """See Upstream."""

    # For the role.

    @property
    def tunnel(self) -> TunnelStatus | None:
        """The connection that carries it now."""
        tunnel = self._carried.tunnel if self._carried is not None else None
        return tunnel.status if tunnel is not None else None

    def leave_lost_head(self, now: float) -> None:
        """Give its head up, if that has been away for long and another one can answer."""
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
        """For a head that asks for a key, if the request has any."""
        peer = offer.head.peer
        if not self._keys or offer.head.told is None or not offer.head.told.asks_key:
            return {}
        return {KEY_PROOF: b"".join(prove_key(key, head=peer, member=self._means.me) for key in self._keys)}

    def _start(self, owner: Owner, carried: _Carried, tunnel: Tunnel) -> None:
        peer, means = carried.offer.head.peer, self._means
        means.heads.began(peer, 1)
        means.open_calls.add(self)

        def ended(_task: object) -> None:
            tunnel.close()  # of a task that never began
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
