"""Links over TCP with TLS 1.3: dial by racing addresses, listen on all of them.

The listener's certificate is made at its start and trusted by nobody; the dialler takes whichever it is shown
and binds the proof to it (secure/handshake.py), so that somebody in the middle, who must show another one,
cannot pass a proof on. Both ends of a link are proven before anything of it is handed upward.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from meshd.base.errors import Closed, LocalProtocolError, MeshdError
from meshd.base.log import get
from meshd.base.tasks import Owner
from meshd.base.unproven import Doorstep
from meshd.identity.certificate import make_link_certificate
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven, Purpose
from meshd.link.interface import Link, LinkInfo, LinkKind, Transport
from meshd.link.net import local_addresses
from meshd.link.net.happy_eyeballs import dial_order, race
from meshd.link.secure.handshake import (
    PROOF_SECONDS,
    ProvenLink,
    Standing,
    dial_error,
    member_of,
    present,
    prove_accepted,
    prove_dialled,
)
from meshd.link.secure.joining import JoinDesk, Joining, OnJoiner
from meshd.link.secure.tls import dialer_context, listener_context
from meshd.link.tcp.bind import accept_from, listen
from meshd.link.tcp.connect import connect
from meshd.link.tcp.pipe import TcpPipe
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable
from meshd.wire.limits import MAX_CANDIDATES

CONNECT_SECONDS = 3.0  # one lost SYN is sent again after 1 s, a second one after 3 s
ATTEMPT_SECONDS = 10.0  # connecting, TLS and proof together, for one address

_log = get("link")

Accept = Callable[[Link], Awaitable[None]]
Reached = tuple[TcpPipe, Proven]


class TcpLink(ProvenLink):
    """A link over TLS over TCP."""


class TcpDialer:
    """Makes TCP links; `standing` is asked anew at each dial."""

    transport = Transport.TCP

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing
        self._context = dialer_context()

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable]) -> TcpLink:
        """Race the TCP candidates, 250 ms apart; 10 s at most for each.

        Raises Refused when the peer said why not, else DialError with the failure that came closest.
        """
        standing = self._standing()
        attempt = partial(
            _attempt, self._context, standing=standing, expect=peer, purpose=Purpose.MEMBER, join=None
        )
        pipe, proven = await race(dial_order(candidates, "tcp"), attempt, kind=LinkKind.TCP)
        try:
            mapped = _mapped(pipe, candidates)
            return TcpLink(pipe, proven.leftover, _info(pipe, proven, dialled=True, mapped=mapped))
        except MeshdError:
            pipe.abort()
            raise


async def dial_join(
    candidates: Sequence[Dialable], *, standing: Standing, inviter: PeerId, join: JoinKeys
) -> Joining:
    """Reach the inviter of a token and prove that we hold it; what is said then is rendezvous/join.py's.

    `standing` has the key that asks and the token's mesh. The caller closes the pipe, or stays. Raises as
    `TcpDialer.dial`.
    """
    attempt = partial(
        _attempt, dialer_context(), standing=standing, expect=inviter, purpose=Purpose.JOIN, join=join
    )
    pipe, proven = await race(dial_order(candidates, "tcp"), attempt, kind=LinkKind.TCP)
    mapped = _mapped(pipe, candidates)
    return _joining(pipe, proven, binding=pipe.binding(), dialled=True, mapped=mapped)


class TcpListener:
    """Takes in TCP links. `open` first, then `serve` until cancelled, which closes it.

    Whoever opens it calls `close` in the end: a `serve` that is cancelled before its first step does not.
    `host` empty: every address of this machine. Joiners are handed to `on_joiner` (link/secure/joining.py);
    without it they are turned away.
    """

    def __init__(
        self,
        standing: Callable[[], Standing],
        *,
        host: str = "",
        port: int = 0,
        on_joiner: OnJoiner | None = None,
        proof_seconds: float = PROOF_SECONDS,
    ) -> None:
        self._standing = standing
        self._host = host
        self._asked_port = port
        self._proof_seconds = proof_seconds
        self._certificate = make_link_certificate()
        self._context: ssl.SSLContext = listener_context(self._certificate)
        self._sockets: list[socket.socket] = []
        self._places: tuple[str, ...] = ()
        self._port = 0
        self._doorstep = Doorstep()
        self._desk = JoinDesk(on_joiner, standing)

    @property
    def kind(self) -> LinkKind:
        """TCP."""
        return LinkKind.TCP

    @property
    def port(self) -> int:
        """The port in use, known after `open`."""
        return self._port

    @property
    def unproven(self) -> int:
        """Connections that have not proven who they are yet."""
        return len(self._doorstep)

    def open(self) -> None:
        """Bind and listen: from here on connections wait for `serve`. Raises PortTaken, UserError."""
        self._sockets = listen(self._host, self._asked_port)
        self._places = tuple(sock.getsockname()[0] for sock in self._sockets)
        self._port = self._sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening, if it still does."""
        while self._sockets:
            self._sockets.pop().close()

    def candidates(self) -> Sequence[Candidate]:
        """Where this listener can be reached, as known now: real interfaces first, loopback last."""
        if not self._port:
            return ()
        everywhere = [place for place in self._places if place in ("0.0.0.0", "::")]
        hosts = [place for place in self._places if place not in everywhere]
        if everywhere:
            reachable = (*local_addresses.hosts(), "127.0.0.1", "::1")
            hosts += [host for host in reachable if ("::" if ":" in host else "0.0.0.0") in everywhere]
        offered = [Candidate(host, self._port) for host in hosts if "%" not in host]
        return offered[:MAX_CANDIDATES]

    async def serve(self, accept: Accept) -> None:
        """Hand every proven link to `accept`, which keeps it as long as it lives, until cancelled.

        The link is closed when `accept` returns; its MeshdErrors end that link only.
        """
        if not self._sockets:
            raise LocalProtocolError("the listener is not open")
        try:
            async with Owner() as owner:

                def made(pipe: TcpPipe) -> None:
                    self._arrive(pipe, accept, owner)

                def fresh() -> TcpPipe:
                    return TcpPipe(self._context, server_side=True, on_made=made)

                for sock in self._sockets:
                    owner.start(accept_from(sock, fresh), name=f"tcp-accept-{sock.getsockname()[0]}")
                await asyncio.Event().wait()
        finally:
            self.close()

    def _arrive(self, pipe: TcpPipe, accept: Accept, owner: Owner) -> None:
        callers = self._standing().callers
        if callers is not None and not callers.hears(pipe.remote_host, asyncio.get_running_loop().time()):
            pipe.abort()
            return
        self._doorstep.arrive(pipe, host=pipe.remote_host, send_away=pipe.abort)
        try:
            task = owner.start_for(pipe.remote_host, self._welcome(pipe, accept), name=f"tcp-{pipe.remote}")
        except Closed:  # shutting down
            self._part(pipe)
        else:
            # a task that is cancelled before its first step never comes to its own clean-up
            task.add_done_callback(lambda _: self._part(pipe))

    def _part(self, pipe: TcpPipe) -> None:
        pipe.abort()
        self._doorstep.leave(pipe)

    async def _welcome(self, pipe: TcpPipe, accept: Accept) -> None:
        """The whole life of one incoming connection."""
        proven: Proven | None = None
        standing = self._standing()
        try:
            async with asyncio.timeout(self._proof_seconds):
                await pipe.secure()
                standing = self._standing()
                if standing.credentials.chain is None:
                    return  # not a member of any mesh yet: nothing to prove, nobody to let in
                proven = await prove_accepted(pipe, standing=standing, binding=self._certificate.sha256)
            self._doorstep.leave(pipe)
            pipe.widen()
            with present(standing, proven, pipe.remote_host):
                await self._hand_over(pipe, proven, accept)
        except (MeshdError, TimeoutError) as error:
            if proven is None and standing.callers is not None and not pipe.asked_where:
                standing.callers.failed(pipe.remote_host, asyncio.get_running_loop().time())
            _log.debug("link_ended", remote=pipe.remote, why=str(error) or "timed out")
        finally:
            await pipe.aclose()
            self._doorstep.leave(pipe)

    async def _hand_over(self, pipe: TcpPipe, proven: Proven, accept: Accept) -> None:
        # who comes from outside to a private address came by a port of the router
        mapped = ipaddress.ip_address(pipe.local_host).is_private
        if proven.purpose is Purpose.MEMBER:
            await accept(TcpLink(pipe, proven.leftover, _info(pipe, proven, dialled=False, mapped=mapped)))
        elif proven.purpose is Purpose.JOIN:
            binding = self._certificate.sha256
            joining = _joining(pipe, proven, binding=binding, dialled=False, mapped=mapped)
            link = await self._desk.admit(joining)
            if link is not None:
                await accept(link)


