"""The entrance of a listener, whatever carries it: an incoming connection becomes a link, a joiner, or
nothing.

Few unauthenticated connections wait here, each for a bounded time (base/unproven_connections.py). One that
has proven its identity is handed upward, and closed when it comes back from there.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from meshd.base.errors import Closed, MeshdError
from meshd.base.log import get
from meshd.base.tasks import Owner
from meshd.base.unproven_connections import Standing, UnprovenConnections
from meshd.identity.proof import Proven, Purpose, has_caller_mark
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.interface import Accept, BytePipe, LetIn, Link
from meshd.link.net import local_addresses
from meshd.link.secure.handshake import HandshakeContext, RawPipe, present, prove_accepted
from meshd.link.secure.joining import JoinDesk, Joining, OnJoiner
from meshd.wire.address import Candidate, Proto, ScopedCandidate

_log = get("link")

MakeLink = Callable[[Proven], Link]


class IncomingPipe(RawPipe, Protocol):
    """A connection that was taken in."""

    @property
    def remote(self) -> str: ...
    async def secure(self) -> None: ...
    def widen(self) -> None: ...
    def abort(self) -> None: ...


class Visiting(BytePipe, Protocol):
    """A connection of a browser, which makes no link."""

    host: str
    remote: str

    async def request(self) -> bytes: ...
    async def answer(self, *pieces: bytes) -> None: ...
    async def open(self, key: bytes) -> None: ...
    def abort(self) -> None: ...


class Visitors(Protocol):
    """Answers browsers at the port of a listener."""

    def expects(self, local: str, remote: str) -> bool:
        """Return True if a browser that comes from one address to the other is answered at all."""
        ...

    async def serve(self, visit: Visiting, let_in: LetIn) -> bool:
        """Run the whole life of a visit; False: its browser has proven nothing. `let_in`: once it has."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """An incoming connection from `host` (and `port`, if of UDP).

    `blames`: does it count against that address when it proves nothing? Told whether it got as far as to be
    encrypted.
    """

    pipe: IncomingPipe
    host: str
    make_link: MakeLink
    blames: Callable[[bool], bool]
    port: int = 0


class Entrance:
    """The entrance of one listener. `certificate` is what its connections show, and what proofs are
    bound to.
    """

    def __init__(
        self, handshake: Callable[[], HandshakeContext], *, on_joiner: OnJoiner | None, proof_seconds: float
    ) -> None:
        self._handshake = handshake
        self._proof_seconds = proof_seconds
        self.certificate = make_link_certificate()
        self.unproven = UnprovenConnections()
        self._desk = JoinDesk(on_joiner, handshake)

    def hears(self, host: str, port: int = 0) -> bool:
        """Return True if that address is listened to. `port`: of UDP."""
        callers = self._handshake().callers
        return callers is None or callers.hears(host, asyncio.get_running_loop().time(), port)

    def arrive(self, arrival: Arrival, accept: Accept, owner: Owner, *, name: str) -> None:
        """Own an arrival to its end."""
        pipe, host = arrival.pipe, arrival.host
        callers = self._handshake().callers
        known = callers is not None and callers.knows(host, asyncio.get_running_loop().time(), arrival.port)
        standing = Standing.KNOWN_ADDRESS if known else Standing.STRANGER
        self.unproven.arrive(pipe, host=host, send_away=pipe.abort, standing=standing)
        try:
            task = owner.start_for(host, self._live(arrival, accept), name=f"{name}-{pipe.remote}")
        except Closed:  # shutting down
            self._part(pipe)
        else:
            # a task that is cancelled before its first step never comes to its own clean-up
            task.add_done_callback(lambda _: self._part(pipe))

    def visited(self, visit: Visiting, visitors: Visitors, owner: Owner, *, instead_of: IncomingPipe) -> None:
        """Own a browser's connection to its end; it takes the place of the pipe that it was."""
        self.unproven.leave(instead_of)
        callers = self._handshake().callers
        known = callers is not None and callers.knows(visit.host, asyncio.get_running_loop().time())
        standing = Standing.KNOWN_ADDRESS if known else Standing.STRANGER
        self.unproven.arrive(visit, host=visit.host, send_away=visit.abort, standing=standing)

        def part(_task: object = None) -> None:
            visit.abort()
            self.unproven.leave(visit)

        try:
            task = owner.start_for(visit.host, self._receive(visit, visitors), name=f"visit-{visit.remote}")
        except Closed:  # shutting down
            part()
        else:
            task.add_done_callback(part)

    async def _receive(self, visit: Visiting, visitors: Visitors) -> None:
        """Run the whole life of a browser's connection."""
        try:
            is_proven = await visitors.serve(visit, lambda _key: self.unproven.leave(visit))
            callers = self._handshake().callers
            if not is_proven and callers is not None:
                callers.failed(visit.host, asyncio.get_running_loop().time())
        finally:
            await visit.aclose()

    def goes_on(self, pipe: IncomingPipe, hello: bytes | bytearray) -> bool:
        """Return True if a TLS handshake that began with `hello` is worth its signature.

        A caller with a mark of this mesh is kept apart from strangers from here on. While their places are
        all taken, a stranger that has sent a whole hello without one is dropped.
        """
        handshake = self._handshake()
        if has_caller_mark(hello, handshake.mesh, handshake.credentials.key.peer):
            self.unproven.promote(pipe)
            return True
        is_whole = len(hello) >= 5 + int.from_bytes(hello[3:5], "big")  # RFC 8446, section 5.1
        return not (is_whole and self.unproven.is_crowded_for(pipe))

    def _part(self, pipe: IncomingPipe) -> None:
        pipe.abort()
        self.unproven.leave(pipe)

    async def _live(self, arrival: Arrival, accept: Accept) -> None:
        """Run the whole life of one incoming connection."""
        pipe, host, port = arrival.pipe, arrival.host, arrival.port
        secured = False
        proven: Proven | None = None
        handshake = self._handshake()
        try:
            async with asyncio.timeout(self._proof_seconds):
                await pipe.secure()
                secured = True
                handshake = self._handshake()
                if handshake.credentials.chain is None:
                    return  # not a member of any mesh yet: nothing to prove, nobody to let in
                proven = await prove_accepted(pipe, handshake=handshake, binding=self.certificate.sha256)
            self.unproven.leave(pipe)
            pipe.widen()
            with present(handshake, proven, host, port):
                await self.hand_over(pipe, proven, arrival.make_link, accept)
        except (MeshdError, TimeoutError) as error:
            if proven is None and handshake.callers is not None and arrival.blames(secured):
                handshake.callers.failed(host, asyncio.get_running_loop().time(), port)
            _log.debug("link_ended", remote=pipe.remote, why=str(error) or "timed out")
        finally:
            await pipe.aclose()
            self.unproven.leave(pipe)

    async def hand_over(self, pipe: RawPipe, proven: Proven, make_link: MakeLink, accept: Accept) -> None:
        """Pass it to `accept` as a link: a member at once, a joiner when it has joined."""
        if proven.purpose is Purpose.MEMBER:
            await accept(make_link(proven))
        elif proven.purpose is Purpose.JOIN:
            newcomer = Joining(pipe, proven, binding=self.certificate.sha256, make_link=make_link)
            link = await self._desk.admit(newcomer)
            if link is not None:
                await accept(link)


