"""The body of a signal: a small message to a peer beside any link (offers, answers, times to begin).

Signed as a whole by its sender (identity/signal.py), so that nodes that pass it on can change nothing. The
payload belongs to the kind of link that `topic` names.
"""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_CHAIN_BYTES, MAX_TIME, PEER_BYTES
from meshd.wire.message import pack, unpack

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
class SignalBody:
    """What is signed. `sender` and `to` are node ids of 32 bytes.

    `start` (16 bytes, the incarnation of the sender's daemon, of which a greater one is newer) and `sequence`
    together never come twice. `at` is unix seconds by the sender's clock, `life` seconds that it is good for.
    `cookie` is what the receiver is to send back as `echo`: that proves without any clock when a signal was
    made. An empty topic only tells the cookie: the last signals came too late, or the clocks differ.
    """

    sender: bytes
    to: bytes
    topic: str
    start: bytes
    sequence: int
    at: int
    life: int
    cookie: bytes
    echo: bytes
    payload: bytes
    chain: bytes

    def encode(self) -> bytes:
        """The bytes to be signed."""
        return pack(
            {
                "from": self.sender,
                "to": self.to,
                "topic": self.topic,
                "start": self.start,
                "seq": self.sequence,
                "at": self.at,
                "life": self.life,
                "cookie": self.cookie,
                "echo": self.echo,
                "data": self.payload,
                "chain": self.chain,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> "SignalBody":
        """Read what `encode` gave. Raises RemoteProtocolError (code `message`)."""
        fields = unpack(data, limit=MAX_SIGNAL_BYTES)
        echo = fields.raw("echo", most=COOKIE_BYTES)
        if len(echo) not in (0, COOKIE_BYTES):
            raise RemoteProtocolError(f"field `echo` must be empty or {COOKIE_BYTES} bytes", code="message")
        return cls(
            sender=fields.raw("from", exact=PEER_BYTES),
            to=fields.raw("to", exact=PEER_BYTES),
            topic=fields.text("topic", most=MAX_TOPIC_BYTES),
            start=fields.raw("start", exact=START_BYTES),
            sequence=fields.number("seq", low=0, high=_MAX_SIGNALS),
            at=fields.number("at", low=0, high=MAX_TIME),
            life=fields.number("life", low=1, high=MAX_LIFE),
            cookie=fields.raw("cookie", exact=COOKIE_BYTES),
            echo=echo,
            payload=fields.raw("data", most=MAX_PAYLOAD_BYTES),
            chain=fields.raw("chain", most=MAX_CHAIN_BYTES),
        )
