"""A browser, in Python: a WebSocket to a relay, the seal, and WebRTC by meshd's own dialler."""

import asyncio
import base64
import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from meshd.identity.browser_seal import BROWSER_CONTEXT, Seal, SealDialler
from meshd.identity.invite import JoinKeys, derive
from meshd.identity.keys import KeyPair, PeerId, to_base32
from meshd.identity.membership import Chain, Role, issue
from meshd.link.browser.channels import DirectChannel
from meshd.link.browser.direct import BrowserMeetings
from meshd.link.browser.entrance import Browsers
from meshd.link.interface import BrowserChannel, Signals
from meshd.link.relayed.for_browsers import BrowserCircuits
from meshd.link.secure.caller_rates import Callers
from meshd.link.webrtc.links import WebRtcLinks
from meshd.wire.address import Candidate
from meshd.wire.browser import (
    MAX_SEALED_BYTES,
    SIGNALLING,
    BrowserHello,
    BrowserMessage,
    BrowserSignal,
    decode_browser,
)
from meshd.wire.dialable import Dialable, Source, trusted
from meshd.wire.hello import NotAdmitted, Welcome
from meshd.wire.message import LengthParser, framed
from meshd.wire.signal import ATTEMPT_BYTES
from meshd.wire.websocket import unmask

from tests.conformance.relays import House, Party, in_house

KEYS = derive(b"b" * 16)
OPENED: list["WebSocket"] = []  # and not closed by `with_browsers` yet


