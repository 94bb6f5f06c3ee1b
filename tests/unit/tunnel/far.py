"""Two ends of a mesh stream without a mesh between them: what one writes the other reads, with a window."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from meshd.base.errors import Broken, EndOfStream, MeshdError
from meshd.base.tasks import Owner
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Member
from meshd.mux.events import Code
from meshd.peer.interface import Allow, Handler, MetadataValue, PeerStatus, Stream
from meshd.peer.streams import MeshStream
from meshd.tunnel.compressed import as_agreed

PEER = KeyPair.from_seed(bytes(31) + b"p").peer


class Port:
    """A MuxPort whose bytes go to another MeshStream, at most `most` at once, `one_way` seconds later."""

    def __init__(self, *, window: int, most: int, one_way: float = 0.0) -> None:
        self.one_way = one_way
        self._under_way: deque[Callable[[], None]] = deque()
        self.window = window
        self.most = most
        self.far: MeshStream | None = None
        self.back: Port | None = None
        self.unread = 0
        self.sent = bytearray()
        self.resets: list[tuple[int, str]] = []

    def _arrive(self, feed: Callable[[], None]) -> None:
        if not self.one_way:
            feed()
            return
        self._under_way.append(feed)  # timers of one moment may fire in any order
        asyncio.get_running_loop().call_later(self.one_way, self._next_arrives)

    def _next_arrives(self) -> None:
        self._under_way.popleft()()

    def write(self, _stream_id: int, data: bytes | memoryview) -> int:
        assert self.far is not None
        taken = min(len(data), self.window - self.unread)
        self.unread += taken
        self.sent += data[:taken]
        whole = bytes(data[:taken])
        far = self.far
        for at in range(0, taken, self.most):
            piece = whole[at : at + self.most]
            self._arrive(lambda piece=piece: far.feed(piece))  # type: ignore[misc]
        return taken

    def write_eof(self, _stream_id: int) -> None:
        assert self.far is not None
        self._arrive(self.far.feed_eof)

    def reset(self, _stream_id: int, code: int, reason: str) -> None:
        assert self.far is not None
        self.resets.append((code, reason))
        far = self.far
        self._arrive(lambda: far.feed_reset(code, reason))

    def consumed(self, _stream_id: int, count: int) -> bool:
        assert self.back is not None
        assert 0 <= count <= self.back.unread
        self.back.unread -= count
        near = self.back
        assert self.far is not None
        if near.unread < near.window:
            self.far.wake_writer()
        return True


def streams(
    *,
    window: int = 256 << 10,
    most: int = 64 << 10,
    peer: PeerId = PEER,
    service: str = "rpc",
    metadata: Mapping[str, MetadataValue] = MappingProxyType({}),
    one_way: float = 0.0,
    accepted: bool = True,
) -> tuple[MeshStream, MeshStream, Port, Port]:
    """Both ends, and the port of each."""
    near, far = (Port(window=window, most=most, one_way=one_way) for _ in range(2))
    ports = near, far
    made = [
        MeshStream(
            port=port,
            wake=lambda: None,
            pass_on=lambda _id, _data: False,
            on_done=lambda _id: None,
            stream_id=1,
            peer=peer,
            service=service,
            metadata=metadata,
        )
        for port in ports
    ]
    for stream in made if accepted else ():
        stream.mark_accepted()
    ports[0].far, ports[1].far = made[1], made[0]
    ports[0].back, ports[1].back = ports[1], ports[0]
    return made[0], made[1], ports[0], ports[1]


class FarMesh:
    """A Mesh in which every stream that is opened is handed, by its far end, to `handler`."""

    def __init__(self, handler: Callable[[Stream], None], *, error: MeshdError | None = None) -> None:
        self._handler = handler
        self.error = error
        self.opened: list[tuple[PeerId, str, Mapping[str, MetadataValue]]] = []
        self.window, self.most = 256 << 10, 64 << 10
        self.ports: list[Port] = []  # of each stream the near end's, then the far end's

    def peers(self) -> Sequence[PeerStatus]:
        return ()

    def member(self, peer: PeerId) -> Member | None:
        return None

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        if self.error is not None:
            raise self.error
        self.opened.append((peer, service, metadata))
        near, far, *ports = streams(window=self.window, most=self.most, metadata=metadata)
        self.ports += ports
        self._handler(far)
        return near

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        raise AssertionError("a forward serves nothing")

    async def changed(self, seen: int) -> int:
        await asyncio.Event().wait()
        return seen


async def read_all(stream: Stream) -> bytes:
    """Until the end; a break is an error."""
    received = bytearray()
    try:
        while True:
            chunk = await stream.read()
            received += chunk
            stream.consumed(len(chunk))
    except EndOfStream:
        return bytes(received)


async def echo(stream: Stream) -> None:
    """Sends back what comes, half-close and all."""
    try:
        while True:
            chunk = bytes(await stream.read())
            await stream.write(chunk)
            stream.consumed(len(chunk))
    except EndOfStream:
        stream.write_eof()
    except Broken:
        stream.reset(Code.BROKEN, "broken")


def echoing(owner: Owner, *, error: MeshdError | None = None) -> FarMesh:
    """A mesh whose streams send back what comes, compressed where that was agreed."""

    def handle(far: Stream) -> None:
        owner.start(echo(as_agreed(far)), name="echo")

    return FarMesh(handle, error=error)
