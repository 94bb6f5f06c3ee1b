"""Links over QUIC on plain UDP: dialling, by racing addresses (listening: listen.py).

For peers that are reachable by UDP and not by TCP: in Python a UDP link carries a tenth of what TLS over TCP
does with the same CPU. As with TCP, the listener's certificate is made at its start and trusted by nobody;
the dialler takes whichever it is shown and binds the proof to it (secure/handshake.py). When the dialler's
address changes, the connection continues from the new one (RFC 9000 section 9).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from meshd.base.errors import MeshdError
from meshd.base.log import get
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven, Purpose
from meshd.link.interface import Link, LinkInfo, LinkKind, Transport
from meshd.link.net import local_addresses
from meshd.link.net.happy_eyeballs import dial_order, race
from meshd.link.quic.pipe import QuicPipe
from meshd.link.quic.sockets import DialPort, SharedPort
from meshd.link.secure.handshake import (
    HandshakeContext,
    ProvenLink,
    dial_error,
    member_of,
    prove_dialled,
)
from meshd.link.secure.joining import Joining
from meshd.link.tcp.dial import ATTEMPT_SECONDS, CONNECT_SECONDS
from meshd.wire.dialable import Dialable

IDLE_SECONDS = 15.0  # without a sign of life, asked for after a third of it; sessions notice a death in 4.5 s
_log = get("link")

Accept = Callable[[Link], Awaitable[None]]


Ports = Callable[[Dialable], DialPort | SharedPort]


class QuicLink(ProvenLink):
    """A link over QUIC."""


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

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable]) -> QuicLink:
        """Race the UDP candidates, 250 ms apart; 10 s at most for each.

        Raises Refused when the peer said why not, else DialError with the failure that came closest.
        """
        attempt = partial(
            _attempt,
            handshake=self._handshake(),
            expect=peer,
            purpose=Purpose.MEMBER,
            idle=self._idle_seconds,
            ports=self._ports,
        )
        pipe, (proven, port) = await race(dial_order(candidates, "udp"), attempt, kind=LinkKind.QUIC)
        try:
            return QuicLink(
                pipe, proven.leftover, info_of(pipe, proven, local=port.local, path=self._path, dialled=True)
            )
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
    """Reach the inviter of a token and prove that we hold it, as tcp/dial.py does over TCP."""
    attempt = partial(
        _attempt,
        handshake=handshake,
        expect=inviter,
        purpose=Purpose.JOIN,
        join=join,
        idle=IDLE_SECONDS,
        ports=ports,
    )
    pipe, (proven, port) = await race(dial_order(candidates, "udp"), attempt, kind=LinkKind.QUIC)
    return joining(pipe, proven, binding=pipe.binding(), local=lambda: port.local, path="", dialled=True)


Reached = tuple[QuicPipe, tuple[Proven, DialPort | SharedPort]]


async def _attempt(
    made: list[QuicPipe],
    candidate: Dialable,
    *,
    handshake: HandshakeContext,
    expect: PeerId,
    purpose: Purpose,
    idle: float,
    ports: Ports,
    join: JoinKeys | None = None,
) -> Reached:
    """Dial one address, to the end of the proof. Raises DialError, Refused."""
    await load()
    from meshd.link.quic import engine, first_datagram

    port: DialPort | SharedPort | None = None
    try:
        # Start the connection, and route its datagrams to the pipe.
        port = ports(candidate)
        port.report_errors(True)
        now = asyncio.get_running_loop().time()
        settings = engine.dialler_settings(idle_seconds=idle)
        started = first_datagram.start_dialling(settings, port.origin, now)
        pipe = QuicPipe(started, port, place=candidate.place, idle_seconds=idle)
        port.attach(pipe, (started.host_cid,))
        made.append(pipe)
        # Shake hands, then prove both ends.
        async with asyncio.timeout(ATTEMPT_SECONDS):
            async with asyncio.timeout(CONNECT_SECONDS):
                pipe.transmit()
                await pipe.secure()
            port.report_errors(False)
            proven = await prove_dialled(
                pipe, handshake=handshake, expect=expect, purpose=purpose, binding=pipe.binding(), join=join
            )
            if purpose is Purpose.MEMBER:
                member_of(proven)
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

    if "meshd.link.quic.first_datagram" not in sys.modules:
        await asyncio.to_thread(_import_engine)


def _import_engine() -> None:
    from meshd.link.quic import first_datagram as _  # noqa: F401


def joining(
    pipe: QuicPipe,
    proven: Proven,
    *,
    binding: bytes,
    local: Callable[[], tuple[str, int]],
    path: str,
    dialled: bool,
) -> Joining:
    """Return the pipe as Joining, for either end; `path` as `info_of` takes it, `local` is called when it
    becomes a link.
    """

    def link(member: Proven) -> QuicLink:
        info = info_of(pipe, member, local=local(), path=path, dialled=dialled)
        return QuicLink(pipe, member.leftover, info)

    return Joining(pipe, proven, binding=binding, make_link=link)


def info_of(pipe: QuicPipe, proven: Proven, *, local: tuple[str, int], path: str, dialled: bool) -> LinkInfo:
    host, port = local
    origin = pipe.origin
    return LinkInfo(
        kind=LinkKind.QUIC,
        peer=proven.peer,
        member=member_of(proven),
        local=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        remote=pipe.remote,
        path=path or local_addresses.path_between(host, origin.address[0] if origin else ""),
        dialled=dialled,
        established_at=asyncio.get_running_loop().time(),
    )
