"""Streams between nodes in one process, for links through a member: near, the member, and far."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from meshd.base.admission import Release
from meshd.base.errors import MeshdError, Refused
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member, check_chain
from meshd.link.relayed.through_member import Bytes

from tests.conformance.memory_link import MemoryPipe, MemoryWire
from tests.conformance.nodes import Node

Metadata = Mapping[str, str | int | bytes]
Handler = Callable[[Bytes], Awaitable[None]]
Allow = Callable[[Member, Metadata], str | Release | None]


class MemoryStream:
    """A stream over a pipe; its reset ends the pipe for both."""

    def __init__(self, pipe: MemoryPipe, wire: MemoryWire, peer: PeerId, metadata: Metadata) -> None:
        self._pipe = pipe
        self._wire = wire
        self.peer = peer
        self.metadata = metadata
        self.refused: MeshdError | None = None

    async def read(self) -> bytes:
        if self.refused is not None:
            raise self.refused
        return await self._pipe.receive()

    def consumed(self, count: int) -> None:
        """Give room at once for what was read."""

    async def write(self, data: bytes | memoryview) -> None:
        if self.refused is None:  # else `read` says why, as a session does
            await self._pipe.send([data])

    def write_eof(self) -> None:
        self._pipe.write_eof()

    def reset(self, code: int, reason: str) -> None:
        self._wire.cut()


class StarMesh:
    """A star: nodes that all have a direct link to the member, and to nobody else."""

    def __init__(self, member: Node, owner: Owner) -> None:
        self._member = member
        self._owner = owner
        self._nodes: dict[PeerId, Node] = {}
        self._services: dict[tuple[PeerId, str], tuple[Handler, Allow]] = {}
        self.wire = MemoryWire()  # of all streams with the first node that joined

    def sessions(self, node: Node) -> "StarSessions":
        """Return the sessions of one node."""
        self._nodes[node.peer] = node
        return StarSessions(self, node)

    def direct(self, node: Node) -> Sequence[PeerId]:
        if node is self._member:
            return [peer for peer in self._nodes if peer != node.peer]
        return [self._member.peer]

    def handle(self, node: Node, service: str, handler: Handler, allow: Allow) -> None:
        self._services[node.peer, service] = handler, allow

    def open(self, node: Node, peer: PeerId, service: str, metadata: Metadata) -> MemoryStream:
        near = next(iter(self._nodes))
        wire = MemoryWire()
        up, down = wire.pipes()
        if node.peer == near:  # what a test does to its wire happens between near and the member
            self.wire.ups += wire.ups
            self.wire.downs += wire.downs
        ours = MemoryStream(up, wire, peer, metadata)
        theirs = MemoryStream(down, wire, node.peer, metadata)
        handler, allow = self._services[peer, service]
        chain = node.handshake.credentials.chain
        assert chain is not None
        why = allow(check_chain(chain, node.handshake.mesh, node.peer), metadata)
        if isinstance(why, str):
            ours.refused = Refused(why, code="refused")
            return ours
        task = self._owner.start(_handle(handler, theirs), name=f"stream {service}")
        if (release := why) is not None:
            task.add_done_callback(lambda _: release())
        return ours


class StarSessions:
    """Implements member_relay.Sessions."""

    def __init__(self, star: StarMesh, node: Node) -> None:
        self._star = star
        self._node = node

    def direct(self) -> Sequence[PeerId]:
        return self._star.direct(self._node)

    def open_stream(self, peer: PeerId, service: str, *, metadata: Metadata, bulk: bool = False) -> Bytes:
        return self._star.open(self._node, peer, service, metadata)

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        self._star.handle(self._node, service, handler, allow)


async def _handle(handler: Handler, stream: MemoryStream) -> None:
    try:
        await handler(stream)
    except MeshdError as error:
        stream.reset(1, error.what)
    except BaseException:
        stream.reset(1, "the handler has ended")
        raise
