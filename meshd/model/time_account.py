"""Where the time of a token, or of a prompt, went: parts that add up to the measured whole.

What no part explains is a figure of its own, and may be below zero, for parts that are not measured (paths,
this node's own layers) can be too long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class PartKind(StrEnum):
    """What the time was spent on."""

    QUEUE = "queue"
    COMPUTING = "computing"
    WAY = "way"
    WAITING = "waiting"
    SERVER = "llama-server"
    AT_ONCE = "at the same time"


class PartSource(StrEnum):
    """How it is known."""

    MEASURED = "measured"
    PATH = "path"  # from the path's round trip and rate
    PREDICTED = "predicted"  # from the measured speed of the device
    SUM = "sum"  # follows from the others


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart:
    """`where`: a device, a way, a node. Seconds; below zero for what others count twice."""

    kind: PartKind
    where: str
    seconds: float
    source: PartSource


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAccount:
    """`seconds` = the sum of `parts` + `unexplained`. `tokens`: over so many, whose mean this is.

    `rounds`: in which they were made, fewer than tokens where drafts were accepted. Of a round it is the mean
    of the rounds, which made `tokens` together.
    """

    seconds: float
    tokens: int
    parts: tuple[TimePart, ...]
    unexplained: float
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class TokenRounds:
    """Tokens of an answer, the rounds that made them, and the tokens that passed the devices in those.

    Without drafts all three are the same. A draft passes with the token before it, accepted or not.
    """

    tokens: int
    rounds: int
    computed: int

    def part(self, most: int) -> "TokenRounds":
        """The share of them that has at most so many tokens."""
        if self.tokens <= most:
            return self
        share = most / self.tokens
        return TokenRounds(most, max(1, round(self.rounds * share)), max(1, round(self.computed * share)))


@dataclass(frozen=True, slots=True)
class WayTime:
    """From one node to the next: half a round trip, and what the bytes of a token add to it.

    `is_result`: of a prompt no more crosses than of a token. `ordered`: the way of the head's order to the
    worker at its end, which may be there later than what another worker sends it; None where that cannot be.
    """

    where: str
    delay: float
    transfer: float
    is_result: bool = False
    ordered: float | None = None


@dataclass(frozen=True, slots=True)
class ComputingTime:
    """Of a device; `measured`: by its own daemon."""

    where: str
    seconds: float
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentTime:
    """What is known of a span in which the machines computed for this model alone. Seconds of the whole span.

    `away`: llama-server waited for workers; `held`: its bytes waited in its daemon. `own`: what the head's
    layers take, as predicted; `workers`: in the order of the layers. `ways` are of one token.
    """

    seconds: float
    away: float
    held: float
    head: str
    own: tuple[ComputingTime, ...]
    workers: tuple[ComputingTime, ...]
    ways: tuple[WayTime, ...]


def token_account(spent: SpentTime, of: TokenRounds) -> TimeAccount:
    """Of one of the tokens. Rounds follow one another, and each goes all the ways with what it computes."""
    return _settled(spent.seconds, _round_parts(spent, of), of.tokens, of.tokens, of.rounds)


def round_account(spent: SpentTime, of: TokenRounds) -> TimeAccount:
    """Of one of the rounds, each of which computes for all answers that run."""
    return _settled(spent.seconds, _round_parts(spent, of), of.rounds, of.tokens, of.rounds)


def _round_parts(spent: SpentTime, of: TokenRounds) -> list[TimePart]:
    """Of all rounds together."""
    parts = [*_server(spent), *map(_computing, spent.workers)]
    parts += [_way(way, passes=of.computed, delays=of.rounds) for way in spent.ways]
    parts += [_order(where, seconds * of.rounds) for where, seconds in _late_orders(spent, of)]
    return parts + _held(spent, sum(way.transfer for way in spent.ways) * of.computed)


def prompt_account(spent: SpentTime, tokens: int, queue: float) -> TimeAccount:
    """Of a whole prompt; `queue` came before it. Its micro batches are on different devices at once."""
    parts = [*_server(spent), *map(_computing, spent.workers)]
    parts += [_way(way, passes=1 if way.is_result else tokens, delays=1) for way in spent.ways]
    parts += _held(spent, sum(way.transfer * (1 if way.is_result else tokens) for way in spent.ways))
    twice = sum(part.seconds for part in parts if part.kind is not PartKind.SERVER) - spent.away
    twice -= sum(one.seconds for one in _own(spent))
    if twice > 0 and spent.workers:
        parts.append(
            TimePart(kind=PartKind.AT_ONCE, where="devices and ways", seconds=-twice, source=PartSource.SUM)
        )
    before = TimePart(
        kind=PartKind.QUEUE, where=spent.head, seconds=max(0.0, queue), source=PartSource.MEASURED
    )
    return _settled(spent.seconds + before.seconds, [before, *parts])


def _own(spent: SpentTime) -> list[ComputingTime]:
    """The head's devices, within the time that it did not wait."""
    left = max(0.0, spent.seconds - spent.away)
    whole = sum(one.seconds for one in spent.own)
    share = min(1.0, left / whole) if whole > 0 else 0.0
    return [ComputingTime(one.where, one.seconds * share, one.measured) for one in spent.own]


