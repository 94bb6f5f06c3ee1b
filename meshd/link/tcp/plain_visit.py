"""Plain connections to the mesh port that somebody here awaits: each begins with a tag that is good for one.

What crosses them is not this node's business: two mesh-servers seal it with keys that crossed elsewhere
(docs/decisions/0093-sealed-pushes.md). A connection with any other tag is treated as a stranger.
"""

import asyncio
import hmac
from contextlib import suppress
from socket import socket

from meshd.base.errors import Broken, Refused
from meshd.base.peer_limits import PLAIN_AWAITED, PLAIN_AWAITED_OF_PEER
from meshd.identity.keys import PeerId

PLAIN = b"meshd.1\n"  # how such a connection begins; TLS begins with 0x16, STUN with a zero, HTTP with a G
TAG_BYTES = 16
GREETING_BYTES = len(PLAIN) + TAG_BYTES
AWAITED_SECONDS = 5.0


class Awaited:
    """A connection that may come once, within AWAITED_SECONDS. Close it in the end."""

    def __init__(self, awaiting: "AwaitedConnections", peer: PeerId, tag: bytes) -> None:
        self.peer, self.tag = peer, tag
        self._awaiting = awaiting
        self._end: socket | None = None
        self._settled = asyncio.Event()
        self._ends_at = asyncio.get_running_loop().time() + AWAITED_SECONDS

    @property
    def is_late(self) -> bool:
        """True once its time is over."""
        return asyncio.get_running_loop().time() >= self._ends_at

    def give(self, end: socket) -> None:
        """Note that it has come. The tag is used up."""
        self._end = end
        self._settle()

    async def taken(self) -> socket:
        """Wait for it, and return it; it is the caller's from here on. Raises Broken if it does not come."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._ends_at):
                await self._settled.wait()
        end, self._end = self._end, None
        if end is None:
            raise Broken("the other node did not connect in time")
        return end

    def close(self) -> None:
        """Stop waiting, and close what has come and was not taken. Idempotent."""
        if self._end is not None:
            self._end.close()
            self._end = None
        self._settle()

    def _settle(self) -> None:
        self._awaiting.forget(self)
        self._settled.set()


class AwaitedConnections:
    """The plain connections that this node awaits at its mesh port."""

    def __init__(self) -> None:
        self._all: list[Awaited] = []

    def expect(self, peer: PeerId, tag: bytes) -> Awaited:
        """Await a connection of this peer with this tag. Raises Refused if too many are awaited."""
        self._all = [awaited for awaited in self._all if not awaited.is_late]
        of_peer = sum(awaited.peer == peer for awaited in self._all)
        if len(self._all) >= PLAIN_AWAITED.most or of_peer >= PLAIN_AWAITED_OF_PEER.most:
            raise Refused("too many connections are awaited", code="busy")
        awaited = Awaited(self, peer, tag)
        self._all.append(awaited)
        return awaited

    def forget(self, awaited: Awaited) -> None:
        """Let nobody use its tag any more."""
        if awaited in self._all:
            self._all.remove(awaited)

    def find(self, tag: bytes) -> Awaited | None:
        """Return who awaits this tag. Takes as long whatever the tag is."""
        found = None
        for awaited in self._all:
            if hmac.compare_digest(awaited.tag, tag) and not awaited.is_late:
                found = awaited
        return found
