"""Which link carries the data: pure. Facts and `now` in, a choice with its reason out.

Only the leader of a pair decides (mux/session.py tells the follower). The rules, in order: a link that
is heard from beats one that is silent; direct beats relayed; a cheaper kind beats a dearer one; within
a kind a newer link beats an older one only if the older has gone silent, else the present one stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.link.interface import LinkKind

SILENT_AFTER = 2.5  # seconds; one heartbeat of 1.5 s missed

# CPU cost first: TLS over TCP is ten times cheaper in Python than any UDP link (docs/protocol.md).
_COST = {LinkKind.TCP: 0, LinkKind.QUIC: 1, LinkKind.WEBRTC: 2, LinkKind.RELAY: 3}


@dataclass(frozen=True, slots=True)
class Path:
    """A link as choice sees it; times in loop seconds, `rtt` in seconds or None while unknown."""

    link_id: int
    kind: LinkKind
    rtt: float | None
    last_heard: float
    established_at: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The link that shall carry data, or None, and why."""

    link_id: int | None
    why: str


def choose(paths: Sequence[Path], current: int | None, now: float) -> Choice:
    """Pick the link for data among those attached."""
    if not paths:
        return Choice(None, "no link")

    def rank(path: Path) -> tuple[bool, int, bool, float]:
        silent = now - path.last_heard > SILENT_AFTER
        return silent, _COST[path.kind], path.link_id != current, -path.established_at

    best = min(paths, key=rank)
    if current is None or all(path.link_id != current for path in paths):
        return Choice(best.link_id, f"first {best.kind} link")
    if best.link_id == current:
        return Choice(current, "best known")
    old = next(path for path in paths if path.link_id == current)
    if now - old.last_heard > SILENT_AFTER:
        return Choice(
            best.link_id, f"{best.kind} replaces {old.kind} silent for {now - old.last_heard:.1f} s"
        )
    return Choice(best.link_id, f"{best.kind} replaces {old.kind}")


def surplus(paths: Sequence[Path], chosen: int | None) -> tuple[int, ...]:
    """Links to close: one of each kind is enough, the chosen one stays.

    A newer link waits until the one that is kept has been heard from since: after a change of addresses the
    old one may be dead without knowing it, and the newer one is what there is.
    """
    kept: dict[LinkKind, Path] = {}
    for path in paths:
        held = kept.get(path.kind)
        if (
            held is None
            or path.link_id == chosen
            or (held.link_id != chosen and path.established_at > held.established_at)
        ):
            kept[path.kind] = path
    return tuple(
        path.link_id
        for path in paths
        if (held := kept[path.kind]) is not path and held.last_heard > path.established_at
    )
