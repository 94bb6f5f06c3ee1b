"""Links over QUIC on plain UDP: addresses of a peer are raced; one UDP port takes all connections in.

For peers that are reachable by UDP and not by TCP: in Python a UDP link carries a tenth of what TLS over TCP
does with the same CPU. As with TCP, the listener's certificate is made at its start and trusted by nobody;
the dialler takes whichever it is shown and binds the proof to it (secure/handshake.py). When the dialler's
address changes, the connection continues from the new one (RFC 9000 section 9).

Anybody can send a datagram, and forge where it comes from. So a listener keeps nothing of a stranger before
its first packet has shown to be QUIC, few connections wait for their proof (base/unproven_connections.py)
with 64 KiB of credit each, and at most three times of what came is sent (RFC 9000 section 8.1). From the
third connection of one address on, and once 16 wait in all, strangers must show first that they are where
they say.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from meshd.base.errors import LocalProtocolError, MeshdError
from meshd.base.fault_boundary import Contained, Fault, contained
from meshd.base.tasks import Owner
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven, Purpose
from meshd.link.interface import Accept, LinkKind, Transport
from meshd.link.net import local_addresses
from meshd.link.net.happy_eyeballs import dial_order, race
from meshd.link.net.udp_sockets import Origin, bind_udp
from meshd.link.quic.pipe import QuicPipe
from meshd.link.quic.sockets import DialPort, Door, SharedPort
from meshd.link.secure.entrance import Arrival, Entrance, PortListener
from meshd.link.secure.handshake import (
    PROOF_SECONDS,
    HandshakeContext,
    ProvenLink,
    dial_error,
    prove_dialled,
    proven_link,
)
from meshd.link.secure.joining import Joining, OnJoiner
from meshd.link.tcp.links import ATTEMPT_SECONDS, CONNECT_SECONDS
from meshd.wire.dialable import Dialable
from meshd.wire.stun import Endpoint

if TYPE_CHECKING:
    from meshd.link.quic.engine import Reception

IDLE_SECONDS = 15.0  # without a sign of life, asked for after a third of it; sessions notice a death in 4.5 s

Ports = Callable[[Dialable], DialPort | SharedPort]
_LOAD_AGAIN_SECONDS = 1.0
_UNASKED = 16  # connections that may wait without having shown where they are, when another one comes
_UNASKED_OF_ADDRESS = 2
_WAITING_STRANGERS = 16  # first datagrams kept while the library is loaded, once


class QuicDialer:
    """Makes QUIC links over plain UDP; `handshake` is called at each dial."""

    transport = Transport.QUIC

    def __init__(
        self,
        handshake: Callable[[], HandshakeContext],
        *,
        ports: Ports = DialPort,
        path: str = "",
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Set up. `ports` makes the port to dial an address from: a new one, or `QuicListener.dial_port`.

        `path`: the name of the path (LinkInfo), where the addresses do not tell.
        """
        self._path = path
        self._handshake = handshake
        self._ports = ports
        self._idle_seconds = idle_seconds

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable]) -> ProvenLink:
        """Race the UDP candidates, 250 ms apart; 10 s at most for each.

        Raises Refused when the peer said why not, else DialError with the failure that came closest.
        """
        attempt = partial(
            _attempt,
            handshake=self._handshake(),
            expect=peer,
            idle=self._idle_seconds,
            ports=self._ports,
        )
        pipe, (proven, port) = await race(dial_order(candidates, "udp"), attempt, kind=LinkKind.QUIC)
        try:
            return _link(pipe, proven, local=port.local, path=self._path, dialled=True)
        except (MeshdError, OSError) as error:
            pipe.abort()
            raise dial_error(error, kind=LinkKind.QUIC, place=pipe.remote) from error


async def dial_join(
    candidates: Sequence[Dialable],
    *,
    handshake: HandshakeContext,
    inviter: PeerId,
    join: JoinKeys,
    ports: Ports = DialPort,
) -> Joining:
    """Reach the inviter of a token and prove that we hold it, as tcp/links.py does over TCP."""
    attempt = partial(
        _attempt,
        handshake=handshake,
        expect=inviter,
        join=join,
        idle=IDLE_SECONDS,
        ports=ports,
    )
    pipe, (proven, port) = await race(dial_order(candidates, "udp"), attempt, kind=LinkKind.QUIC)

    def make_link(member: Proven) -> ProvenLink:
        return _link(pipe, member, local=port.local, path="", dialled=True)

    return Joining(pipe, proven, binding=pipe.binding(), make_link=make_link)


