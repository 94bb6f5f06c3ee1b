"""Splits one direction of a connection into messages, as the bytes arrive.

Bytes that are not judged yet are held back, so that none go on that are refused later. Of a long message only
the beginning is held, the rest flows through unseen.
"""

from collections.abc import Callable
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError

MAX_UNANSWERED = 4096  # requests of a connection whose answers have not come: clients wait for most of them

Look = Callable[[bytes | memoryview, int, int], int]
"""Judges the message that begins at `at` in `data`, of which `have` bytes are there.

Returns how long it is altogether; or, before it can be judged, less than 0: how many bytes it takes, negated.
Then it is asked again, with those. Raises RemoteProtocolError.
"""


Seen = Callable[[int], None]
"""Told the number of each message that passes, in its order; it must be quick, and never raise."""


def unseen(_number: int) -> None:
    """Of messages that nobody times."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose bytes go one way, and what to do where they may not pass."""

    who: str
    hint: str


_ONE_VERSION = "install one version of meshd on both nodes, and run `meshd native build` on both"
HEAD = Sender("the head's llama-server", _ONE_VERSION)
MESH_SERVER = Sender(
    "the worker's mesh-server",
    "it does not answer as the head's llama-server expects: run `meshd native build` on the worker",
)
NEIGHBOUR = Sender("another worker's mesh-server", _ONE_VERSION)


class Messages:
    """One direction. Holds no more than a `look` ever asks for, and one chunk."""

    __slots__ = ("_flowing", "_header", "_held", "_need", "_refused", "_sender")

    def __init__(self, header_bytes: int, sender: Sender) -> None:
        self._header = header_bytes
        self._sender = sender
        self._flowing = 0  # bytes of a judged message that have not come yet
        self._held = bytearray()
        self._need = 0
        self._refused: tuple[str, str] | None = None  # what and code: the error itself would keep its frames

    @property
    def held_bytes(self) -> int:
        """Received and not handed on."""
        return len(self._held)

    @property
    def between(self) -> bool:
        """Nothing of a message is held, or has yet to come."""
        return not self._flowing and not self._held

    def feed(self, data: bytes | memoryview, look: Look) -> bytes | memoryview:
        """What may go on now: `data` itself if all of it may. Raises RemoteProtocolError, then always."""
        size = len(data)
        if size <= self._flowing:
            self._flowing -= size
            return data
        if self._refused is not None:
            raise self._error(*self._refused)
        if self._held:
            self._held += data
            if len(self._held) < self._need:
                return b""
            data, self._held = bytes(self._held), bytearray()
        try:
            passed = self._judge(data, look)
        except RemoteProtocolError as error:
            self._refused = error.what, error.code
            raise self._error(error.what, error.code) from None
        if passed >= len(data):
            return data
        self._held += data[passed:]
        return memoryview(data)[:passed] if passed else b""

    def _error(self, why: str, code: str) -> RemoteProtocolError:
        what = f"{self._sender.who} sent something that the firewall refuses: {why}"
        return RemoteProtocolError(what, code=code, hint=self._sender.hint)

    def _judge(self, data: bytes | memoryview, look: Look) -> int:
        """How many bytes of `data` may go on."""
        at, size = self._flowing, len(data)
        self._flowing = 0
        while at < size:
            have = size - at
            length = look(data, at, have) if have >= self._header else -self._header
            if length < 0:
                self._need = -length
                return at
            at += length
        self._flowing = at - size
        return size


def refused(why: str) -> RemoteProtocolError:
    """The error for a message that may not go on."""
    return RemoteProtocolError(why, code="rpc")
