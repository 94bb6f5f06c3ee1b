"""The body of a signal: a small message to a peer beside any link (offers, answers, times to begin).

Signed as a whole by its sender (identity/signal.py), so that nodes that pass it on can change nothing. The
payload belongs to the kind of link that `topic` names.
"""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.bounds import AtMost, Between, Name, NodeId, Size, Text
from meshd.wire.codec import Message, decode_as
from meshd.wire.limits import MAX_CHAIN_BYTES, MAX_TIME, PEER_BYTES

SIGNAL_SERVICE = "signal"

MAX_SIGNAL_BYTES = 6 << 10  # a whole signal with its signature and its sender's chain
MAX_PAYLOAD_BYTES = 4096
ATTEMPT_BYTES = 16  # names one attempt to connect, in the payloads of all topics
MAX_TOPIC_BYTES = 16
MAX_LIFE = 120  # seconds
COOKIE_BYTES = 8
START_BYTES = 16
_MAX_SIGNALS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalBody(Message):
    """The signed part of a signal. `sender` and `to` are node ids of 32 bytes.

    `start` (16 bytes, the incarnation of the sender's daemon, of which a greater one is newer) and `sequence`
    together never come twice. `at` is unix seconds by the sender's clock, `life` the seconds for which it is
    valid. `cookie` is what the receiver is to send back as `echo`: that proves without any clock when a
    signal was made. An empty topic only delivers the cookie: the last signals came too late, or the clocks
    differ.
    """

    sender: Annotated[bytes, Size(PEER_BYTES), Name("from")]
    to: NodeId
    topic: Annotated[str, Text(MAX_TOPIC_BYTES)]
    start: Annotated[bytes, Size(START_BYTES)]
    sequence: Annotated[int, Between(0, _MAX_SIGNALS), Name("seq")]
    at: Annotated[int, Between(0, MAX_TIME)]
    life: Annotated[int, Between(1, MAX_LIFE)]
    cookie: Annotated[bytes, Size(COOKIE_BYTES)]
    echo: Annotated[bytes, Size(0, COOKIE_BYTES)]
    payload: Annotated[bytes, AtMost(MAX_PAYLOAD_BYTES), Name("data")]
    chain: Annotated[bytes, AtMost(MAX_CHAIN_BYTES)]

    @classmethod
    def decode(cls, data: bytes) -> "SignalBody":
        """Read the output of `encode`. Raises RemoteProtocolError (code `message`)."""
        return decode_as(cls, data, limit=MAX_SIGNAL_BYTES)