Reached = tuple[QuicPipe, tuple[Proven, DialPort | SharedPort]]


async def _attempt(
    made: list[QuicPipe],
    candidate: Dialable,
    *,
    handshake: HandshakeContext,
    expect: PeerId,
    idle: float,
    ports: Ports,
    join: JoinKeys | None = None,
) -> Reached:
    """Dial one address, to the end of the proof. Raises DialError, Refused."""
    await load()
    from meshd.link.quic import engine

    port: DialPort | SharedPort | None = None
    try:
        # Start the connection, and route its datagrams to the pipe.
        port = ports(candidate)
        port.report_errors(True)
        now = asyncio.get_running_loop().time()
        settings = engine.dialler_settings(idle_seconds=idle)
        started = engine.start_dialling(settings, port.origin, now)
        pipe = QuicPipe(started, port, place=candidate.place, idle_seconds=idle)
        port.attach(pipe, (started.host_cid,))
        made.append(pipe)
        # Shake hands, then prove both ends.
        async with asyncio.timeout(ATTEMPT_SECONDS):
            async with asyncio.timeout(CONNECT_SECONDS):
                pipe.transmit()
                await pipe.secure()
            port.report_errors(False)
            purpose = Purpose.MEMBER if join is None else Purpose.JOIN
            proven = await prove_dialled(
                pipe, handshake=handshake, expect=expect, purpose=purpose, binding=pipe.binding(), join=join
            )
    except (MeshdError, OSError) as error:
        # The port may know why: an ICMP error says more than a timeout.
        if port is not None:
            if port.pipe is not None:
                await port.pipe.aclose()
            port.close()
        why = port.error if port is not None and port.error is not None else error
        raise dial_error(why, kind=LinkKind.QUIC, place=candidate.place) from error
    except asyncio.CancelledError:
        if port is not None:
            if port.pipe is not None:
                port.pipe.abort()
            port.close()
        raise
    # The other side is proven: open full windows.
    pipe.widen()
    return pipe, (proven, port)


async def load() -> None:
    """Import the library, in a thread the first time: it takes half a second and 20 MB."""
    import sys

    if "meshd.link.quic.engine" not in sys.modules:
        await asyncio.to_thread(_import_engine)


def _import_engine() -> None:
    from meshd.link.quic import engine as _  # noqa: F401


def _link(pipe: QuicPipe, proven: Proven, *, local: tuple[str, int], path: str, dialled: bool) -> ProvenLink:
    origin = pipe.origin
    return proven_link(
        pipe,
        proven,
        kind=LinkKind.QUIC,
        local=str(Endpoint(*local)),
        remote=pipe.remote,
        path=path or local_addresses.path_between(local[0], origin.address[0] if origin else ""),
        dialled=dialled,
    )


