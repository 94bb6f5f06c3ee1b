"""Splits one direction of a connection of the mesh-server protocol into messages, within a budget of time.

Only the kind and the length of a message are checked here: its sender must be allowed to send it. The program
that receives it checks the rest. A reader looks into a few kinds; any other message costs one turn of a loop,
and is held back only until its header is complete.
"""

import weakref
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
# The budget of time.
SHARE = 0.24  # seconds of reading a second
SECONDS_AT_ONCE = 0.26
MESSAGE_SECONDS = 1.8e-6  # a message: the dearest kind is FREE
ENTRY_SECONDS = 2.4e-6  # one of LOAD: the view and the store look at it
LINE_SECONDS = 40e-6  # a line of a mesh-server's report, with waking up for it
PROGRESS_WEIGHT = 600e-6  # at the head, where llama-server has to take it: one is due in PROGRESS_SECONDS
LITTLE_SECONDS = 2e-3  # a connection that owes no more than this never waits for others


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
    """One direction of a connection. Holds no more than an inspection needs, and one chunk.

    Who looks comes with each chunk: to keep it here would be a cycle, and what it holds be freed late.
    """

    __slots__ = ("_flowing", "_held", "_need", "_refused", "_seen", "began", "kinds")

    def __init__(self, kinds: Kinds[T], seen: Seen = unseen) -> None:
        self.kinds = kinds
        """Kinds of the messages that begin from now on."""
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


class NodeReading:
    """The share of the loop's time that reading along in peers' traffic may take from everything else.

    All connections of a node share one budget, so that several leases of one member take no more than one. A
    connection that had little read lately need not wait for those that had much. Each has a `ReadingBudget`
    of it. Times in seconds, of one clock.

    13 KiB of a compressed stream are enough for 90,000 messages that do nothing; for a token some tens go
    each way. Counted are seconds of a processor, as `python -m tests.unit.rpc.reading_cost` prints them.
    """

    __slots__ = ("_members", "_since", "_spent")

    def __init__(self) -> None:
        self._spent = 0.0  # seconds of reading
        self._since = 0.0
        self._members: weakref.WeakSet[ReadingBudget] = weakref.WeakSet()  # of connections that are open

    def add(self, member: "ReadingBudget") -> None:
        """Count a connection, for as long as it has its budget."""
        self._members.add(member)

    @property
    def share_of_one(self) -> float:
        """The seconds a second that each connection can always have read."""
        return SHARE / max(1, len(self._members))

    def spend(self, seconds: float) -> None:
        """Count seconds of reading, of any connection."""
        self._spent += seconds

    def pause(self, now: float) -> float:
        """Return how long connections wait that had much read, in seconds."""
        self._spent = max(0.0, self._spent - (now - self._since) * SHARE)
        self._since = now
        return max(0.0, (self._spent - SECONDS_AT_ONCE) / SHARE)


class ReadingBudget:
    """The part of one connection in the budget of its node."""

    __slots__ = ("__weakref__", "_node", "_since", "_spent")

    def __init__(self, node: NodeReading | None = None) -> None:
        """Join the node's budget; without `node` this one has a budget of its own."""
        self._node = node if node is not None else NodeReading()
        self._node.add(self)
        self._spent = 0.0  # seconds that it owes
        self._since = 0.0

    def spend(self, seconds: float) -> None:
        """Count seconds of reading."""
        self._spent += seconds
        self._node.spend(seconds)

    def pause(self, now: float) -> float:
        """Return how long the next bytes of this connection have to wait; ask again after that time."""
        owed = self._spent - (now - self._since) * self._node.share_of_one
        # what was read while nobody waited is soon forgotten
        self._spent = min(max(0.0, owed), SECONDS_AT_ONCE)
        self._since = now
        pause = self._node.pause(now)
        return pause if self._spent > LITTLE_SECONDS else 0.0
