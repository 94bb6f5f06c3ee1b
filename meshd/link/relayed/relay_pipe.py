"""Connections to a relay: the outer TLS, and for a circuit the inner one of the two nodes in it."""

import asyncio
import ipaddress
import ssl
from collections.abc import Mapping
from typing import Self

from meshd.base.errors import RemoteProtocolError
from meshd.identity.invite import RelayHint, split_place
from meshd.link.relayed.http_proxy import Allow, connect
from meshd.link.relayed.nested_tls import NestedEngine
from meshd.link.secure.tls import TlsEngine
from meshd.link.tcp.pipe import TcpPipe
from meshd.wire.relay import TICKET_MAGIC

_CONNECT_SECONDS = 5.0  # name, TCP and proxy together


class RelayPipe(TcpPipe):
    """A TcpPipe to a relay, which after `enter` is one to the node at the other end of a circuit."""

    @classmethod
    async def open(
        cls, relay: RelayHint, context: ssl.SSLContext, environ: Mapping[str, str], allow: Allow
    ) -> Self:
        """Connect and secure; `allow` as in relay_proxy.connect.

        Raises OSError, TimeoutError, MeshdError; nothing is left open then.
        """
        pipe = cls(context, server_side=False)
        name = split_place(relay.place)[0]
        if not _is_address(name):  # said to the network, as browsers do: some let nothing else pass
            pipe._engine = TlsEngine(context, server_side=False, server_hostname=name)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                sock = await connect(relay.place, environ, allow)
                await asyncio.get_running_loop().create_connection(lambda: pipe, sock=sock)
                await pipe.secure()
        except BaseException:
            pipe.abort()
            await pipe.wait_lost()
            raise
        return pipe

    async def enter(
        self, ticket: bytes, context: ssl.SSLContext, *, server_side: bool, relay_binding: bytes
    ) -> None:
        """Show the ticket and shake hands with the node. Raises RemoteProtocolError, Broken, Closed.

        `relay_binding`: hash of the certificate that the relay's key was proven with.
        """
        if self.binding() != relay_binding:
            raise RemoteProtocolError("the relay showed a different certificate than before", code="tls")
        self._check()
        # in one turn of the loop: what comes next on this connection is the other node's
        self._write(self._engine.seal([TICKET_MAGIC + ticket]))
        self._engine = NestedEngine(self._engine, context, server_side=server_side)
        self._server_side = server_side
        self._secured = False
        self._handshake_bytes = 0
        if not server_side:
            self._shake()
        await self.secure()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