def _server(spent: SpentTime) -> list[TimePart]:
    """What happens on the head while it waits for nobody."""
    own = _own(spent)
    rest = max(0.0, spent.seconds - spent.away) - sum(one.seconds for one in own)
    server = TimePart(
        kind=PartKind.SERVER, where=spent.head, seconds=max(0.0, rest), source=PartSource.MEASURED
    )
    return [server, *map(_computing, own)]


def _computing(one: ComputingTime) -> TimePart:
    source = PartSource.MEASURED if one.measured else PartSource.PREDICTED
    return TimePart(kind=PartKind.COMPUTING, where=one.where, seconds=one.seconds, source=source)


def _way(way: WayTime, *, passes: int, delays: int) -> TimePart:
    seconds = way.delay * delays + way.transfer * passes
    return TimePart(kind=PartKind.WAY, where=way.where, seconds=seconds, source=PartSource.PATH)


def _late_orders(spent: SpentTime, of: TokenRounds) -> list[tuple[str, float]]:
    """Workers that have what they need of a round before they are told to compute it; seconds of one."""
    late: list[tuple[str, float]] = []
    done = 0.0
    for way, worker in zip(spent.ways, spent.workers, strict=False):
        done += way.delay + way.transfer * of.computed / of.rounds
        if way.ordered is not None and way.ordered > done:
            late.append((worker.where, way.ordered - done))
            done = way.ordered
        done += worker.seconds / of.rounds
    return late


def _order(where: str, seconds: float) -> TimePart:
    return TimePart(
        kind=PartKind.WAITING, where=f"{where} for its order", seconds=seconds, source=PartSource.PATH
    )


def _held(spent: SpentTime, transfer: float) -> list[TimePart]:
    """Bytes that wait for a path wait in the daemon as well: only what is beyond its time counts."""
    if not spent.ways:
        return []
    beyond = max(0.0, spent.held - transfer)
    where = f"daemon of {spent.head}"
    return [TimePart(kind=PartKind.WAITING, where=where, seconds=beyond, source=PartSource.MEASURED)]


def _settled(
    seconds: float, parts: Sequence[TimePart], each: int = 1, tokens: int = 1, rounds: int = 1
) -> TimeAccount:
    """The mean of `each` that the parts are the sums of."""
    each = max(1, each)
    shares = tuple(
        TimePart(kind=part.kind, where=part.where, seconds=part.seconds / each, source=part.source)
        for part in parts
    )
    whole = seconds / each
    return TimeAccount(
        seconds=whole,
        tokens=max(1, tokens),
        parts=shares,
        unexplained=whole - sum(part.seconds for part in shares),
        rounds=rounds,
    )
