"""A link inside one process: the smallest thing that keeps the contract. Also fit for a virtual clock."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from meshd.base.errors import Broken, Busy, Closed, CutOff, EndOfStream, MeshdError
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven, Purpose
from meshd.link.interface import DialError, DialFailure, Link, LinkInfo, LinkKind, Transport
from meshd.link.secure.handshake import (
    HandshakeContext,
    ProvenLink,
    RawPipe,
    dial_error,
    member_of,
    prove_accepted,
    prove_dialled,
)
from meshd.wire.address import Candidate

HIGH_BYTES = 64 << 10
NAME = "memory"


class _Direction:
    """Bytes on their way from one end to the other."""

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        self.size = 0
        self.ended: type[MeshdError] | None = None  # what the reader meets behind the last chunk
        self.stalled = False
        self.changed = asyncio.Event()

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryWire:
    """Both directions of one or more pipes."""

    def __init__(self) -> None:
        self.ups: list[_Direction] = []
        self.downs: list[_Direction] = []

    def pipes(self) -> "tuple[MemoryPipe, MemoryPipe]":
        """Both ends of a new pipe: the dialler's first."""
        up, down = _Direction(), _Direction()
        self.ups.append(up)
        self.downs.append(down)
        return MemoryPipe(down, up), MemoryPipe(up, down)

    def cut(self, end: type[MeshdError] = Broken) -> None:
        """Break all pipes; `end` is what both sides meet."""
        for direction in self.ups + self.downs:
            direction.chunks.clear()
            direction.size = 0
            direction.stalled = False
            direction.ended = direction.ended or end
            direction.change()

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """Nothing arrives any more."""
        for direction in self.ups * up + self.downs * down:
            direction.stalled = True

    def flow(self) -> None:
        """End of `stall`."""
        for direction in self.ups + self.downs:
            direction.stalled = False
            direction.change()


class MemoryPipe:
    """A RawPipe."""

    def __init__(self, inward: _Direction, outward: _Direction) -> None:
        self._in = inward
        self._out = outward
        self._closed = self._receiving = self._sending = False

    @property
    def directions(self) -> tuple[_Direction, _Direction]:
        """The directions: what comes, and what goes."""
        return self._in, self._out

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        if self._sending:
            raise Busy("two tasks send on one link")
        self._sending = True
        try:
            await self._drained()
            self._put(data)
            await self._drained()
        finally:
            self._sending = False

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        if self._sending or not self._has_room():
            return False
        self._put(data)
        return True

    def _put(self, data: Sequence[bytes | memoryview]) -> None:
        if whole := b"".join(data):
            self._out.chunks.append(whole)
            self._out.size += len(whole)
            self._out.change()

    def _has_room(self) -> bool:
        if self._closed:
            raise Closed("this link was closed")
        if self._out.ended is not None:
            raise (CutOff if self._out.ended is CutOff else Broken)("the other side has disconnected")
        return self._out.size < HIGH_BYTES

    async def _drained(self) -> None:
        while not self._has_room():
            await self._out.changed.wait()

    def divert(self, take: Callable[[bytes], bool]) -> None:
        """This kind never asks: every chunk goes through `receive`."""

    async def receive(self) -> bytes:
        if self._receiving:
            raise Busy("two tasks receive on one link")
        self._receiving = True
        try:
            while True:
                if self._closed:
                    raise Closed("this link was closed")
                if self._in.chunks and not self._in.stalled:
                    chunk = self._in.chunks.popleft()
                    self._in.size -= len(chunk)
                    self._in.change()
                    return chunk
                if self._in.ended is not None and not self._in.stalled:
                    raise self._in.ended("the other side ended the link")
                await self._in.changed.wait()
        finally:
            self._receiving = False

    def write_eof(self) -> None:
        """Nothing more is sent; what comes in still does."""
        self._out.ended = self._out.ended or EndOfStream
        self._out.change()

    async def aclose(self) -> None:
        self._closed = True
        for direction in (self._in, self._out):
            direction.ended = direction.ended or EndOfStream
            direction.change()


class MemoryNet:
    """Where memory listeners are found, by candidate."""

    def __init__(self) -> None:
        self.wire = MemoryWire()
        self.listeners: dict[Candidate, Callable[[RawPipe], None]] = {}


class MemoryDialer:
    """A Dialer over a MemoryNet."""

    transport = Transport.TCP
    kind = LinkKind.TCP
    path = "loopback"

    def __init__(self, net: MemoryNet, handshake: Callable[[], HandshakeContext]) -> None:
        self._net = net
        self._handshake = handshake

    async def dial(self, peer: PeerId, candidates: Sequence[Candidate]) -> Link:
        listener = self._net.listeners.get(candidates[0]) if candidates else None
        if listener is None:
            raise DialError("nobody listens", kind=self.kind, failure=DialFailure.REFUSED)
        near, far = self._net.wire.pipes()
        listener(far)
        binding = binding_of(candidates[0])
        try:
            proven = await prove_dialled(
                near, handshake=self._handshake(), expect=peer, purpose=Purpose.MEMBER, binding=binding
            )
        except (MeshdError, OSError) as error:
            await near.aclose()
            raise dial_error(error, kind=self.kind, place=NAME) from error
        except asyncio.CancelledError:
            await near.aclose()
            raise
        info = info_of(proven, kind=self.kind, dialled=True, path=self.path, remote=candidates[0].place)
        return ProvenLink(near, proven.leftover, info)


class MemoryListener:
    """A Listener in a MemoryNet."""

    kind = LinkKind.TCP
    path = "loopback"

    def __init__(self, net: MemoryNet, handshake: Callable[[], HandshakeContext], place: Candidate) -> None:
        self._net = net
        self._handshake = handshake
        self._place = place

    def candidates(self) -> Sequence[Candidate]:
        return [self._place]

    async def serve(self, accept: Callable[[Link], Awaitable[None]]) -> None:
        async with Owner() as owner:

            def arrive(pipe: RawPipe) -> None:
                owner.start(self._welcome(pipe, accept), name="memory-welcome")

            self._net.listeners[self._place] = arrive
            try:
                await asyncio.Event().wait()
            finally:
                del self._net.listeners[self._place]

    async def _welcome(self, pipe: RawPipe, accept: Callable[[Link], Awaitable[None]]) -> None:
        try:
            binding = binding_of(self._place)
            proven = await prove_accepted(pipe, handshake=self._handshake(), binding=binding)
            info = info_of(proven, kind=self.kind, dialled=False, path=self.path)
            await accept(ProvenLink(pipe, proven.leftover, info))
        except (MeshdError, TimeoutError):
            return  # as for every kind: it ends this link only
        finally:
            await pipe.aclose()


def binding_of(place: Candidate) -> bytes:
    """Stands for a certificate's hash."""
    return hashlib.sha256(str(place).encode()).digest()


def info_of(
    proven: Proven, *, kind: LinkKind, dialled: bool, path: str = "loopback", remote: str = NAME
) -> LinkInfo:
    """Return the facts of a link in this process."""
    return LinkInfo(
        kind=kind,
        peer=proven.peer,
        member=member_of(proven),
        local=NAME,
        remote=remote,
        path=path,
        dialled=dialled,
        established_at=asyncio.get_running_loop().time(),
    )
