"""The list of neighbours as a mesh-server gets it: one descriptor for each, then a message that ends it.

The head waits for the complete list while it loads weights, so the wait for neighbours is limited.
"""

import asyncio
import os
from collections.abc import Callable
from socket import socket

from meshd.base import log
from meshd.base.errors import Broken, Closed, RemoteProtocolError
from meshd.base.peer_limits import NEIGHBOURS
from meshd.devices.interface import DescriptorSocket

ARRIVAL, COMPLETE, LOCAL_ARRIVAL = 1, 2, 3  # kinds of messages of `--neighbours-fd`
LOG = log.get("worker")


class NeighbourArrivals:
    """Pass connections to the mesh-server, by their numbers in the head's list of workers."""

    def __init__(
        self, descriptors: DescriptorSocket, socket_pair: Callable[[], tuple[socket, int]], *, seconds: float
    ) -> None:
        """Use `descriptors` to reach the mesh-server. `settle` waits at most `seconds`."""
        self._descriptors = descriptors
        self._socket_pair = socket_pair
        self._seconds = seconds
        self._known: set[int] = set()
        self._awaited: set[int] = set()  # named, but still unknown whether a connection is possible
        self._complete = False
        self._settled = asyncio.Event()

    def name(self, number: int) -> None:
        """Expect a connection with this neighbour, or the message that there is none.

        Raises RemoteProtocolError if the number is invalid or was used before.
        """
        if self._complete or number in self._known or number >= NEIGHBOURS.most:
            raise RemoteProtocolError(
                "lease: neighbours have other numbers, and no two the same", code="lease"
            )
        self._known.add(number)
        self._awaited.add(number)

    def all_named(self) -> None:
        """Note that the head names no more neighbours; `settle` must run now. Raises RemoteProtocolError."""
        if self._complete:
            raise RemoteProtocolError("lease: the neighbours were complete before", code="lease")
        self._complete = True
        self._note_settled(number=None)

    def awaits(self, number: int) -> bool:
        """Say whether this neighbour was named and has not connected."""
        return number in self._awaited

    def new_pair(self) -> tuple[socket, int]:
        """Return our end of a connection and the server's. Raises Broken if no descriptor is free."""
        try:
            return self._socket_pair()
        except OSError as error:
            raise Broken(f"no connection can be made: {(error.strerror or '').lower()}") from None

    def come(self, number: int, end: int, *, local: bool = False) -> None:
        """Hand `end` to the server, and close it here. `local`: the server reports the traffic on it."""
        try:
            self._send(LOCAL_ARRIVAL if local else ARRIVAL, number, end)
        finally:
            os.close(end)
        self._note_settled(number)

    def not_coming(self, number: int) -> None:
        """Note that there is no connection to this neighbour, or none any more.

        A server that had a connection notices its end.
        """
        self._note_settled(number)

    async def settle(self) -> frozenset[int]:
        """Wait until every neighbour has connected or cannot, then tell the server that the list is complete.

        Returns the numbers of the neighbours that were too late.
        """
        try:
            async with asyncio.timeout(self._seconds):
                await self._settled.wait()
        except TimeoutError:
            pass
        late, self._awaited = frozenset(self._awaited), set()
        self._send(COMPLETE, 0)
        return late

    def _note_settled(self, number: int | None) -> None:
        self._awaited -= {number}
        if self._complete and not self._awaited:
            self._settled.set()

    def _send(self, kind: int, number: int, end: int = -1) -> None:
        try:
            self._descriptors.send(kind, number, end)
        except (Broken, Closed) as error:  # the lease ends with its server
            LOG.debug("push_untold", why=error.what)
