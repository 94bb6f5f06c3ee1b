"""Nodes joined by streams in memory: each sees the others as its mesh."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshd.base.errors import Broken, EndOfStream, MeshdError
from meshd.base.tasks import Owner
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Member, Role
from meshd.mux.events import Code
from meshd.peer.interface import Allow, Handler, MetadataValue, PathStatus, PeerState, PeerStatus, Stream
from meshd.peer.streams import MeshStream
from meshd.wire.versions import NativeVersion

from tests.unit.identity.cast import MESH, WORKER_CHAIN
from tests.unit.tunnel.far import Port, streams

NATIVE = NativeVersion("mesh 4", "pin", "sources", "cpu")


def worker_status(
    peer: PeerId, name: str, state: PeerState = PeerState.CONNECTED, since: float = 0.0
) -> PeerStatus:
    """A worker as its head sees it, since then in that state."""
    return PeerStatus(
        peer=peer,
        name=name,
        role="worker",
        state=state,
        paths=(),
        native=None,
        software="",
        resumes=0,
        since=since,
        last_error="",
        clock_offset=None,
    )


class FakeMesh:
    """One node's view; `net` finds the others. Streams are handed to the other's handler at once."""

    def __init__(self, net: "Net", key: KeyPair, name: str, role: str, roles: frozenset[Role]) -> None:
        self.net, self.key, self.name, self.role = net, key, name, role
        self.member_here = Member(peer=key.peer, mesh=MESH, roles=roles, chain=WORKER_CHAIN)
        self.services: dict[str, tuple[Handler, Allow]] = {}
        self.state = PeerState.CONNECTED
        self.since = 0.0
        self.native = NATIVE
        self.says_banned = self.stopped = ""
        self.paused = False
        self.fetching = False
        self.paths: tuple[PathStatus, ...] = ()
        self.native = NATIVE
        self.version = 0
        self.news = asyncio.Event()
        self.streams: list[Stream] = []  # near ends of those that this node opened
        self.ports: list[Port] = []  # of each

    def peers(self) -> Sequence[PeerStatus]:
        return [
            replace(
                worker_status(other.key.peer, other.name, other.state, other.since),
                role=other.role,
                paths=other.paths,
                native=other.native,
                says_banned=other.says_banned,
                stopped=other.stopped,
                paused=other.paused,
                fetching=other.fetching,
            )
            for other in self.net.meshes.values()
            if other is not self
        ]

    def member(self, peer: PeerId) -> Member | None:
        return self.net.meshes[peer].member_here

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        other = self.net.meshes.get(peer)
        if other is None or other.state is not PeerState.CONNECTED:
            raise Broken("not connected")
        near, far, port, _ = streams(
            peer=self.key.peer, service=service, metadata=metadata, one_way=self.net.one_way, accepted=False
        )
        self.streams.append(near)
        self.ports.append(port)
        if self.net.one_way:
            self.net.owner.start(self._later(other, service, near, far), name=f"{service} to {other.name}")
        else:
            self._opened(other, service, near, far)
        return near

    async def _later(self, other: "FakeMesh", service: str, near: MeshStream, far: MeshStream) -> None:
        await asyncio.sleep(self.net.one_way)
        self._opened(other, service, near, far)

    def _opened(self, other: "FakeMesh", service: str, near: MeshStream, far: MeshStream) -> None:
        handler, allow = other.services[service]
        why = allow(self.member_here, far.metadata)
        if isinstance(why, str):
            near.feed_reset(Code.REFUSED, why)
            return
        near.mark_accepted()
        far.mark_accepted()
        task = self.net.owner.start(self._handle(handler, far), name=f"{service} at {other.name}")
        if (release := why) is not None:
            task.add_done_callback(lambda _: release())

    async def _handle(self, handler: Handler, stream: Stream) -> None:
        try:
            await handler(stream)
        except (Broken, EndOfStream):
            stream.reset(Code.BROKEN, "broken")
        except MeshdError as error:
            stream.reset(Code.REFUSED, error.what)

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        self.services[service] = (handler, allow)

    async def changed(self, seen: int) -> int:
        while self.version == seen:
            await self.news.wait()
        return self.version

    def say(self, state: PeerState) -> None:
        """This node is seen so from now on; the others are told."""
        self.state = state
        for mesh in self.net.meshes.values():
            mesh.version += 1
            mesh.news.set()
            mesh.news = asyncio.Event()


class Net:
    """All nodes of one test, `one_way` seconds apart."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.one_way = 0.0
        self.meshes: dict[PeerId, FakeMesh] = {}

    def mesh(
        self, name: str, role: str = "worker", *, roles: frozenset[Role] = frozenset(Role), seed: str = ""
    ) -> FakeMesh:
        """`seed`: of its key, where another one has its name."""
        key = KeyPair.from_seed((seed or name).encode().ljust(32, b"."))
        made = FakeMesh(self, key, name, role, roles)
        self.meshes[key.peer] = made
        return made
