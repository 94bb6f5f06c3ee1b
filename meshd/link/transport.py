"""The transports: one row for each by which a link is made, and one for each kind that results. Pure.

A *kind* names what carries a link; status and settings use it. A *transport* is how this node makes a link;
several make links of one kind, as plain and punched TCP do. To add one, add its name and its row here. The
diallers (link/*), their schedule and the reasons that people read (peer/dial_schedule.py) look it up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from meshd.wire.address import Proto


class LinkKind(StrEnum):
    """The carrier of the bytes."""

    TCP = "tcp"
    WEBRTC = "webrtc"
    QUIC = "quic"
    RELAY = "relay"


class Transport(StrEnum):
    """The way in which a link is made; those that need no other node come first."""

    TCP = "tcp"
    TCP_PUNCH = "tcp-punch"
    QUIC = "quic"
    QUIC_ICE = "quic-ice"
    QUIC_PORT_PREDICTION = "quic-port-prediction"
    WEBRTC = "webrtc"
    RELAY = "relay"
    MEMBER_RELAY = "member-relay"


class Rank(IntEnum):
    """The order of links before anything is measured (peer/path_selection.py)."""

    TCP = 0
    UDP = 1
    RELAYED = 2
    PASSING = 3  # no kind has it: a link that ends soon by itself


@dataclass(frozen=True, slots=True)
class KindTraits:
    """The traits of a link. In bytes a second, `cpu` is what the processor can do (docs/lab/benchmarks.md),
    `expected` what a path carries before it is measured.
    """

    rank: Rank
    cpu: float
    expected: float


@dataclass(frozen=True, slots=True)
class TransportTraits:
    """The dialling and the name of a transport.

    `words`: in sentences for people. `delay`: seconds after a race begins. `needs_signals`: both sides begin
    it together, told by signals. `proto`: it dials the peer's addresses of this protocol. `spare_to`: another
    one that most likely finds the same path.
    """

    kind: LinkKind
    words: str
    delay: float
    needs_signals: bool = False
    proto: Proto | None = None
    spare_to: Transport | None = None


KINDS: Mapping[LinkKind, KindTraits] = {
    LinkKind.TCP: KindTraits(Rank.TCP, cpu=160e6, expected=50e6),
    LinkKind.QUIC: KindTraits(Rank.UDP, cpu=20e6, expected=10e6),
    LinkKind.WEBRTC: KindTraits(Rank.UDP, cpu=19e6, expected=10e6),
    LinkKind.RELAY: KindTraits(Rank.RELAYED, cpu=60e6, expected=5e6),
}

# TCP wins wherever it works, and the UDP kinds load heavy libraries: they begin when a near peer would have
# answered. What needs signals first begins while the plain dial runs.
TRANSPORTS: Mapping[Transport, TransportTraits] = {
    Transport.TCP: TransportTraits(LinkKind.TCP, "tcp", delay=0.0, proto="tcp"),
    Transport.TCP_PUNCH: TransportTraits(LinkKind.TCP, "punched tcp", delay=0.1, needs_signals=True),
    Transport.QUIC: TransportTraits(LinkKind.QUIC, "quic", delay=0.2, proto="udp"),
    Transport.QUIC_ICE: TransportTraits(
        LinkKind.QUIC, "quic over ice", delay=0.3, needs_signals=True, spare_to=Transport.WEBRTC
    ),
    Transport.QUIC_PORT_PREDICTION: TransportTraits(
        LinkKind.QUIC, "quic by port search", delay=0.3, needs_signals=True
    ),
    Transport.WEBRTC: TransportTraits(LinkKind.WEBRTC, "webrtc", delay=0.15, needs_signals=True),
    Transport.RELAY: TransportTraits(LinkKind.RELAY, "relay", delay=0.0),
    Transport.MEMBER_RELAY: TransportTraits(LinkKind.RELAY, "a relaying member", delay=0.1),
}
