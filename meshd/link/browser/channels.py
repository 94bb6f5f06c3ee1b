"""Pipes of sealed messages, and the two kinds of channel: over WebRTC, and over the sealed pipe itself."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from meshd.base.errors import Broken, Closed, EndOfStream, LocalProtocolError, MeshdError
from meshd.identity.browser_seal import Seal
from meshd.identity.keys import PeerId
from meshd.link.interface import BytePipe
from meshd.wire.browser import DATA, MAX_DATA_BYTES, MAX_SEALED_BYTES
from meshd.wire.message import LengthParser, framed


class SealedPipe:
    """Sends and receives sealed messages, each with its kind. Any task may send; one receives.

    `early`: what came behind the handshake.
    """

    def __init__(self, pipe: BytePipe, seal: Seal, early: bytes) -> None:
        self._pipe = pipe
        self._seal = seal
        self._parser = LengthParser(limit=MAX_SEALED_BYTES)
        self._parser.feed(early)
        self._sending = asyncio.Lock()  # messages must go out in the order in which they are sealed
        self._is_torn = False

    async def send(self, kind: bytes, message: bytes) -> None:
        """Send one message. Raises Closed, Broken."""
        async with self._sending:
            if self._is_torn:
                raise Broken("an earlier message to the browser was cut off")
            self._is_torn = True
            await self._pipe.send([framed(self._seal.seal(kind + message))])
            self._is_torn = False

    async def receive(self) -> tuple[bytes, bytes]:
        """Return kind (one byte) and message. Raises EndOfStream, Broken, Closed, RemoteProtocolError."""
        while (sealed := self._parser.next()) is None:
            self._parser.feed(await self._pipe.receive())
        plain = self._seal.open(sealed)
        return plain[:1], plain[1:]

    async def aclose(self) -> None:
        """Close the pipe below."""
        await self._pipe.aclose()


def checked(message: bytes) -> bytes:
    """Return a message that may be sent. Raises LocalProtocolError for one that is too long."""
    if len(message) > MAX_DATA_BYTES:
        raise LocalProtocolError(f"a message of {len(message)} bytes to a browser, at most {MAX_DATA_BYTES}")
    return message


class SealedChannel:
    """A channel over the sealed pipe (implements BrowserChannel). `first` came with its opening."""

    def __init__(self, pipe: SealedPipe, peer: PeerId, first: bytes) -> None:
        self.peer_key = peer.raw
        self._pipe = pipe
        self._first: bytes | None = first

    async def send(self, message: bytes) -> None:
        """Send as BrowserChannel."""
        await self._pipe.send(DATA, checked(message))

    async def receive(self) -> bytes:
        """Receive as BrowserChannel; signals that come late are dropped."""
        first, self._first = self._first, None
        if first is not None:
            return first
        try:
            while True:
                kind, message = await self._pipe.receive()
                if kind == DATA:
                    return message
        except MeshdError as error:
            raise Closed(error.what) from None

    async def close(self) -> None:
        """Close as BrowserChannel."""
        await self._pipe.aclose()


class DirectPipe(Protocol):
    """The pipe of a WebRTC session."""

    async def send(self, data: Sequence[bytes | memoryview]) -> None: ...
    async def receive(self) -> bytes: ...
    async def aclose(self) -> None: ...


class DirectChannel:
    """A channel over WebRTC (implements BrowserChannel): messages with a length in front, in one stream."""

    def __init__(self, pipe: DirectPipe, peer: PeerId) -> None:
        self.peer_key = peer.raw
        self._pipe = pipe
        self._parser = LengthParser(limit=MAX_DATA_BYTES)
        self._sending = asyncio.Lock()

    async def send(self, message: bytes) -> None:
        """Send as BrowserChannel."""
        async with self._sending:
            try:
                await self._pipe.send([framed(checked(message))])
            except EndOfStream as error:
                raise Closed(error.what) from None

    async def receive(self) -> bytes:
        """Receive as BrowserChannel."""
        try:
            while (message := self._parser.next()) is None:
                self._parser.feed(await self._pipe.receive())
        except MeshdError as error:
            raise Closed(error.what) from None
        return message

    async def close(self) -> None:
        """Close as BrowserChannel."""
        await self._pipe.aclose()
