"""TLS inside TLS: the end-to-end connection of two nodes within each one's connection to a relay. Sans-IO.

The relay ends the outer one and sees of the inner one what a router would. The end of the outer connection
alone is no end of the inner one: a relay cannot make a cut look like a goodbye.
"""

import ssl
from collections.abc import Sequence

from meshd.base.errors import EndOfStream, RemoteProtocolError
from meshd.link.secure.tls import TlsEngine

_WIDEST_BYTES = 64 << 10


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
