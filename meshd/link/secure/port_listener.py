"""The port of a listener: bound until it is closed, known to others by its addresses."""

import socket
from collections.abc import Callable, Sequence

from meshd.link.net import local_addresses
from meshd.link.secure.entrance import Entrance
from meshd.wire.address import Candidate, Proto, ScopedCandidate


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
