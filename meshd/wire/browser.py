"""Messages between a browser and a node on their sealed pipe (identity/browser_seal.py).

Each frame on the pipe is a length u32 and a sealed message. What is sealed begins with a byte: SIGNALLING,
and one of these messages as a msgpack map, or DATA, and a message of the channel.
"""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.codec import Family, Message
from meshd.wire.limits import AtMost, Items, NodeId, Prose, ShortName, Size, Text
from meshd.wire.signal import MAX_PAYLOAD_BYTES

SIGNALLING, DATA = b"\0", b"\1"
SIGNAL_PATH = "/mesh/signal"  # of the WebSocket at the node itself
MAX_DATA_BYTES = 16 << 10  # one message of the channel
MAX_SEALED_BYTES = MAX_DATA_BYTES + 1024  # one frame, with its seal
MAX_FIRST_BYTES = 256  # one frame, before the seal is made


@dataclass(frozen=True, slots=True)
class BrowserHello(Message, tag="hello"):
    """Browser, first: its key, and that key's signature over the seal's binding."""

    key: NodeId
    signature: Annotated[bytes, Size(64)]


@dataclass(frozen=True, slots=True)
class BrowserWelcome(Message, tag="welcome"):
    """Node: you are let in. `name` is the node's, `stun` are servers as `host:port` or `host`."""

    name: ShortName
    stun: Annotated[tuple[Annotated[str, Text(300)], ...], Items(8, cut=True)]


@dataclass(frozen=True, slots=True)
class BrowserRefused(Message, tag="refused"):
    """Node: not let in, or not any more."""

    code: ShortName
    text: Prose
    hint: Prose = ""


@dataclass(frozen=True, slots=True)
class BrowserSignal(Message, tag="signal"):
    """Either: an offer, an answer or more addresses (wire/signal.py), as nodes send them."""

    payload: Annotated[bytes, AtMost(MAX_PAYLOAD_BYTES)]


BrowserMessage = BrowserHello | BrowserWelcome | BrowserRefused | BrowserSignal
_BROWSER: Family[BrowserMessage] = Family("browser", BrowserMessage, limit=MAX_SEALED_BYTES)


def decode_browser(data: bytes) -> BrowserMessage | None:
    """Read one message; None for a type of a later version. Raises RemoteProtocolError."""
    return _BROWSER.decode_known(data)
