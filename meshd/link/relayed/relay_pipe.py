"""Connections to a relay: the outer TLS, and for a circuit the inner one of the two nodes in it.

The relay ends the outer TLS and sees of the inner one what a router would. The end of the outer connection
alone is no end of the inner one: a relay cannot make a cut look like a goodbye.
"""

import asyncio
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from typing import Self

from meshd.base.errors import EndOfStream, RemoteProtocolError
from meshd.identity.invite import RelayHint, split_place
from meshd.link.relayed.http_proxy import Allow, connect
from meshd.link.secure.tls import TlsEngine
from meshd.link.tcp.pipe import TcpPipe
from meshd.wire.relay import TICKET_MAGIC

_CONNECT_SECONDS = 5.0  # name, TCP and proxy together
_WIDEST_BYTES = 64 << 10


class RelayPipe(TcpPipe):
    """A TcpPipe to a relay, which after `enter` is one to the node at the other end of a circuit."""

    @classmethod
    async def open(
        cls, relay: RelayHint, context: ssl.SSLContext, environ: Mapping[str, str], allow: Allow
    ) -> Self:
        """Connect and secure; `allow` as in http_proxy.connect.

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
        # in one turn of the loop: what comes next on this connection is the other node's
        self.enter_bare(ticket, relay_binding=relay_binding)
        self._engine = NestedEngine(self._engine, context, server_side=server_side)
        self._server_side = server_side
        self._secured = False
        self._handshake_bytes = 0
        if not server_side:
            self._shake()
        await self.secure()

    def enter_bare(self, ticket: bytes, *, relay_binding: bytes) -> None:
        """Show the ticket, and nothing else: what goes through the circuit is sealed by others.

        Raises RemoteProtocolError, Broken, Closed.
        """
        if self.binding() != relay_binding:
            raise RemoteProtocolError("the relay showed a different certificate than before", code="tls")
        self._check()
        self._write(self._engine.seal([TICKET_MAGIC + ticket]))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class NestedEngine(TlsEngine):
    """A TlsEngine whose bytes go through `outer`, which has finished its handshake."""

    def __init__(self, outer: TlsEngine, context: ssl.SSLContext, *, server_side: bool) -> None:
        super().__init__(context, server_side=server_side)
        self._outer = outer
        self._outer_end = ""
        self._ready = b""
        self._space = memoryview(bytearray(4 << 10))

    def feed(self, data: bytes | memoryview) -> None:
        """Feed received bytes; failures of the outer connection are raised by `advance` and `unseal`."""
        self._outer.feed(data)
        try:
            while count := self._outer.unseal(self._space):
                super().feed(self._space[:count])
                if self._outer.drained:
                    break
        except EndOfStream:
            self._outer_end = "the relay or the other node ended the connection without a goodbye"
        except RemoteProtocolError as error:
            self._outer_end = error.what
        if len(data) >= len(self._space) < _WIDEST_BYTES:
            self._space = memoryview(bytearray(4 * len(self._space)))

    def outgoing(self) -> bytes:
        inner = super().outgoing()
        ready, self._ready = self._ready, b""
        return ready + (self._outer.seal([inner]) if inner else self._outer.outgoing())

    def advance(self) -> bool:
        if super().advance():
            return True
        if self._outer_end:
            raise RemoteProtocolError(self._outer_end, code="tls")
        return False

    def seal(self, pieces: Sequence[bytes | memoryview]) -> bytes:
        return self._outer.seal([super().seal(pieces)])

    def unseal(self, space: memoryview) -> int:
        count = super().unseal(space)
        if self._outer_end:
            if not count:
                raise RemoteProtocolError(self._outer_end, code="tls")
            self.drained = False  # asked once more, it says so
        return count

    def finish(self) -> None:
        """Say goodbye to the node, then to the relay."""
        super().finish()
        self._ready += self._outer.seal([super().outgoing()])
        self._outer.finish()
        self._ready += self._outer.outgoing()