async def _attempt(
    context: ssl.SSLContext,
    made: list[TcpPipe],
    candidate: Dialable,
    *,
    standing: Standing,
    expect: PeerId,
    purpose: Purpose,
    join: JoinKeys | None,
) -> Reached:
    """One address, to the end of the proof. Raises DialError, Refused."""
    loop = asyncio.get_running_loop()
    pipe = TcpPipe(context, server_side=False)
    made.append(pipe)
    proven: Proven | None = None
    try:
        async with asyncio.timeout(ATTEMPT_SECONDS):
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await connect(candidate)
                await loop.create_connection(lambda: pipe, sock=sock)
            await pipe.secure()
            proven = await prove_dialled(
                pipe, standing=standing, expect=expect, purpose=purpose, binding=pipe.binding(), join=join
            )
            if purpose is Purpose.MEMBER:
                member_of(proven)
    except (MeshdError, OSError) as error:
        await pipe.aclose()
        raise dial_error(error, kind=LinkKind.TCP, place=candidate.place) from error
    except asyncio.CancelledError:
        pipe.abort()
        await pipe.wait_lost()
        raise
    pipe.widen()
    return pipe, proven


def _mapped(pipe: TcpPipe, candidates: Sequence[Candidate]) -> bool:
    """Was it reached by a port that a router maps?"""
    return any(one.kind == "mapped" and one.place == pipe.remote for one in candidates)


def _joining(pipe: TcpPipe, proven: Proven, *, binding: bytes, dialled: bool, mapped: bool) -> Joining:
    def link(member: Proven) -> TcpLink:
        return TcpLink(pipe, member.leftover, _info(pipe, member, dialled=dialled, mapped=mapped))

    return Joining(pipe, proven, binding=binding, make_link=link)


def _info(pipe: TcpPipe, proven: Proven, *, dialled: bool, mapped: bool) -> LinkInfo:
    path = local_addresses.path_between(pipe.local_host, pipe.remote_host)
    return LinkInfo(
        kind=LinkKind.TCP,
        peer=proven.peer,
        member=member_of(proven),
        local=pipe.local,
        remote=pipe.remote,
        path="mapped" if mapped and path == "public" else path,
        dialled=dialled,
        established_at=asyncio.get_running_loop().time(),
    )
