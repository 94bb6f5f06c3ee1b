"""Which dial starts when: pure. Everything that may work is raced, nothing waits for a failure."""

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.base.backoff import Backoff
from meshd.link.interface import LinkKind

# Seconds after the first dial of a round. TCP wins wherever it works, so it starts at once.
_DELAY = {LinkKind.TCP: 0.0, LinkKind.RELAY: 0.0, LinkKind.WEBRTC: 0.05, LinkKind.QUIC: 0.2}

RETRY = Backoff(first=0.2, factor=1.8, most=15.0)
# A peer that says no will most likely say it again: a ban, a full node, another version.
RETRY_REFUSED = Backoff(first=5.0, factor=2.0, most=120.0)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Dial with `kind`, `delay` seconds after the round began."""

    kind: LinkKind
    delay: float


def plan(kinds: Sequence[LinkKind]) -> tuple[Attempt, ...]:
    """The dials of one round, soonest first."""
    return tuple(sorted((Attempt(kind, _DELAY[kind]) for kind in kinds), key=lambda item: item.delay))


def retry_delay(*, failures: int, refused: bool, chance: float) -> float:
    """Seconds until the next round after `failures` rounds in a row; `chance` lies in [0, 1)."""
    rule = RETRY_REFUSED if refused else RETRY
    return rule.delay(max(0, failures - 1), chance)
