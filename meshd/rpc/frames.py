"""Splits one direction of a connection of the mesh-server protocol into messages, as the bytes arrive.

Only the kind and the length of a message are checked here: its sender must be allowed to send it. The program
that receives it checks the rest. A reader looks into a few kinds; any other message costs one turn of a loop,
and is held back only until its header is complete.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire

MAX_UNANSWERED = 4096  # requests whose answers are looked at and have not come
WHOLE = 1 << 32  # more than any body has
_HEADER_BYTES = wire.HEADER.size

Seen = Callable[[int], None]
"""Told the number of a message that passes, in its order; it must be quick, and never raise."""

T = TypeVar("T")


def unseen(_number: int) -> None:
    """Ignore the message: the default of `seen`."""


class Look(NamedTuple, Generic[T]):
    """An inspection of one kind of message before it is passed on, once `needed` bytes of its body are there,
    or all if it has fewer.

    `at` gets the inspector, the data, the offset and the size of the body, and the id. It may raise
    RemoteProtocolError.
    """

    needed: int
    at: Callable[[T, bytes | memoryview, int, int, int], None]


@dataclass(frozen=True, slots=True)
class Sender:
    """One sender's identity: `role` in the schema, `who` for people, and the hint if its bytes are wrong."""

    role: str
    who: str
    hint: str


_ONE_VERSION = "install one version of meshd on both nodes, and run `meshd native build` on both"
HEAD = Sender("head", "the head's llama-server", _ONE_VERSION)
MESH_SERVER = Sender(
    "worker",
    "the worker's mesh-server",
    "it does not answer as the head's llama-server expects: run `meshd native build` on the worker",
)
NEIGHBOUR = Sender("neighbour", "another worker's mesh-server", _ONE_VERSION)


class Kinds(Generic[T]):
    """The messages that one sender may send, and the inspection of each; shared by all connections."""

    __slots__ = ("rules", "sender")

    def __init__(self, sender: Sender, looks: Mapping[int, Look[T]], *, noted: Collection[int] = ()) -> None:
        """Build the table of rules. `noted`: the kinds that Messages reports to `seen`."""
        self.sender = sender
        self.rules = {
            number: (message.body.size, message.most, looks.get(number), number in noted)
            for number, message in wire.MESSAGES.items()
            if message.sender == sender.role
        }
        assert {*looks, *noted} <= self.rules.keys()


class Messages(Generic[T]):
    """One direction of a connection. Holds no more than an inspection needs, and one chunk. Holds no more
    than is needed for a look, and one chunk.

    Who looks comes with each chunk: to keep it here would be a cycle, and what it holds be freed late.
    """

    __slots__ = ("_flowing", "_held", "_need", "_refused", "_seen", "began", "kinds")

    def __init__(self, kinds: Kinds[T], seen: Seen = unseen) -> None:
        self.kinds = kinds
        """Of the messages that begin from now on."""
        self._seen = seen
        self._flowing = 0  # bytes of a message that have not come yet, and go on as they come
        self._held = bytearray()
        self._need = 0
        self._refused: tuple[str, str] | None = None  # what and code: the error itself would keep its frames
        self.began = 0  # messages in what the last chunk let go on

    @property
    def held_bytes(self) -> int:
        """The bytes received and not passed on."""
        return len(self._held)

    def feed(self, data: bytes | memoryview, who: T) -> bytes | memoryview:
        """Return the bytes that may be passed on: `data` itself if all of it may. Raises RemoteProtocolError,
        then always.
        """
        size = len(data)
        self.began = 0
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
            passed = self._split(data, who)
        except RemoteProtocolError as error:
            self._refused = error.what, error.code
            raise self._error(error.what, error.code) from None
        if passed >= len(data):
            return data
        self._held += data[passed:]
        return memoryview(data)[:passed] if passed else b""

    def _error(self, why: str, code: str) -> RemoteProtocolError:
        sender = self.kinds.sender
        return RemoteProtocolError(f"{sender.who} broke the protocol: {why}", code=code, hint=sender.hint)

    def _split(self, data: bytes | memoryview, who: T) -> int:
        """Return how many bytes of `data` may be passed on."""
        at, size, began = self._flowing, len(data), 0
        self._flowing = 0
        rules, unpack = self.kinds.rules, wire.HEADER.unpack_from
        while at < size:
            # Read the header, once it is complete, and check it.
            body = at + _HEADER_BYTES
            if body > size:
                self._need = _HEADER_BYTES
                break
            length, number, zero, identity = unpack(data, at)
            rule = rules.get(number)
            if rule is None:
                raise refused(f"message {number}")
            least, most, look, is_noted = rule
            if zero or not least <= length <= most:
                raise _refusal(number, length, zero)
            # Inspect the beginning of the body, once it is there.
            if look is not None:
                needed = min(length, look.needed)
                if body + needed > size:
                    self._need = _HEADER_BYTES + needed
                    break
                look.at(who, data, body, length, identity)
            if is_noted:
                self._seen(number)
            # Skip the rest, which may still be on its way.
            at = body + length
            began += 1
        self.began = began
        if at > size:
            self._flowing = at - size
            return size
        return at


def _refusal(number: int, length: int, zero: int) -> RemoteProtocolError:
    name = wire.MESSAGES[number].name
    return refused(f"{name}: a reserved field is not 0" if zero else f"{name} of {length} bytes")


def refused(why: str) -> RemoteProtocolError:
    """Return the error for a message that may not be passed on."""
    return RemoteProtocolError(why, code="rpc")
