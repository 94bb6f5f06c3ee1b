"""Messages between a node and a relay, on the control connection, and the first bytes of a data connection.

Each message is a msgpack map behind its length u32 (lengths.py). A *circuit* is a byte pipe between two nodes
through the relay: caller and callee get a ticket each, and show it as the first thing on a connection of
their own. A *box* is a mailbox: 16 bytes that only holders of an invite know.
"""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_NAME_BYTES, MAX_TEXT_BYTES, PEER_BYTES
from meshd.wire.message import Fields, Value, pack, plain, unpack

BOX_BYTES = 16
TICKET_BYTES = 16
MAX_MAIL_BYTES = 6 << 10  # a signed signal has 4 KiB and what surrounds it
MAX_RELAY_MESSAGE_BYTES = 8 << 10
MAX_BOX_SECONDS = 14 * 86400
TICKET_MAGIC = b"MESHT"
TICKET_PREFACE_BYTES = len(TICKET_MAGIC) + TICKET_BYTES
_MAX_NUMBER = (1 << 32) - 1
_MAX_RATE = 1 << 50


@dataclass(frozen=True, slots=True)
class Call:
    """Node: a circuit to `to`, please: a node's key (32 bytes) or a box (16). `number` marks the answer."""

    number: int
    to: bytes


@dataclass(frozen=True, slots=True)
class HangUp:
    """Node: nobody will come with this ticket."""

    ticket: bytes


@dataclass(frozen=True, slots=True)
class OpenBox:
    """Node: those that know `box` may call and write to me, for `seconds` from now."""

    box: bytes
    seconds: int


@dataclass(frozen=True, slots=True)
class ShutBox:
    """Node: end of OpenBox."""

    box: bytes


@dataclass(frozen=True, slots=True)
class Post:
    """Node: hand `blob` to `to` (as in Call), now or when it comes."""

    number: int
    to: bytes
    blob: bytes


@dataclass(frozen=True, slots=True)
class RelayPing:
    """Node: are you there?"""

    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Relay, first: what it lets this node do. `seen` is the node's address as the relay sees it.

    `circuits` at once; `rate` bytes a second, 0 for no bound.
    """

    seen: str
    circuits: int
    rate: int


@dataclass(frozen=True, slots=True)
class Called:
    """Relay: the other side was rung; come with this ticket."""

    number: int
    ticket: bytes


@dataclass(frozen=True, slots=True)
class Ring:
    """Relay: `caller` wants a circuit; come with this ticket. `box`: the one it called, or empty."""

    ticket: bytes
    caller: bytes
    box: bytes


@dataclass(frozen=True, slots=True)
class Posted:
    """Relay: handed over (`delivered`), or kept for a while."""

    number: int
    delivered: bool


@dataclass(frozen=True, slots=True)
class RelayRefusal:
    """Relay: no, to the Call or Post of that number; the number 0 refuses the connection itself."""

    number: int
    code: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Mail:
    """Relay: `blob` from `sender`, to this node or to its box."""

    sender: bytes
    box: bytes
    blob: bytes


@dataclass(frozen=True, slots=True)
class RelayPong:
    """Relay: yes."""

    number: int


FromNode = Call | HangUp | OpenBox | ShutBox | Post | RelayPing
FromRelay = Ready | Called | Ring | Posted | RelayRefusal | Mail | RelayPong


def encode(message: FromNode | FromRelay) -> bytes:
    """One message, without its length. Texts are made to fit."""
    fields: dict[str, Value] = {"type": _NAMES[type(message)]}
    for name in message.__slots__:
        value = getattr(message, name)
        fields[name] = plain(value) if isinstance(value, str) else value
    return pack(fields)


def decode_from_node(data: bytes) -> FromNode:
    """What a relay reads. Raises RemoteProtocolError."""
    fields = unpack(data, limit=MAX_RELAY_MESSAGE_BYTES)
    match fields.text("type", most=16):
        case "call":
            return Call(_number(fields), _to(fields))
        case "hang_up":
            return HangUp(fields.raw("ticket", exact=TICKET_BYTES))
        case "open_box":
            seconds = fields.number("seconds", low=1, high=MAX_BOX_SECONDS)
            return OpenBox(fields.raw("box", exact=BOX_BYTES), seconds)
        case "shut_box":
            return ShutBox(fields.raw("box", exact=BOX_BYTES))
        case "post":
            return Post(_number(fields), _to(fields), fields.raw("blob", most=MAX_MAIL_BYTES))
        case "ping":
            return RelayPing(_number(fields))
        case other:
            raise RemoteProtocolError(f"relay message of unknown type `{other}`", code="message")


def decode_from_relay(data: bytes) -> FromRelay | None:
    """What a node reads; None: a kind of a later version, to be passed over. Raises RemoteProtocolError."""
    fields = unpack(data, limit=MAX_RELAY_MESSAGE_BYTES)
    match fields.text("type", most=16):
        case "ready":
            return Ready(
                fields.text("seen", most=MAX_NAME_BYTES),
                fields.number("circuits", low=0, high=_MAX_NUMBER),
                fields.number("rate", low=0, high=_MAX_RATE),
            )
        case "called":
            return Called(_number(fields), fields.raw("ticket", exact=TICKET_BYTES))
        case "ring":
            return Ring(
                fields.raw("ticket", exact=TICKET_BYTES), fields.raw("caller", exact=PEER_BYTES), _box(fields)
            )
        case "posted":
            return Posted(_number(fields), fields.flag("delivered"))
        case "refused":
            return RelayRefusal(
                _number(fields),
                fields.text("code", most=MAX_NAME_BYTES),
                fields.text("text", most=MAX_TEXT_BYTES),
                fields.text("hint", most=MAX_TEXT_BYTES, default=""),
            )
        case "mail":
            return Mail(
                fields.raw("sender", exact=PEER_BYTES), _box(fields), fields.raw("blob", most=MAX_MAIL_BYTES)
            )
        case "pong":
            return RelayPong(_number(fields))
        case _:
            return None


_NAMES: dict[type, str] = {
    Call: "call",
    HangUp: "hang_up",
    OpenBox: "open_box",
    ShutBox: "shut_box",
    Post: "post",
    RelayPing: "ping",
    Ready: "ready",
    Called: "called",
    Ring: "ring",
    Posted: "posted",
    RelayRefusal: "refused",
    Mail: "mail",
    RelayPong: "pong",
}


def _number(fields: Fields) -> int:
    return fields.number("number", low=0, high=_MAX_NUMBER)


def _to(fields: Fields) -> bytes:
    to = fields.raw("to", most=PEER_BYTES)
    if len(to) not in (PEER_BYTES, BOX_BYTES):
        raise RemoteProtocolError(
            f"field `to` must be a key of {PEER_BYTES} bytes or a box of {BOX_BYTES}", code="message"
        )
    return to


def _box(fields: Fields) -> bytes:
    box = fields.raw("box", most=BOX_BYTES)
    if len(box) not in (0, BOX_BYTES):
        raise RemoteProtocolError(f"field `box` must be empty or {BOX_BYTES} bytes", code="message")
    return box
