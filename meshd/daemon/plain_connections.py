"""Plain TCP connections between the mesh ports of two nodes, for programs that seal what crosses them.

They go where the link goes that carries data now, and only if that is TCP between two networks' hosts: the
peer is proven there, and its firewall lets us in. Nothing else is dialled.
"""

import asyncio
from socket import socket

from meshd.base.errors import Broken, MeshdError
from meshd.identity.keys import PeerId
from meshd.link.interface import LinkInfo, LinkKind
from meshd.link.tcp.plain_visit import PLAIN, Awaited, AwaitedConnections
from meshd.link.tcp.sockets import connect, tune
from meshd.peer.interface import Mesh, PathStatus
from meshd.tunnel.compressed import judge
from meshd.wire.address import Candidate, ScopedCandidate
from meshd.wire.compressed import Compression
from meshd.wire.dialable import Dialable, trusted

_PATHS = frozenset({"lan", "public", "mapped"})  # of LinkInfo: a punched one leads to no port that listens
CONNECT_SECONDS = 2.0


class MeshPortConnections:
    """Plain connections from and to this node's mesh port (implements PlainConnections)."""

    def __init__(self, mesh: Mesh, awaited: AwaitedConnections, *, compresses: bool = True) -> None:
        """Set up. `compresses`: what crosses slow paths is better off on compressed streams."""
        self._mesh = mesh
        self._awaited = awaited
        self._compresses = compresses

    def is_direct(self, peer: PeerId) -> bool:
        """Say whether the path in use is TCP between two machines, and too fast to be compressed."""
        paths = self._paths(peer)
        is_fast = not self._compresses or judge(paths).how is Compression.NOTHING
        return self._link(paths) is not None and is_fast

    def reaches(self, peer: PeerId) -> bool:
        """Say whether the path in use leads to the peer's mesh port."""
        link = self._link(self._paths(peer))
        return link is not None and link.dialled

    async def connect(self, peer: PeerId, tag: bytes) -> socket:
        """Connect to where the path in use leads, and send the tag. Raises Broken."""
        link = self._link(self._paths(peer))
        if link is None or not link.dialled:
            raise Broken("the path has changed")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                end = await connect(_place_of(link))
                try:
                    tune(end)
                    await asyncio.get_running_loop().sock_sendall(end, PLAIN + tag)
                except BaseException:
                    end.close()
                    raise
        except OSError as error:  # TimeoutError is one, too
            raise Broken(f"cannot connect: {(error.strerror or 'timed out').lower()}") from None
        return end

    def expect(self, peer: PeerId, tag: bytes) -> Awaited:
        """Await a connection of the peer at the mesh port. Raises Refused."""
        return self._awaited.expect(peer, tag)

    def _paths(self, peer: PeerId) -> tuple[PathStatus, ...]:
        return next((status.paths for status in self._mesh.peers() if status.peer == peer), ())

    def _link(self, paths: tuple[PathStatus, ...]) -> LinkInfo | None:
        link = next((path.link for path in paths if path.selected), None)
        fits = link is not None and link.kind is LinkKind.TCP and link.path in _PATHS and not link.passing
        return link if fits else None


def _place_of(link: LinkInfo) -> Dialable:
    """Return the address at which the peer was proven. Raises Broken."""
    host, _, port = link.remote.rpartition(":")
    try:
        if "%" in host:  # link-local IPv6, as over a cable without addresses
            place: Candidate = ScopedCandidate(host.strip("[]"), int(port), "tcp", "host")
        else:
            place = Candidate.parse(f"{link.remote}/tcp")
    except (MeshdError, ValueError):
        raise Broken(f"`{link.remote}` is no address") from None
    for found in trusted([place]):
        return found
    raise Broken(f"`{link.remote}` is never dialled")
