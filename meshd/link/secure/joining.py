"""A pipe between a joiner and its inviter, on links of every kind: first to join, then to stay.

A joiner that was let in need not dial again: it proves its new membership over the same pipe, which from
there on is a link like any other. A joiner that closes the pipe instead, or an inviter that does, costs the
other nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from meshd.base.admission import Slots
from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import JOINING, JOINING_OF_KEY
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven, Purpose
from meshd.link.interface import Link
from meshd.link.secure.handshake import (
    HandshakeContext,
    ProvenPipe,
    RawPipe,
    member_of,
    prove_accepted,
    prove_dialled,
)

_JOIN_SECONDS = 30.0  # the inviter's disk and the joiner's start as a member included


class Joining(ProvenPipe):
    """The pipe for both ends' messages of joining; then, on both ends, `stay` or `aclose`."""

    def __init__(
        self, pipe: RawPipe, proven: Proven, *, binding: bytes, make_link: Callable[[Proven], Link]
    ) -> None:
        super().__init__(pipe, proven.leftover)
        self.proven = replace(proven, leftover=b"")  # the pipe gives it by itself
        self._binding = binding
        self._make_link = make_link

    @property
    def peer(self) -> PeerId:
        """The node at the other end."""
        return self.proven.peer

    async def stay(self, handshake: HandshakeContext, *, dialled: bool) -> Link:
        """Return a link between members over the same pipe, which the caller closes when this fails.

        Raises Refused, RemoteProtocolError, Broken, TimeoutError.
        """
        if dialled:
            proven = await prove_dialled(self, handshake=handshake, expect=self.peer, binding=self._binding)
        else:
            # how long a joiner needs until it speaks as a member is the desk's matter
            proven = await prove_accepted(
                self, handshake=handshake, binding=self._binding, seconds=_JOIN_SECONDS
            )
        if proven.peer != self.peer or proven.purpose is not Purpose.MEMBER:
            raise RemoteProtocolError("a different node continues than the one that joined", code="purpose")
        member_of(proven)
        return self._make_link(proven)


OnJoiner = Callable[[Joining], Awaitable[bool]]


class JoinDesk:
    """The admission of a listener's joiners: few at once, each for a bounded time.

    `on_joiner` answers one, and says whether it is a member now; without it all are turned away.
    """

    def __init__(self, on_joiner: OnJoiner | None, handshake: Callable[[], HandshakeContext]) -> None:
        self._on_joiner = on_joiner
        self._handshake = handshake
        self._places = Slots(JOINING, JOINING_OF_KEY)  # each holds an invite, which may be in many hands

    async def admit(self, joining: Joining) -> Link | None:
        """Return the link of a joiner that stays. Raises as `Joining.stay`; the caller closes the pipe."""
        release = self._places.take(joining.peer) if self._on_joiner is not None else None
        if self._on_joiner is None or release is None:
            return None
        try:
            async with asyncio.timeout(_JOIN_SECONDS):
                if not await self._on_joiner(joining):
                    return None
                return await joining.stay(self._handshake(), dialled=False)
        finally:
            release()
