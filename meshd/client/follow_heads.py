"""Follow the heads of the mesh: each is asked once what it serves, and reports changes."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from meshd.base import log
from meshd.base.backoff import Backoff
from meshd.base.errors import MeshdError
from meshd.base.peer_limits import SERVING_HEARD
from meshd.base.tasks import Owner
from meshd.client.head_choice import HEAD_AVOIDED_SECONDS, KnownHead, heads_to_follow
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.identity.naming import HEAD_ROLE
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, PeerState, PeerStatus, Stream
from meshd.peer.messages import MessageStream
from meshd.wire.models import SERVING_SERVICE, decode_serving

_AGAIN = Backoff(first=0.5, factor=2.0, most=30.0)
_STEADY_SECONDS = 30.0  # a failure later than this counts as the first one
OpenStream = Callable[[PeerId, str], Awaitable[Stream]]
"""Open a stream to a service of a member, connecting to the member first if necessary."""
LOG = log.get("client")


class HeadFollower:
    """Follow heads while `serve` runs. `only`: names or beginnings of ids; other heads are not followed."""

    def __init__(self, mesh: Mesh, open_stream: OpenStream, only: Sequence[str] = ()) -> None:
        self._mesh = mesh
        self._open_stream = open_stream
        self._only = tuple(only)
        self._followed: dict[PeerId, KnownHead] = {}  # without what the mesh knows of them
        self._tasks: dict[PeerId, asyncio.Task[None]] = {}

    def known(self) -> list[KnownHead]:
        """Return the followed heads as they are now."""
        return [
            replace(
                head,
                name=status.name or status.peer.short,
                away_since=None if status.state is PeerState.CONNECTED else status.since,
                rtt=_rtt(status),
                says_banned=status.says_banned,
            )
            for status in self._mesh.peers()
            if (head := self._followed.get(status.peer)) is not None
        ]

    def unknown_names(self) -> list[str]:
        """Return the names in `only` that no head has: a misspelled name would be waited for without end."""
        names = {str(peer.peer): peer.name for peer in self._mesh.peers() if peer.role == HEAD_ROLE}
        return [text for text in self._only if not naming.meant(text, names)]

    def began(self, peer: PeerId, by: int) -> None:
        """Add `by` to the number of this node's requests under way at the head."""
        if (head := self._followed.get(peer)) is not None:
            self._followed[peer] = replace(head, mine=head.mine + by)

    def avoid(self, peer: PeerId, now: float) -> None:
        """Note that the head has lost or refused a request."""
        if (head := self._followed.get(peer)) is not None:
            self._followed[peer] = replace(head, avoided_until=now + HEAD_AVOIDED_SECONDS)

    async def serve(self) -> None:
        """Follow the present heads until cancelled."""
        seen = -1
        async with Owner() as owner:
            while True:
                wanted = heads_to_follow(self._heads(), self._followed.keys())
                for peer in self._followed.keys() - wanted:
                    del self._followed[peer]
                    self._tasks.pop(peer).cancel()
                for peer in wanted - self._followed.keys():
                    self._followed[peer] = KnownHead(peer, "")
                    task = owner.start_for(f"peer {peer.short}", self._follow(peer), name="follow head")
                    self._tasks[peer] = task
                    task.add_done_callback(partial(self._forget, peer))
                seen = await self._mesh.changed(seen)

    def _heads(self) -> Iterator[tuple[PeerId, Hashable]]:
        """Yield each head with the node that admitted it."""
        for status in self._mesh.peers():
            if not self._is_head(status):
                continue
            member = self._mesh.member(status.peer)
            # A member that may not use the mesh cannot have anybody's requests either.
            if member is not None and member.may(Role.USE):
                yield status.peer, member.chain.admitter

    def _is_head(self, status: PeerStatus) -> bool:
        names = {str(status.peer): status.name}
        meant = not self._only or any(naming.meant(text, names) for text in self._only)
        return meant and status.role == HEAD_ROLE

    async def _follow(self, peer: PeerId) -> None:
        """Follow one head until it is no head of this mesh any more."""
        failures, loop = 0, asyncio.get_running_loop()
        while await self._is_there(peer):
            began = loop.time()
            try:
                await self._listen(peer)
            except MeshdError as error:
                self._followed[peer] = replace(self._followed[peer], serving=None, why_not=error.what)
                LOG.info("head_not_followed", peer=peer.short, why=error.what)
            failures = 0 if loop.time() - began > _STEADY_SECONDS else failures + 1
            await asyncio.sleep(_AGAIN.delay(failures, 0.0))

    async def _is_there(self, peer: PeerId) -> bool:
        """Wait until the head is connected, or connectable on demand.

        Returns False if it is no head any more.
        """
        seen = -1
        while True:
            status = next((status for status in self._mesh.peers() if status.peer == peer), None)
            if status is None or not self._is_head(status):
                return False
            if status.state is PeerState.CONNECTED or status.present:
                return True
            why_not = status.stopped or status.last_error or "not connected"
            self._followed[peer] = replace(self._followed[peer], why_not=why_not)
            seen = await self._mesh.changed(seen)

    async def _listen(self, peer: PeerId) -> None:
        """Note each message of the head. Raises MeshdError when the stream ends."""
        stream = await self._open_stream(peer, SERVING_SERVICE)
        messages = MessageStream(stream, SERVING_HEARD)
        try:
            while True:
                serving = decode_serving(await messages.receive())
                self._followed[peer] = replace(self._followed[peer], serving=serving)
        finally:
            stream.reset(Code.CANCELLED, "not followed any more")

    def _forget(self, peer: PeerId, task: asyncio.Task[None]) -> None:
        if self._tasks.get(peer) is task:  # else it has given way to another head, and may be followed again
            del self._followed[peer], self._tasks[peer]


def _rtt(status: PeerStatus) -> float | None:
    return next((path.idle_rtt for path in status.paths if path.selected), None)
