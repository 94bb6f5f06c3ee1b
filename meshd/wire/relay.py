"""Messages between a node and a relay, on the control connection, and the first bytes of a data connection.

Each message is a msgpack map behind its length u32 (message.py). A *circuit* is a byte pipe between two nodes
through the relay: caller and callee get a ticket each, and show it as the first thing on a connection of
their own. A *box* is a mailbox: 16 bytes that only holders of an invite know.
"""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.codec import Family, Message
from meshd.wire.limits import MAX_NAME_BYTES, PEER_BYTES, AtMost, Between, NodeId, Prose, Size, Text

BOX_BYTES = 16
TICKET_BYTES = 16
MAX_MAIL_BYTES = 6 << 10  # a signed signal has 4 KiB and what surrounds it
MAX_RELAY_MESSAGE_BYTES = 8 << 10
MAX_BOX_SECONDS = 14 * 86400
TICKET_MAGIC = b"MESHT"
TICKET_PREFACE_BYTES = len(TICKET_MAGIC) + TICKET_BYTES
_MAX_NUMBER = (1 << 32) - 1
_MAX_RATE = 1 << 50
BROWSER_PATH = "/browser/"  # before a box in base32: what a browser's WebSocket asks a relay for
_Number = Annotated[int, Between(0, _MAX_NUMBER)]
_Ticket = Annotated[bytes, Size(TICKET_BYTES)]


@dataclass(frozen=True, slots=True)
class Call(Message, tag="call"):
    """Node: a circuit to `to`, please: a node's key (32 bytes) or a box (16). `number` marks the answer."""

    number: _Number
    to: Annotated[bytes, Size(PEER_BYTES, BOX_BYTES)]


@dataclass(frozen=True, slots=True)
class HangUp(Message, tag="hang_up"):
    """Node: nobody will come with this ticket."""

    ticket: _Ticket


@dataclass(frozen=True, slots=True)
class OpenBox(Message, tag="open_box"):
    """Node: those that know `box` may call and write to me, for `seconds` from now.

    `lasting`: it is for browsers, whose circuits are held neither to few bytes nor to few seconds.
    """

    box: Annotated[bytes, Size(BOX_BYTES)]
    seconds: Annotated[int, Between(1, MAX_BOX_SECONDS)]
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class ShutBox(Message, tag="shut_box"):
    """Node: end of OpenBox."""

    box: Annotated[bytes, Size(BOX_BYTES)]


@dataclass(frozen=True, slots=True)
class Post(Message, tag="post"):
    """Node: hand `blob` to `to` (as in Call), now or when it comes."""

    number: _Number
    to: Annotated[bytes, Size(PEER_BYTES, BOX_BYTES)]
    blob: Annotated[bytes, AtMost(MAX_MAIL_BYTES)]


@dataclass(frozen=True, slots=True)
class RelayPing(Message, tag="ping"):
    """Node: are you there?"""

    number: _Number


@dataclass(frozen=True, slots=True)
class Ready(Message, tag="ready"):
    """Relay, first: what it lets this node do. `seen` is the node's address as the relay sees it.

    `circuits` at once; `rate` bytes a second, 0 for no bound.
    """

    seen: Annotated[str, Text(MAX_NAME_BYTES, cut=True)]
    circuits: _Number
    rate: Annotated[int, Between(0, _MAX_RATE)]


@dataclass(frozen=True, slots=True)
class Called(Message, tag="called"):
    """Relay: the other side was rung; come with this ticket."""

    number: _Number
    ticket: _Ticket


@dataclass(frozen=True, slots=True)
class Ring(Message, tag="ring"):
    """Relay: `caller` wants a circuit; come with this ticket. `box`: the one it called, or empty."""

    ticket: _Ticket
    caller: NodeId
    box: Annotated[bytes, Size(0, BOX_BYTES)]


@dataclass(frozen=True, slots=True)
class Posted(Message, tag="posted"):
    """Relay: handed over (`delivered`), or kept for a while."""

    number: _Number
    delivered: bool


@dataclass(frozen=True, slots=True)
class RelayRefusal(Message, tag="refused"):
    """Relay: no, to the Call or Post of that number; the number 0 refuses the connection itself."""

    number: _Number
    code: Annotated[str, Text(MAX_NAME_BYTES, cut=True)]
    text: Prose
    hint: Prose = ""


@dataclass(frozen=True, slots=True)
class Mail(Message, tag="mail"):
    """Relay: `blob` from `sender`, to this node or to its box."""

    sender: NodeId
    box: Annotated[bytes, Size(0, BOX_BYTES)]
    blob: Annotated[bytes, AtMost(MAX_MAIL_BYTES)]


@dataclass(frozen=True, slots=True)
class RelayPong(Message, tag="pong"):
    """Relay: yes."""

    number: _Number


FromNode = Call | HangUp | OpenBox | ShutBox | Post | RelayPing
FromRelay = Ready | Called | Ring | Posted | RelayRefusal | Mail | RelayPong
_FROM_NODE: Family[FromNode] = Family("relay", FromNode, limit=MAX_RELAY_MESSAGE_BYTES)
_FROM_RELAY: Family[FromRelay] = Family("relay", FromRelay, limit=MAX_RELAY_MESSAGE_BYTES)


def decode_from_node(data: bytes) -> FromNode:
    """Read what a relay gets. Raises RemoteProtocolError."""
    return _FROM_NODE.decode(data)


def decode_from_relay(data: bytes) -> FromRelay | None:
    """Read what a node gets; None for a type of a later version. Raises RemoteProtocolError."""
    return _FROM_RELAY.decode_known(data)