class PortListener:
    """The common part of listeners that take links in on a port of this node. Call `open` first."""

    _proto: Proto

    def __init__(self, entrance: Entrance, bind: Callable[[], list[socket.socket]]) -> None:
        """Set up. `bind` returns sockets that are all on one port, or raises PortTaken, UserError."""
        self._entrance = entrance
        self._bind = bind
        self._sockets: list[socket.socket] = []
        self._places: tuple[str, ...] = ()
        self._port = 0

    @property
    def port(self) -> int:
        """The port in use, known after `open`."""
        return self._port

    @property
    def unproven(self) -> int:
        """The connections that have not proven who they are yet."""
        return len(self._entrance.unproven)

    def open(self) -> None:
        """Bind: from here on connections wait for `serve`. Raises PortTaken, UserError."""
        self._sockets = self._bind()
        self._places = tuple(sock.getsockname()[0] for sock in self._sockets)
        self._port = self._sockets[0].getsockname()[1]

    def close(self) -> None:
        """Close the port, if it is still open."""
        while self._sockets:
            self._sockets.pop().close()

    def candidates(self) -> Sequence[Candidate]:
        """Return where this listener can be reached, as known now: real interfaces first, loopback last."""
        return local_addresses.offered(self._places, self._port, self._proto) if self._port else ()

    def on_links(self) -> Sequence[ScopedCandidate]:
        """Return where neighbours on one link reach it by link-local IPv6, as known now."""
        return local_addresses.offered_on_links(self._places, self._port, self._proto) if self._port else ()
