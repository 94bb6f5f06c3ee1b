"""Exchange messages over a stream, for leases and news. Credit goes back as soon as a message is read."""

import asyncio

from meshd.base.admission import Rate
from meshd.base.errors import EndOfStream, RemoteProtocolError
from meshd.peer.interface import Stream
from meshd.wire.message import LengthParser, framed


class MessageStream:
    """A stream of whole messages of at most 64 KiB each, in order."""

    def __init__(self, stream: Stream, rate: Rate | None = None) -> None:
        """Wrap `stream`. `rate` limits received messages: further ones wait, and so does their sender."""
        self.stream = stream
        self._pace = rate.bucket(asyncio.get_running_loop().time()) if rate is not None else None
        self._parser = LengthParser()
        self._sending = asyncio.Lock()  # keeps messages whole when several tasks send

    async def send(self, message: bytes) -> None:
        """Send one message. Raises Broken."""
        async with self._sending:
            await self.stream.write(framed(message))

    async def receive(self) -> bytes:
        """Return the next message. Raises EndOfStream, Broken, RemoteProtocolError."""
        # Even a sleep of 0 matters: without it, everything that has arrived would be read in one turn.
        if self._pace is not None:
            await asyncio.sleep(self._pace.take(1, asyncio.get_running_loop().time()))
        while (message := self._parser.next()) is None:
            try:
                data = await self.stream.read()
            except EndOfStream:
                if self._parser.rest():
                    raise RemoteProtocolError("stream ended inside a message", code="message") from None
                raise
            self._parser.feed(data)
            self.stream.consumed(len(data))
        return message
