"""Messages over a stream, for leases and news. Credit goes back as soon as a message is read."""

import asyncio

from meshd.base.errors import EndOfStream, RemoteProtocolError
from meshd.base.peer_limits import Rate
from meshd.peer.interface import Stream
from meshd.wire.lengths import LengthParser, framed


class MessageStream:
    """Whole messages of at most 64 KiB each, in order."""

    def __init__(self, stream: Stream, rate: Rate | None = None) -> None:
        """`rate`: of messages that are received; further ones wait, and so does who sends them."""
        self.stream = stream
        self._pace = rate.bucket(asyncio.get_running_loop().time()) if rate is not None else None
        self._parser = LengthParser()
        self._sending = asyncio.Lock()  # whole messages, also when several tasks have something to say

    async def send(self, message: bytes) -> None:
        """Raises Broken."""
        async with self._sending:
            await self.stream.write(framed(message))

    async def receive(self) -> bytes:
        """The next message. Raises EndOfStream, Broken, RemoteProtocolError."""
        if self._pace is not None:  # sleeps without a pause too: all that has come would be read in one turn
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
