"""The neighbours of a mesh-server: it is sent one descriptor for each, and then that there are no more.

Of two workers one opens the stream, as the head says (docs/native-protocol.md); results go both ways on it.
The server greets its head when it knows all, so nobody is waited for without a limit.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from socket import socket

from meshd.base import log
from meshd.base.errors import Broken, Closed, MeshdError, Refused, RemoteProtocolError
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh, Stream
from meshd.peer.messages import MessageStream
from meshd.role.interface import DescriptorSocket, Tunnel, TunnelClient, TunnelRequest, Tunnels
from meshd.role.worker.push_neighbours import REACH_SECONDS, PushNeighbours, push_broken
from meshd.rpc.mesh_protocol import NEIGHBOURS
from meshd.rpc.mesh_push_firewall import MeshPushFilter
from meshd.wire.lease import PUSH_SERVICE, Admit, Neighbour

ARRIVAL, COMPLETE = 1, 2  # kinds of messages of `--neighbours-fd`
NEIGHBOURS_SECONDS = REACH_SECONDS + 4.0  # those that open the stream may have been told a little later
LOG = log.get("worker")


class MeshNeighbours(PushNeighbours):
    """`descriptors` lead to the mesh-server."""

    def __init__(
        self,
        mesh: Mesh,
        tunnels: Tunnels,
        messages: MessageStream,
        descriptors: DescriptorSocket,
        socket_pair: Callable[[], tuple[socket, int]],
    ) -> None:
        super().__init__(mesh, tunnels, messages)
        self._descriptors = descriptors
        self._socket_pair = socket_pair
        self._numbers: dict[PeerId, int] = {}  # of those that open a stream
        self._awaited: set[int] = set()  # named, and not known yet whether there is a way
        self._ends: dict[int, int] = {}  # the server's, not sent yet
        self._named = False
        self._settled = asyncio.Event()

    def admit(self, admitted: Admit) -> None:
        """See PushNeighbours: it opens the stream."""
        super().admit(admitted)
        if admitted.number is None:
            raise RemoteProtocolError("lease: a neighbour has no number", code="lease")
        self._name(admitted.number)
        self._numbers[PeerId(admitted.peer)] = admitted.number

    def take(self, neighbour: Neighbour) -> None:
        """See PushNeighbours."""
        self._name(neighbour.number)

    def _name(self, number: int) -> None:
        if self._named or number in self._known or number >= NEIGHBOURS:
            raise RemoteProtocolError(
                "lease: neighbours have other numbers, and no two the same", code="lease"
            )
        self._known.add(number)
        self._awaited.add(number)

    def all_named(self) -> None:
        """See PushNeighbours."""
        if self._named:
            raise RemoteProtocolError("lease: the neighbours were complete before", code="lease")
        self._named = True
        self._note_settled(number=None)

    async def settle(self) -> None:
        """See PushNeighbours: then the server is told that these are all."""
        try:
            async with asyncio.timeout(NEIGHBOURS_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            for peer, number in self._numbers.items():
                if number in self._awaited:
                    LOG.info("push_no_way", peer=peer.short, why=f"silent for {NEIGHBOURS_SECONDS:.0f} s")
            self._awaited.clear()
        self._send(COMPLETE, 0)

    def _note_settled(self, number: int | None) -> None:
        self._awaited -= {number}
        if self._named and not self._awaited:
            self._settled.set()

    # To those where we open the stream.

    @contextmanager
    def open(self, peer: PeerId, neighbour: Neighbour) -> Iterator[Tunnel]:
        """See PushNeighbours."""
        number = neighbour.number
        ours, self._ends[number] = self._new_pair()
        try:
            yield self._tunnels.open(
                TunnelRequest(
                    peer=peer,
                    service=PUSH_SERVICE,
                    metadata={"lease": neighbour.lease_id},
                    client=TunnelClient(joined=ours),
                    on_broken=partial(push_broken, peer),
                    compressed=neighbour.compressed,
                    always=neighbour.always,
                    watch=lambda: nullcontext(MeshPushFilter()),
                    endpoint=str(number),
                )
            )
        finally:
            if number in self._ends:
                os.close(self._ends.pop(number))

    def reached(self, number: int, tunnel: Tunnel) -> None:
        """See PushNeighbours."""
        self._hand_over(number, self._ends.pop(number))

    def unreachable(self, number: int) -> None:
        """See PushNeighbours: the server finds the end of the connection, if it had one."""
        self._note_settled(number)

    # To those that open it.

    async def serve(self, stream: Stream, on_broken: Callable[[MeshdError], None]) -> None:
        """Connect a stream of an admitted neighbour with the server. Raises Refused, Broken."""
        number = self._numbers.get(stream.peer)
        if number is None or number not in self._awaited:
            raise Refused("this lease does not wait for a stream of this member", code="late")
        ours, theirs = self._new_pair()
        self._hand_over(number, theirs)
        await self._tunnels.join(stream, ours, inspector=MeshPushFilter(), on_broken=on_broken)

    def _new_pair(self) -> tuple[socket, int]:
        try:
            return self._socket_pair()
        except OSError as error:
            raise Broken(f"no connection can be made: {(error.strerror or '').lower()}") from None

    def _hand_over(self, number: int, end: int) -> None:
        try:
            self._send(ARRIVAL, number, end)
        finally:
            os.close(end)
        self._note_settled(number)

    def _send(self, kind: int, number: int, end: int = -1) -> None:
        try:
            self._descriptors.send(kind, number, end)
        except (Broken, Closed) as error:  # the lease ends with its server
            LOG.debug("push_untold", why=error.what)
