"""Links over TCP with TLS 1.3, taken in: on all addresses of this machine, or on one.

The certificate is made at the start and trusted by nobody: the proof is bound to it (tcp/dial.py). Both ends
of a link are proven before anything of it is handed upward.
"""

import asyncio
import ipaddress
import ssl
from collections.abc import Callable
from functools import partial

from meshd.base.errors import LocalProtocolError
from meshd.base.tasks import Owner
from meshd.identity.proof import Proven
from meshd.link.interface import LinkKind
from meshd.link.secure.entrance import Accept, Arrival, Entrance
from meshd.link.secure.handshake import PROOF_SECONDS, HandshakeContext
from meshd.link.secure.joining import OnJoiner
from meshd.link.secure.port_listener import PortListener
from meshd.link.secure.tls import listener_context
from meshd.link.tcp.bind import accept_from, listen
from meshd.link.tcp.dial import TcpLink, info_of
from meshd.link.tcp.pipe import TcpPipe


class TcpListener(PortListener):
    """Takes in TCP links. `open` first, then `serve` until cancelled, which closes it.

    Its opener calls `close` in the end: a `serve` that is cancelled before its first step does not.
    `host` empty: every address of this machine. Joiners are handed to `on_joiner` (link/secure/joining.py);
    without it they are turned away.
    """

    _proto = "tcp"

    def __init__(
        self,
        handshake: Callable[[], HandshakeContext],
        *,
        host: str = "",
        port: int = 0,
        on_joiner: OnJoiner | None = None,
        proof_seconds: float = PROOF_SECONDS,
    ) -> None:
        entrance = Entrance(handshake, on_joiner=on_joiner, proof_seconds=proof_seconds)
        super().__init__(entrance, partial(listen, host, port))
        self._context: ssl.SSLContext = listener_context(entrance.certificate)

    @property
    def kind(self) -> LinkKind:
        """The kind TCP."""
        return LinkKind.TCP

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
                    goes_on = self._entrance.goes_on
                    return TcpPipe(self._context, server_side=True, on_made=made, on_hello=goes_on)

                for sock in self._sockets:
                    owner.start(
                        accept_from(sock, fresh, hears=self._entrance.hears),
                        name=f"tcp-accept-{sock.getsockname()[0]}",
                    )
                await asyncio.Event().wait()
        finally:
            self.close()

    def _arrive(self, pipe: TcpPipe, accept: Accept, owner: Owner) -> None:
        def make_link(proven: Proven) -> TcpLink:
            # who comes from outside to a private address came by a port of the router
            mapped = ipaddress.ip_address(pipe.local_host).is_private
            return TcpLink(pipe, proven.leftover, info_of(pipe, proven, dialled=False, mapped=mapped))

        def blames(_secured: bool) -> bool:
            return not pipe.asked_where

        self._entrance.arrive(Arrival(pipe, pipe.remote_host, make_link, blames), accept, owner, name="tcp")
