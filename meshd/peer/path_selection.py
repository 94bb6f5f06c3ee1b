"""Choose the link that carries data, and the links to close, from facts and `now`, with a reason. Pure.

Only the leader of a pair decides (mux/session.py tells the follower). The rules, in order:

1. A link that is heard in both directions beats a silent one: silence counts as the death of a path.
2. Direct beats relayed, TCP beats UDP: TLS over TCP costs a tenth of any UDP link in Python.
3. Within a rank, the link wins whose exchange takes less time: round trip, observed rate, CPU.
4. The link that carries data stays, unless it died, or is relayed and a direct one exists. Any other move
   is only for a gain: at most one in five minutes. A passing link (LinkInfo) gives way to any other.

A direct path that dies young is on probation when it returns: it stands by, is pinged in both directions, and
carries data after it has lived a while. So an unstable path does not drag the data to and fro.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.link.interface import KINDS, RELAYED, LinkKind, Rank

SILENT_AFTER = 2.5  # seconds; one missed heartbeat of 1.5 s
MOVE_PAUSE = 300.0  # seconds between two moves for a gain
SETTLED_AFTER = 5.0  # seconds in which all transports may appear before links of one rank are compared
STANDBY_FOR = 30.0  # seconds that useless links are kept after a move, which may have been a mistake
YOUNG = 60.0  # seconds; a direct path that dies younger was not a good one
PROBATION_FIRST = 5.0
PROBATION_MOST = 30.0  # a path that becomes possible again is used within a minute, including the dial
_GAIN = 0.7  # a move within a rank must bring the cost below this share of the old one
EXCHANGE_BYTES = 64 << 10  # an activation of a few tokens; the unit of the costs below
UNKNOWN_RTT = 0.2

PUNCHED = "punched"


@dataclass(frozen=True, slots=True)
class Path:
    """A link as path selection sees it; times in loop seconds, `rtt` in seconds or None while unknown.

    `last_heard` is when both directions were last shown to work. `rate` is the most that the link was seen to
    carry, in bytes per second, if known; `path` as in LinkInfo.
    """

    link_id: int
    kind: LinkKind
    rtt: float | None
    last_heard: float
    established_at: float
    path: str = "public"
    rate: float | None = None
    passing: bool = False

    @property
    def rank(self) -> Rank:
        """The rank: TCP first, relayed last but for links that end soon."""
        return Rank.PASSING if self.passing else rank_of(self.kind, self.path)

    def silent(self, now: float) -> bool:
        """Say whether the link has missed a heartbeat."""
        return now - self.last_heard > SILENT_AFTER

    def cost(self) -> float:
        """Return the seconds for an exchange of EXCHANGE_BYTES."""
        traits = KINDS[self.kind]
        rate = self.rate or traits.expected
        rtt = UNKNOWN_RTT if self.rtt is None else self.rtt
        return rtt + EXCHANGE_BYTES / rate + EXCHANGE_BYTES / traits.cpu

    @property
    def label(self) -> str:
        """The name in reasons: `tcp`, `punched tcp`, `relay`."""
        return (
            f"punched {self.kind}" if self.kind is LinkKind.TCP and self.path == PUNCHED else str(self.kind)
        )


def rank_of(kind: LinkKind, path: str) -> Rank:
    """Return the rank of a link of this kind and path (LinkInfo)."""
    return Rank.RELAYED if path == RELAYED else KINDS[kind].rank


def fragile(kind: LinkKind, path: str) -> bool:
    """Say whether a router may end this direct path at any time, so that a relay should stand by."""
    return rank_of(kind, path) is Rank.UDP or path == PUNCHED


@dataclass(frozen=True, slots=True)
class Choice:
    """The link that shall carry data, or None, and the reason."""

    link_id: int | None
    why: str


class Chooser:
    """Choose for one peer, with the memory that the rules need. Ask at each change, and each second."""

    def __init__(self) -> None:
        self._carrying: Path | None = None
        self.since = 0.0  # when this link began to carry data
        self._linked_at: float | None = None  # when the first of the present links came
        self._gained_at: float | None = None  # when the last move for a gain was
        self._probation = 0.0  # seconds that a direct link must first stand by without a silence
        self._heard_since: dict[int, float] = {}

    def choose(self, paths: Sequence[Path], current: int | None, now: float) -> Choice:
        """Pick the link for data among those attached; `current` is the one that carries it now, if any."""
        # What happened since the last choice.
        carrying = next((path for path in paths if path.link_id == current), None)
        ended = self._notice(paths, carrying, now)
        if not paths:
            return Choice(None, "no link")
        lively = [path for path in paths if not path.silent(now)]
        best = min(lively or paths, key=_preference)
        # No link carries data, or it died.
        if carrying is None:
            why = (
                f"first {best.label} link" if ended is None else f"{best.label} is left, {ended.label} ended"
            )
            return self._take(best, why, now)
        if not lively:
            return Choice(carrying.link_id, "all links are silent")
        if carrying.silent(now):
            self._died(carrying, now)
            quiet = now - carrying.last_heard
            return self._take(best, f"{best.label} replaces {carrying.label} silent for {quiet:.1f} s", now)
        # A better link may replace the one that carries data.
        if best.rank < carrying.rank:
            return self._higher(best, carrying, lively, now)
        if best.link_id != carrying.link_id and self._saves(best, carrying, now):
            self._gained_at = now
            what = f"{carrying.cost() * 1000:.0f} to {best.cost() * 1000:.0f} ms an exchange"
            return self._take(best, f"{best.label} replaces {carrying.label}: from {what}", now)
        return Choice(carrying.link_id, _left(carrying, ended) if ended else "best known")

    def _higher(self, best: Path, carrying: Path, lively: Sequence[Path], now: float) -> Choice:
        """Decide whether `best`, of a better rank, replaces the link that carries data."""
        if carrying.rank >= Rank.RELAYED:
            direct = [path for path in lively if path.rank < carrying.rank and self._proved(path, now)]
            if not direct:
                return Choice(carrying.link_id, f"{best.label} is on probation for {self._probation:.0f} s")
            best = min(direct, key=_preference)
        elif not self._may_gain(now):
            return Choice(carrying.link_id, f"{best.label} waits: the last switch was a moment ago")
        elif not self._proved(best, now):
            return Choice(carrying.link_id, f"{best.label} is on probation for {self._probation:.0f} s")
        else:
            self._gained_at = now
        return self._take(best, f"{best.label} replaces {carrying.label}", now)

    def _proved(self, path: Path, now: float) -> bool:
        return now - self._heard_since.get(path.link_id, now) >= self._probation

    def _may_gain(self, now: float) -> bool:
        return self._gained_at is None or now - self._gained_at >= MOVE_PAUSE

    def _saves(self, best: Path, carrying: Path, now: float) -> bool:
        if best.rank != carrying.rank or best.rtt is None or carrying.rtt is None:
            return False
        settled = self._linked_at is not None and now - self._linked_at >= SETTLED_AFTER
        return settled and self._may_gain(now) and best.cost() < _GAIN * carrying.cost()

    def _take(self, path: Path, why: str, now: float) -> Choice:
        self._carrying, self.since = path, now
        return Choice(path.link_id, why)

    def _notice(self, paths: Sequence[Path], carrying: Path | None, now: float) -> Path | None:
        """Note what happened since the last choice. Return the link that carried data, if it is gone."""
        heard = self._heard_since
        self._heard_since = {p.link_id: heard.get(p.link_id, now) for p in paths if not p.silent(now)}
        if not paths:
            self._linked_at = None
        elif self._linked_at is None:
            self._linked_at = now
        before, ended = self._carrying, None
        if before is not None and all(path.link_id != before.link_id for path in paths):
            self._died(before, now)
            ended, self._carrying, before = before, None, None
        if carrying is not None and (before is None or before.link_id != carrying.link_id):
            self._carrying, self.since = carrying, now
        if before is not None and before.rank < Rank.RELAYED and now - self.since >= MOVE_PAUSE:
            self._probation = 0.0  # the path has held long enough to be forgiven
        return ended

    def _died(self, path: Path, now: float) -> None:
        if path.rank < Rank.RELAYED and now - self.since < YOUNG:
            self._probation = min(max(PROBATION_FIRST, 2 * self._probation), PROBATION_MOST)


def _left(path: Path, ended: Path) -> str:
    return f"{path.label} is left, {ended.label} ended"


def _preference(path: Path) -> tuple[Rank, float, float]:
    return path.rank, path.cost(), -path.established_at


def surplus(paths: Sequence[Path], chosen: int | None, *, since: float, now: float) -> tuple[int, ...]:
    """Return the links to close. The chosen one, which has carried data since `since`, stays.

    One link of each kind is enough, and behind a link that carries data well only useful ones: a relay behind
    a link that a router may end, everything behind a relayed one. A newer link waits until the one that makes
    it needless has been heard since: after a change of addresses the older one may be dead and not know it,
    and the newer one is all there is. A passing link goes as soon as another carries data: its waiting data
    continues there.
    """
    # The best link of each kind.
    kept: dict[LinkKind, Path] = {}
    for path in (path for path in paths if not path.passing):
        held = kept.get(path.kind)
        if (
            held is None
            or path.link_id == chosen
            or (held.link_id != chosen and path.established_at > held.established_at)
        ):
            kept[path.kind] = path
    # Close the rest, and what is of no use behind the link that carries data.
    carrier = next((path for path in paths if path.link_id == chosen), None)
    settled = carrier is not None and not carrier.silent(now) and now - since >= STANDBY_FOR

    def closes(path: Path) -> bool:
        if path.passing:
            return carrier is not None and not carrier.passing
        held = kept[path.kind]
        if held is not path:
            return held.last_heard > path.established_at
        if carrier is None or path is carrier or not settled or carrier.last_heard <= path.established_at:
            return False
        return not worth_standing_by(path.kind, path.path, carrier=carrier.kind, carrier_path=carrier.path)

    return tuple(path.link_id for path in paths if closes(path))


def worth_standing_by(kind: LinkKind, path: str, *, carrier: LinkKind, carrier_path: str) -> bool:
    """Say whether a link of this kind and path is of use behind the one that carries data."""
    rank, above = rank_of(kind, path), rank_of(carrier, carrier_path)
    if above is Rank.RELAYED or rank < above:
        return True  # the next to carry data
    return rank is Rank.RELAYED and fragile(carrier, carrier_path)
