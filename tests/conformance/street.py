"""Two nodes that make webrtc links by signals, with all that passes between them under a test's control."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest
from meshd.base.tasks import Owner
from meshd.link.ice.links import Attempt, Extra
from meshd.link.interface import Link, Signals
from meshd.link.webrtc.links import WebRtcLinks
from meshd.wire.signal import Answer, OfferSignal, decode_offer

from tests.conformance.nodes import Node, TestMesh
from tests.conformance.post import Post
from tests.conformance.run import until
from tests.conformance.udp_wire import UdpWire

if TYPE_CHECKING:
    from meshd.link.webrtc.session import Identity, WebRtcSession

LOOPBACK = "127.0.0.1"


class StreetLinks(WebRtcLinks):
    """Notes its attempts and sessions, which a test may change; it may show an identity of the test."""

    def __init__(self, *args: Any, identity: "Identity | None" = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._identity = identity
        self.sessions: list[WebRtcSession] = []
        self.change: Callable[[WebRtcSession], None] = lambda session: None
        self.says_gone = True  # where an attempt has ended

    @property
    def answering(self) -> int:
        """The attempts of other nodes that are under way."""
        return len(self._answering)

    @property
    def attempts(self) -> int:
        """All attempts that are under way."""
        return len(self._answering) + len(self._dials)

    async def _session(self, *, dialler: bool, user: str, password: str) -> "WebRtcSession":
        session = await super()._session(dialler=dialler, user=user, password=password)
        self.sessions.append(session)
        self.change(session)
        return session

    def _say_gone(self, attempt: Attempt) -> None:
        if self.says_gone:
            super()._say_gone(attempt)


class Side:
    """A node with its links; what it accepted."""

    def __init__(
        self,
        node: Node,
        post: Post,
        wire: UdpWire,
        direction: str,
        *,
        extra: Extra | None = None,
        identity: "Identity | None" = None,
        signals: Signals | None = None,
    ) -> None:
        self.node = node
        self.accepted: asyncio.Queue[Link] = asyncio.Queue(16)
        self.links = StreetLinks(
            node.now,
            signals or post.signals(node.peer),
            extra=extra,
            identity=identity,
            hosts=lambda: [LOOPBACK],
            open_socket=wire.opener(direction),
        )

    async def serve(self) -> None:
        await self.links.serve(self.accept)

    async def accept(self, link: Link) -> None:
        self.accepted.put_nowait(link)
        await asyncio.Event().wait()


class Street:
    """Two sides, and all that passes between them."""

    def __init__(
        self,
        *,
        extra: Extra | None = None,
        near: "Identity | None" = None,
        far: "Identity | None" = None,
        far_signals: Callable[[Signals], Signals] = lambda signals: signals,
    ) -> None:
        mesh = TestMesh()
        self.post, self.wire = Post(), UdpWire()
        self.signals: list[OfferSignal] = []
        self.change: Callable[[OfferSignal], OfferSignal] = lambda signal: signal
        self.post.tamper = self.pass_on
        self.near = Side(mesh.node(), self.post, self.wire, "up", extra=extra, identity=near)
        node = mesh.node()
        signals = far_signals(self.post.signals(node.peer))
        self.far = Side(node, self.post, self.wire, "down", identity=far, signals=signals)

    def pass_on(self, payload: bytes) -> bytes:
        signal = decode_offer(payload)
        assert signal is not None
        signal = self.change(signal)
        self.signals.append(signal)
        return signal.encode()

    def told(self, kind: type[OfferSignal]) -> list[OfferSignal]:
        return [signal for signal in self.signals if isinstance(signal, kind)]

    async def dial(self) -> Link:
        return await self.near.links.dial(self.far.node.peer, ())

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with Owner() as owner:
            owner.start(self.near.serve(), name="near")
            owner.start(self.far.serve(), name="far")
            try:
                yield
            finally:
                owner.cancel()

    @contextlib.asynccontextmanager
    async def dialling(self) -> AsyncIterator[asyncio.Task[Link]]:
        """A dial that is answered, and lasts until it is given up, at the latest at the end."""
        self.wire.stall()
        async with self.open():
            dial = asyncio.get_running_loop().create_task(self.dial())
            await until(lambda: bool(self.told(Answer)))
            yield dial
            await give_up(dial)


async def give_up(dial: asyncio.Task[Link]) -> None:
    dial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dial
