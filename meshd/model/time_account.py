"""Account for the time of a token, or of a prompt: parts that add up to the measured whole.

The unexplained rest is a separate figure, and may be below zero, as parts that are not measured (paths, this
node's own layers) can be too long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class PartKind(StrEnum):
    """The use of the time."""

    QUEUE = "queue"
    COMPUTING = "computing"
    WAY = "way"
    WAITING = "waiting"
    SERVER = "llama-server"
    AT_ONCE = "at the same time"


class PartSource(StrEnum):
    """The source of a figure."""

    MEASURED = "measured"
    PATH = "path"  # from the round trip and rate of the path
    PREDICTED = "predicted"  # from the measured speed of the device
    SUM = "sum"  # derived from the others


@dataclass(frozen=True, slots=True)
class TimePart:
    """One part in seconds, below zero for what others count twice. `where`: a device, a path, a node."""

    kind: PartKind
    where: str
    seconds: float
    source: PartSource


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAccount:
    """The account of a token or a round: `seconds` = the sum of `parts` + `unexplained`.

    `tokens`: how many tokens this is the mean of. `rounds`: the rounds that made them, fewer than tokens if
    drafts were accepted. For a round it is the mean of the rounds, which made `tokens` together.
    """

    seconds: float
    tokens: int
    parts: tuple[TimePart, ...]
    unexplained: float
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class TokenRounds:
    """Tokens of an answer, the rounds that made them, and the tokens computed in these rounds.

    Without drafts all three are the same. A draft is computed with the token before it, accepted or not.
    """

    tokens: int
    rounds: int
    computed: int

    def part(self, most: int) -> "TokenRounds":
        """Return the share of the rounds that has at most `most` tokens."""
        if self.tokens <= most:
            return self
        share = most / self.tokens
        return TokenRounds(most, max(1, round(self.rounds * share)), max(1, round(self.computed * share)))


@dataclass(frozen=True, slots=True)
class WayTime:
    """The path from one node to the next: half a round trip, and the time of a token's bytes.

    `is_result`: a prompt transfers no more than a token. `ordered`: the path of the head's order to the
    worker at its end, which may arrive later than data from another worker; None if that is impossible.
    """

    where: str
    delay: float
    transfer: float
    is_result: bool = False
    ordered: float | None = None


@dataclass(frozen=True, slots=True)
class ComputingTime:
    """The computing time of a device; `measured` by its own daemon."""

    where: str
    seconds: float
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentTime:
    """The facts about a span in which the machines computed for this model alone. Seconds of the whole span.

    `away`: llama-server waited for workers; `held`: its bytes waited in its daemon. `own`: the predicted time
    of the head's layers; `workers`: in the order of the layers. `ways` are of one token.
    """

    seconds: float
    away: float
    held: float
    head: str
    own: tuple[ComputingTime, ...]
    workers: tuple[ComputingTime, ...]
    ways: tuple[WayTime, ...]


def token_account(spent: SpentTime, of: TokenRounds) -> TimeAccount:
    """Return the mean account of a token. Rounds are sequential, and each takes all paths with its tokens."""
    return _settled(spent.seconds, _round_parts(spent, of), of.tokens, of.tokens, of.rounds)


def round_account(spent: SpentTime, of: TokenRounds) -> TimeAccount:
    """Return the mean account of a round, which computes for all running answers."""
    return _settled(spent.seconds, _round_parts(spent, of), of.rounds, of.tokens, of.rounds)


def _round_parts(spent: SpentTime, of: TokenRounds) -> list[TimePart]:
    """Return the parts of all rounds together."""
    parts = [*_server(spent), *map(_computing, spent.workers)]
    parts += [_way(way, passes=of.computed, delays=of.rounds) for way in spent.ways]
    parts += [_order(where, seconds * of.rounds) for where, seconds in _late_orders(spent, of)]
    return parts + _held(spent, sum(way.transfer for way in spent.ways) * of.computed)


def prompt_account(spent: SpentTime, tokens: int, queue: float) -> TimeAccount:
    """Return the account of a whole prompt after `queue` seconds.

    Its micro batches use several devices at once.
    """
    parts = [*_server(spent), *map(_computing, spent.workers)]
    parts += [_way(way, passes=1 if way.is_result else tokens, delays=1) for way in spent.ways]
    parts += _held(spent, sum(way.transfer * (1 if way.is_result else tokens) for way in spent.ways))
    twice = sum(part.seconds for part in parts if part.kind is not PartKind.SERVER) - spent.away
    twice -= sum(part.seconds for part in _own(spent))
    if twice > 0 and spent.workers:
        parts.append(TimePart(PartKind.AT_ONCE, "devices and ways", -twice, PartSource.SUM))
    before = TimePart(PartKind.QUEUE, spent.head, max(0.0, queue), PartSource.MEASURED)
    return _settled(spent.seconds + before.seconds, [before, *parts])


def _own(spent: SpentTime) -> list[ComputingTime]:
    """Return the times of the head's devices, limited to the time that the head did not wait."""
    left = max(0.0, spent.seconds - spent.away)
    whole = sum(part.seconds for part in spent.own)
    share = min(1.0, left / whole) if whole > 0 else 0.0
    return [ComputingTime(part.where, part.seconds * share, part.measured) for part in spent.own]


def _server(spent: SpentTime) -> list[TimePart]:
    """Return what happens on the head while it waits for nobody."""
    own = _own(spent)
    rest = max(0.0, spent.seconds - spent.away) - sum(part.seconds for part in own)
    server = TimePart(PartKind.SERVER, spent.head, max(0.0, rest), PartSource.MEASURED)
    return [server, *map(_computing, own)]


def _computing(spent: ComputingTime) -> TimePart:
    source = PartSource.MEASURED if spent.measured else PartSource.PREDICTED
    return TimePart(PartKind.COMPUTING, spent.where, spent.seconds, source)


def _way(way: WayTime, *, passes: int, delays: int) -> TimePart:
    seconds = way.delay * delays + way.transfer * passes
    return TimePart(PartKind.WAY, way.where, seconds, PartSource.PATH)


def _late_orders(spent: SpentTime, of: TokenRounds) -> list[tuple[str, float]]:
    """Return the workers that have their data before the order to compute it; seconds per round."""
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
    return TimePart(PartKind.WAITING, f"{where} for its order", seconds, PartSource.PATH)


def _held(spent: SpentTime, transfer: float) -> list[TimePart]:
    """Return the wait in the daemon beyond the path's own time, in which bytes also wait there."""
    if not spent.ways:
        return []
    beyond = max(0.0, spent.held - transfer)
    where = f"daemon of {spent.head}"
    return [TimePart(PartKind.WAITING, where, beyond, PartSource.MEASURED)]


def _settled(
    seconds: float, parts: Sequence[TimePart], each: int = 1, tokens: int = 1, rounds: int = 1
) -> TimeAccount:
    """Divide the summed parts by `each`."""
    each = max(1, each)
    shares = tuple(TimePart(part.kind, part.where, part.seconds / each, part.source) for part in parts)
    whole = seconds / each
    return TimeAccount(
        seconds=whole,
        tokens=max(1, tokens),
        parts=shares,
        unexplained=whole - sum(part.seconds for part in shares),
        rounds=rounds,
    )