class WebSocket:
    """A browser's end, on asyncio's streams. `open` raises ConnectionError unless the answer is 101."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        OPENED.append(self)

    @classmethod
    async def open(cls, place: str, path: str) -> "WebSocket":
        host, port = place.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {place}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        socket = cls(reader, writer)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(head.split(b"\r\n")[0].decode())
        return socket

    async def send(self, payload: bytes) -> None:
        """One masked binary frame."""
        mask, size = os.urandom(4), len(payload)
        short = size < 126
        head = bytes([0x82, 0x80 | (size if short else 126)]) + (b"" if short else size.to_bytes(2, "big"))
        self._writer.write(head + mask + unmask(payload, mask))
        await self._writer.drain()

    async def receive(self) -> bytes:
        """The payload of the next frame; empty at the end."""
        try:
            head = await self._reader.readexactly(2)
            size = head[1]
            if size >= 126:
                size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
            payload = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        return b"" if head[0] & 15 == 8 else payload

    def close(self) -> None:
        self._writer.close()

    async def gone(self) -> None:
        """Close it and wait until it is."""
        self.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Page:
    """A browser that was let in (or not: `answer`), on a sealed WebSocket. Implements Signals."""

    def __init__(self, socket: WebSocket, head: PeerId, key: KeyPair) -> None:
        self._socket, self.head, self.key = socket, head, key
        self._parser = LengthParser(limit=MAX_SEALED_BYTES)
        self._seal: Seal | None = None
        self.answer: BrowserMessage | None = None

    @classmethod
    async def open(
        cls, place: str, head: PeerId, key: KeyPair, keys: JoinKeys = KEYS, *, path: str | None = None
    ) -> "Page":
        """Come to the head through a relay, or at the path of its API."""
        where = path or f"/browser/{to_base32(keys.browser_box)}"
        page = cls(await WebSocket.open(place, where), head, key)
        dialler = SealDialler(keys, head, ephemeral=os.urandom(32))
        await page._socket.send(framed(dialler.first))
        page._seal = dialler.finish(await page._frame())
        hello = BrowserHello(key.peer.raw, key.sign(BROWSER_CONTEXT, page._seal.binding))
        await page.put(SIGNALLING, hello.encode())
        page.answer = decode_browser((await page.take())[1])
        return page

    async def put(self, kind: bytes, message: bytes) -> None:
        assert self._seal is not None
        await self._socket.send(framed(self._seal.seal(kind + message)))

    async def take(self) -> tuple[bytes, bytes]:
        """Kind and message; ConnectionError at the end."""
        assert self._seal is not None
        plain = self._seal.open(await self._frame())
        return plain[:1], plain[1:]

    async def ended(self) -> None:
        """Wait for the end."""
        try:
            while True:
                await self.take()
        except ConnectionError:
            return

    def close(self) -> None:
        self._socket.close()

    async def _frame(self) -> bytes:
        while (frame := self._parser.next()) is None:
            chunk = await self._socket.receive()
            if not chunk:
                raise ConnectionError("the end")
            self._parser.feed(chunk)
        return frame

    # --- Signals

    async def send(self, peer: PeerId, payload: bytes) -> None:
        await self.put(SIGNALLING, BrowserSignal(payload).encode())

    async def receive(self) -> tuple[PeerId, bytes]:
        while True:
            kind, message = await self.take()
            signal = decode_browser(message) if kind == SIGNALLING else None
            if isinstance(signal, BrowserSignal):
                return self.head, signal.payload


class PageLinks(WebRtcLinks):
    """The browser's half of WebRTC, by meshd's dialler, without the proof."""

    async def meet(self, head: PeerId) -> DirectChannel:
        async with asyncio.timeout(10):
            attempt = await self._prepare(head, secrets.token_bytes(ATTEMPT_BYTES), dialler=True)
            self._dials[head, attempt.id] = attempt
            await self._offer(attempt)
            pipe = await self._meet(attempt)
        pipe.widen()
        return DirectChannel(pipe, head)


@dataclass
class Desk:
    """A party that lets browsers in. Channels echo, or do what `serve` says."""

    party: Party
    browsers: Browsers
    refusal: NotAdmitted | None = None
    banned: set[PeerId] = field(default_factory=set)
    channels: list[BrowserChannel] = field(default_factory=list)
    ended: list[BrowserChannel] = field(default_factory=list)

    async def echo(self, channel: BrowserChannel) -> None:
        self.channels.append(channel)
        try:
            while True:
                await channel.send(await channel.receive())
        finally:
            self.ended.append(channel)


def with_browsers(work: Callable[[House], Awaitable[None]]) -> None:
    """Run `work` in a house, and close what it opened."""

    async def whole(home: House) -> None:
        try:
            await work(home)
        finally:
            while OPENED:
                await OPENED.pop().gone()

    in_house(whole)


async def desk(home: House, *, stun: Sequence[str] = (), direct: bool = True) -> Desk:
    """A connected party with one invite for browsers, KEYS."""
    (ann,) = await home.parties(1)
    context = ann.node.now()
    made: Desk

    def admit(peer: PeerId, invite_id: bytes) -> Welcome | NotAdmitted:
        certificate = issue(
            signer=home.mesh.root,
            mesh=home.mesh.mesh,
            node=peer,
            roles={Role.USE},
            serial=bytes(16),
            invite=invite_id,
            issued_at=0,
        )
        chain = Chain((certificate,), home.mesh.root.peer)
        return made.refusal or Welcome(chain.encode(), (), ())

    def meetings(signals: Signals) -> BrowserMeetings:
        return BrowserMeetings(ann.node.now, signals, stun, hosts=lambda: ["127.0.0.1"], may_dial=anywhere)

    browsers = Browsers(
        key=context.credentials.key,
        name="ann",
        invites=lambda invite_id: KEYS if invite_id == KEYS.invite_id else None,
        admit=admit,
        why_banned=lambda chain: "banned" if chain.leaf.node in made.banned else None,
        stun=lambda: stun,
        meetings=meetings if direct else None,
        random=secrets.token_bytes,
    )
    made = Desk(ann, browsers)
    browsers.serve_channel = made.echo
    await ann.client.set_boxes({KEYS.browser_box: 600.0}, frozenset({KEYS.browser_box}))
    circuits = BrowserCircuits(ann.client, browsers.welcome, Callers())
    home.owner.start(circuits.serve(), name="browser circuits")
    return made


def anywhere(_peer: PeerId, candidates: Sequence[Candidate], _source: Source) -> Sequence[Dialable]:
    return trusted(candidates)
