"""Seams of the way from a browser to this node: what comes in, and what is handed on."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from meshd.identity.keys import PeerId
from meshd.wire.hello import NotAdmitted, Welcome


class BytePipe(Protocol):
    """A reliable, ordered pipe of bytes, which need not be secret: a WebSocket, or a circuit of a relay."""

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send the pieces; waits while too much is on its way. Raises Closed, Broken."""
        ...

    async def receive(self) -> bytes:
        """Return the next chunk. Raises EndOfStream, Broken, Closed."""
        ...

    async def aclose(self) -> None:
        """Close within 1 s. Idempotent."""
        ...


class BrowserChannel(Protocol):
    """Messages to and from a browser whose key an invite has admitted."""

    @property
    def peer_key(self) -> bytes:
        """The browser's key, 32 bytes; the same however often it comes back."""
        ...

    async def send(self, message: bytes) -> None:
        """Send at most 16 KiB; waits while more than 256 KiB are on their way. Raises Closed, Broken."""
        ...

    async def receive(self) -> bytes:
        """Return the next message, at most 16 KiB. Raises Closed at the channel's end, whatever ended it."""
        ...

    async def close(self) -> None:
        """End the channel within 1 s. Idempotent."""
        ...


ServeBrowser = Callable[[BrowserChannel], Awaitable[None]]
"""Gets every channel, and keeps it as long as it lives; cancelled when the browser's key is banned."""

Admit = Callable[[PeerId, bytes], Welcome | NotAdmitted]
"""Decides whether a key is let in by an invite (its id); whoever was let in is let in again."""

LetIn = Callable[[bytes], None]
"""Called with a browser's key once it has proven itself."""

WelcomeBrowser = Callable[[BytePipe, str, LetIn], Awaitable[bool]]
"""Runs the whole life of one pipe from a place (for the log); False: its browser has proven nothing."""
