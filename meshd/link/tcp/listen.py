"""Links over TCP with TLS 1.3, taken in: on all addresses of this machine, or on one.

The certificate is made at the start and trusted by nobody: the proof is bound to it (tcp/dial.py). Both ends
of a link are proven before anything of it is handed upward.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence

from meshd.base.errors import Closed, LocalProtocolError, MeshdError
from meshd.base.log import get
from meshd.base.tasks import Owner
from meshd.base.unproven import Doorstep
from meshd.identity.certificate import make_link_certificate
from meshd.identity.proof import Proven, Purpose
from meshd.link.interface import Link, LinkKind
from meshd.link.net import local_addresses
from meshd.link.secure.handshake import PROOF_SECONDS, Standing, present, prove_accepted
from meshd.link.secure.joining import JoinDesk, OnJoiner
from meshd.link.secure.tls import listener_context
from meshd.link.tcp.bind import accept_from, listen
from meshd.link.tcp.dial import TcpLink, info_of, joining
from meshd.link.tcp.pipe import TcpPipe
from meshd.wire.address import Candidate

_log = get("link")

Accept = Callable[[Link], Awaitable[None]]


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
        return local_addresses.offered(self._places, self._port, "tcp") if self._port else ()

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
            await accept(TcpLink(pipe, proven.leftover, info_of(pipe, proven, dialled=False, mapped=mapped)))
        elif proven.purpose is Purpose.JOIN:
            binding = self._certificate.sha256
            newcomer = joining(pipe, proven, binding=binding, dialled=False, mapped=mapped)
            link = await self._desk.admit(newcomer)
            if link is not None:
                await accept(link)
