"""What a mesh-server is told of its neighbours: one descriptor for each, and then that there are no more.

The server greets its head when it knows all, so nobody is waited for without a limit.
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
    """By their numbers in the head's list of workers. `descriptors` lead to the mesh-server."""

    def __init__(
        self, descriptors: DescriptorSocket, socket_pair: Callable[[], tuple[socket, int]], *, seconds: float
    ) -> None:
        """`seconds`: how long `settle` waits at most."""
        self._descriptors = descriptors
        self._socket_pair = socket_pair
        self._seconds = seconds
        self._known: set[int] = set()
        self._awaited: set[int] = set()  # named, and not known yet whether there is a way
        self._complete = False
        self._settled = asyncio.Event()

    def name(self, number: int) -> None:
        """There will be a connection with it, or it is not coming. Raises RemoteProtocolError."""
        if self._complete or number in self._known or number >= NEIGHBOURS.most:
            raise RemoteProtocolError(
                "lease: neighbours have other numbers, and no two the same", code="lease"
            )
        self._known.add(number)
        self._awaited.add(number)

    def all_named(self) -> None:
        """The head names no more of them: `settle` is to be run. Raises RemoteProtocolError."""
        if self._complete:
            raise RemoteProtocolError("lease: the neighbours were complete before", code="lease")
        self._complete = True
        self._note_settled(number=None)

    def awaits(self, number: int) -> bool:
        """Whether it was named, and has not come."""
        return number in self._awaited

    def new_pair(self) -> tuple[socket, int]:
        """Our end of a connection and the server's. Raises Broken where no descriptor is free."""
        try:
            return self._socket_pair()
        except OSError as error:
            raise Broken(f"no connection can be made: {(error.strerror or '').lower()}") from None

    def come(self, number: int, end: int, *, local: bool = False) -> None:
        """Hand `end` to the server, and close it here. `local`: the server reports what passes."""
        try:
            self._send(LOCAL_ARRIVAL if local else ARRIVAL, number, end)
        finally:
            os.close(end)
        self._note_settled(number)

    def not_coming(self, number: int) -> None:
        """There is no way to it, or none any more; a server that had a connection finds its end."""
        self._note_settled(number)

    async def settle(self) -> frozenset[int]:
        """Waits until it is known of each whether there is a way, then tells the server that these are all.

        Returns those that were too late.
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
