"""One UDP request to the gateway, repeated until its answer arrives."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from meshd.base.errors import RemoteProtocolError
from meshd.portmap.interface import NotMapped
from meshd.wire.portmap import MapRefused, NotForUs

T = TypeVar("T")

_FIRST_SECONDS = 0.25  # RFC 6886, 3.1; then twice as long each time
_ASK_SECONDS = 3.75  # so four times in all; home routers answer in milliseconds or never
_MAX_DATAGRAMS = 16  # datagrams; more at once is no router's way


class _RouterReplies(asyncio.DatagramProtocol):
    """The queue of a few replies; an error (nobody listens there) ends the wait."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Exception] = asyncio.Queue(_MAX_DATAGRAMS)

    def datagram_received(self, data: bytes, _address: object) -> None:
        if not self.queue.full():
            self.queue.put_nowait(data)

    def error_received(self, exc: Exception) -> None:
        if not self.queue.full():
            self.queue.put_nowait(exc)


async def ask(
    question: bytes,
    *,
    at: tuple[str, int],
    local: str,
    read: Callable[[bytes], T],
    seconds: float = _ASK_SECONDS,
) -> T:
    """Return the first reply that `read` accepts. Raises NotMapped: refused, or silent for so many seconds.

    The socket is connected: the kernel drops what comes from anywhere else.
    """
    loop = asyncio.get_running_loop()
    try:
        transport, inbox = await loop.create_datagram_endpoint(
            _RouterReplies, local_addr=(local, 0), remote_addr=at
        )
    except OSError as error:
        raise NotMapped(f"cannot reach the gateway: {error.strerror or error}", silent=True) from None
    try:
        # Repeat with doubled pauses, as datagrams get lost.
        async with asyncio.timeout(seconds):
            pause = _FIRST_SECONDS
            while True:
                transport.sendto(question)
                try:
                    async with asyncio.timeout(pause):
                        return await _answer(inbox, read)
                except TimeoutError:
                    pause *= 2
    except TimeoutError:
        raise NotMapped("the router does not answer", silent=True) from None
    finally:
        transport.close()


async def _answer(inbox: _RouterReplies, read: Callable[[bytes], T]) -> T:
    while True:
        came = await inbox.queue.get()
        if isinstance(came, Exception):
            raise NotMapped("the router does not support it", silent=True)
        try:
            return read(came)
        except NotForUs:
            continue
        except MapRefused:
            raise
        except RemoteProtocolError as error:
            raise NotMapped(f"the router's answer cannot be read: {error.what}") from None