class QuicListener(PortListener):
    """Takes in QUIC links on UDP. `open` first, then `serve` until cancelled, which closes it.

    Its opener calls `close` in the end: a `serve` that is cancelled before its first step does not.
    `host` empty: every address of this machine. Joiners are handed to `on_joiner` (link/secure/joining.py);
    without it they are turned away. Datagrams that are not QUIC's (a STUN message begins with two zero bits,
    RFC 9443) go to `on_other`, for which `send_other` answers. `path`: what the path is called (LinkInfo),
    where the addresses do not tell.
    """

    kind = LinkKind.QUIC
    _proto = "udp"

    def __init__(
        self,
        handshake: Callable[[], HandshakeContext],
        *,
        host: str = "",
        port: int = 0,
        on_joiner: OnJoiner | None = None,
        on_other: Callable[[bytes, Origin], None] | None = None,
        path: str = "",
        proof_seconds: float = PROOF_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        entrance = Entrance(handshake, on_joiner=on_joiner, proof_seconds=proof_seconds)
        super().__init__(entrance, partial(bind_udp, host, port))
        self._on_other = on_other
        self._path = path
        self._idle_seconds = idle_seconds
        self._doors: list[Door] = []
        self._reception: Reception | None = None
        self._waiting: list[tuple[Door, bytes, Origin]] = []
        self._loading = asyncio.Event()
        self._welcome: Callable[[QuicPipe, Door], None] | None = None

    def adopt(self, sock: socket.socket) -> None:
        """Take connections in on this bound socket instead of `open`; it is closed with the others."""
        host, port = sock.getsockname()[:2]
        self._sockets, self._places, self._port = [sock], (host,), port

    def close(self) -> None:
        """Close the port, if it is still open."""
        while self._doors:
            self._doors.pop().socket.close()
        super().close()

    def send_other(self, data: bytes, origin: Origin) -> None:
        """Send a datagram that is not QUIC's from the port, to where `on_other` got one from."""
        self._open_doors()
        v6 = ":" in origin.address[0]
        for door in self._doors:
            if door.socket.v6 is v6:
                door.socket.send([data], origin)
                return

    def dial_port(self, candidate: Dialable) -> DialPort | SharedPort:
        """Return a port to dial `candidate` from: this listener's, if it has one of that family."""
        self._open_doors()
        for door in self._doors:
            if door.socket.v6 is candidate.is_v6:
                return SharedPort(door, candidate)
        return DialPort(candidate)

    def _open_doors(self) -> None:
        """Start reading the sockets; also for a dial before `serve`, when a node that joins takes nobody in
        yet.
        """
        if not self._doors:
            self._doors = [Door(sock, self._stranger) for sock in self._sockets]

    async def serve(self, accept: Accept) -> None:
        """Hand every proven link to `accept`, which keeps it as long as it lives, until cancelled.

        The link is closed when `accept` returns; its MeshdErrors end that link only.
        """
        if not self._sockets:
            raise LocalProtocolError("the listener is not open")
        try:
            async with Owner() as owner:
                self._welcome = partial(self._arrive, accept=accept, owner=owner)
                self._open_doors()
                await self._load()
                from meshd.link.quic import engine

                certificate = self._entrance.certificate
                settings = engine.listener_settings(certificate, idle_seconds=self._idle_seconds)
                self._reception = engine.Reception(settings)
                waiting, self._waiting = self._waiting, []
                for door, data, origin in waiting:
                    self._stranger(door, data, origin)
                    door.batch()
                await asyncio.Event().wait()
        finally:
            self.close()

    async def _load(self) -> None:
        """Load the library when somebody comes; retry later without a free descriptor."""
        while True:
            await self._loading.wait()
            try:
                await contained(load(), source="this machine", name="load QUIC")
            except MeshdError:
                self._loading.clear()
                await asyncio.sleep(_LOAD_AGAIN_SECONDS)
            else:
                return

    def _stranger(self, door: Door, data: bytes, origin: Origin) -> None:
        if not data or not data[0] & 0x40:
            if self._on_other is not None:
                self._on_other(data, origin)
            return
        if self._reception is None:
            if data[0] & 0x80 and len(self._waiting) < _WAITING_STRANGERS:
                self._waiting.append((door, data, origin))
                self._loading.set()
            return
        if not self._entrance.hears(*origin.address):
            return
        now = asyncio.get_running_loop().time()
        waiting = self._entrance.unproven
        busy = len(waiting) >= _UNASKED or waiting.count_from(origin.address[0]) >= _UNASKED_OF_ADDRESS
        try:
            with Contained("network", "QUIC datagram"):
                answer = self._reception.first(data, origin, now, busy=busy)
        except Fault:
            return
        if isinstance(answer, bytes):
            door.send([answer], origin)
        elif answer is not None and self._welcome is not None:
            engine, given = answer
            place = str(Endpoint(*origin.address))
            pipe = QuicPipe(engine, door, place=place, idle_seconds=self._idle_seconds)
            door.add(pipe, (given, engine.host_cid))
            self._welcome(pipe, door)

    def _arrive(self, pipe: QuicPipe, door: Door, *, accept: Accept, owner: Owner) -> None:
        # where its first datagram came from, and all of its handshake, whatever has come since
        origin = pipe.origin
        host, port = origin.address if origin else ("", 0)

        def make_link(proven: Proven) -> ProvenLink:
            origin = pipe.origin
            local = (door.socket.local_host(origin) if origin else "", self._port)
            return _link(pipe, proven, local=local, path=self._path, dialled=False)

        def blames(secured: bool) -> bool:
            return secured  # who has not answered may be anywhere, whatever its datagrams say

        self._entrance.arrive(Arrival(pipe, host, make_link, blames, port), accept, owner, name="quic")
