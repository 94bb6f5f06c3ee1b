"""Sum up what many clients of several models got: errors, fairness, waits, the daemon's cost. Pure."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

MAX_SPREAD = 0.2  # between clients of one model: turns are fair
MAX_DAEMON_SHARE = 0.03  # of the CPU time
MAX_GROWTH = 10_000_000  # bytes, of the daemon's memory while as many clients ask as before


@dataclass(slots=True)
class ClientCount:
    """One client: what it got until time was up. `waits`: seconds of each answer until its first token."""

    model: str
    answers: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFigures:
    """`daemon_seconds` and `server_seconds`: CPU time of the head's daemon, and of its llama-servers.

    `memory`: bytes of the daemon, from the beginning to the end. `loads`: of models.
    """

    seconds: float
    clients: Sequence[ClientCount]
    daemon_seconds: float
    server_seconds: float
    memory: Sequence[int]
    loads: int

    @property
    def tokens(self) -> int:
        """The tokens of all."""
        return sum(client.tokens for client in self.clients)

    @property
    def errors(self) -> list[str]:
        """The errors of all."""
        return [error for client in self.clients for error in client.errors]

    @property
    def daemon_share(self) -> float:
        """The daemon's share of the CPU time of daemon and llama-servers together."""
        return self.daemon_seconds / max(1e-9, self.daemon_seconds + self.server_seconds)

    @property
    def growth(self) -> int:
        """Bytes from the second quarter to the last one, by their medians: the first is for what is kept."""
        quarter = len(self.memory) // 4
        if not quarter:
            return 0
        before, after = self.memory[quarter : 2 * quarter], self.memory[-quarter:]
        return int(statistics.median(after) - statistics.median(before))


def spread(counts: Sequence[int]) -> float:
    """Return how much less the last has than the first, as a share: 0 where all have the same."""
    return 1 - min(counts) / max(counts) if counts and max(counts) else 0.0


def complaints(figures: ClientFigures) -> Iterator[str]:
    """Return what must not be, a line each; none where all is well."""
    if figures.errors:
        yield f"{len(figures.errors)} errors"
    if not figures.tokens:
        yield "no client got a token"
    for model, clients in _by_model(figures).items():
        if (share := spread([client.tokens for client in clients])) > MAX_SPREAD:
            yield f"clients of {model} differ by {share:.0%}, more than {MAX_SPREAD:.0%}"
    if figures.daemon_share > MAX_DAEMON_SHARE:
        yield (
            f"the daemon took {figures.daemon_share:.1%} of the CPU time, more than {MAX_DAEMON_SHARE:.0%}"
        )
    if figures.growth > MAX_GROWTH:
        grown, most = figures.growth / 1e6, MAX_GROWTH / 1e6
        yield f"the daemon's memory grew by {grown:.1f} MB, more than {most:.0f} MB"


def lines(figures: ClientFigures) -> Iterator[str]:
    """As they are printed."""
    tokens = figures.tokens
    yield (
        f"{len(figures.clients)} clients, {figures.seconds:.0f} s: "
        f"{sum(client.answers for client in figures.clients)} answers, {tokens} tokens "
        f"({tokens / figures.seconds:.0f}/s), {figures.loads} loads, {len(figures.errors)} errors"
    )
    for model, clients in _by_model(figures).items():
        yield _of_model(model, clients)
    yield (
        f"daemon: {1e6 * figures.daemon_seconds / max(1, tokens):.0f} us of CPU time a token, "
        f"{figures.daemon_share:.1%} of that of daemon and llama-servers; memory "
        f"{figures.memory[-1] / 1e6:.1f} MB at the end, {figures.growth / 1e6:+.1f} MB since the 2nd quarter"
    )
    yield from (f"error: {error}" for error in dict.fromkeys(figures.errors))


def _by_model(figures: ClientFigures) -> Mapping[str, Sequence[ClientCount]]:
    names = dict.fromkeys(client.model for client in figures.clients)
    return {name: [client for client in figures.clients if client.model == name] for name in names}


def _of_model(name: str, clients: Sequence[ClientCount]) -> str:
    tokens = [client.tokens for client in clients]
    waits = sorted(wait for client in clients for wait in client.waits)
    waited = f"{statistics.median(waits):.1f} s, at most {waits[-1]:.1f}" if waits else "none came"
    return (
        f"{name}: {len(clients)} clients, {min(tokens)} to {max(tokens)} tokens each "
        f"(spread {spread(tokens):.0%}), first token after {waited}"
    )
