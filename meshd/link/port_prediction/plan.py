"""Which side opens many ports and which one tries them, in what order, and when enough is enough. Pure.

A NAT that gives each flow another port (symmetric) cannot be told in advance where its other side will be
seen, and a NAT that filters by address and port lets nobody in whom it was not told. Two ways through:

- Some NATs count: the next flow gets the next port. Then a handful of tries does.
- With n of 64512 ports open, a port tried at random is one of them with n/64512: of 256, half of all searches
  end within 174 tries and 98 % within 985 (the birthday problem). It does not matter which ports are tried,
  so those near a port that was seen come first: carriers give each customer a block of ports (RFC 7422).

Searches are bounded in ports and in number: each is a burst of small datagrams to one address, which looks
like a port scan.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from meshd.base.backoff import Backoff
from meshd.base.peer_limits import PROBES, SEARCHES_KNOWN
from meshd.identity.keys import PeerId
from meshd.wire.netfacts import Filtering, Mapping, NetFacts, Ports, Udp
from meshd.wire.signal import MAX_OPEN, OpenedPorts

FIRST_PORT, LAST_PORT = 1024, 65535  # where NATs take their ports from
OPEN_COUNTING = 16  # ports in a row, for a NAT that counts
PROBES_A_SECOND = PROBES.per_second
MOST_PROBES = int(PROBES.burst)  # 99.96 % of searches with 256 open ports have ended
GUESSES = 64  # ports after the last one that was seen, for a NAT that counts
NEAR = 512  # ports on either side of the one that was seen: the usual blocks have 512 to 4096
REPEATED_GUESSES = 2  # a guess is tried again: the port may have been opened after the first try

_RETRY = Backoff(first=60.0, factor=3.0, most=3600.0)
# For nodes that ask us: a little sooner than an honest one asks again.
GRANT_AGAIN = Backoff(first=45.0, factor=3.0, most=2700.0)


class Part(StrEnum):
    """The part of a side in a search."""

    OPENS = "opens"
    PROBES = "probes"


def part(mine: NetFacts, theirs: NetFacts) -> Part | None:
    """Return this side's part for a pair in these networks; None where a search would be useless."""
    if mine.udp is not Udp.WORKS or theirs.udp is not Udp.WORKS:
        return None
    if mine.public_v4 and mine.public_v4 == theirs.public_v4:
        return None  # behind one NAT
    if mine.symmetric and _one_port_that_filters(theirs):
        return Part.OPENS
    if theirs.symmetric and _one_port_that_filters(mine):
        return Part.PROBES
    return None


def _one_port_that_filters(facts: NetFacts) -> bool:
    """Return True if simple punching does not reach it: it reaches everything that filters less."""
    filters = facts.filtering in (Filtering.ADDRESS_PORT, Filtering.UNKNOWN)
    return facts.mapping is Mapping.INDEPENDENT and filters


def ports_to_open(facts: NetFacts) -> tuple[int, int]:
    """Return how many ports to open, and the step between them (0: random)."""
    if facts.ports is Ports.COUNTING and facts.udp_step:
        return OPEN_COUNTING, facts.udp_step
    return MAX_OPEN, 0


def ports_to_try(opened: OpenedPorts, seed: int) -> Iterator[int]:
    """Yield the ports to try: guesses first where the NAT counts, then those near the seen one, then all
    others.

    At most MOST_PROBES. `seed` is any number; each search takes another.
    """
    guesses = list(_guesses(opened)) if opened.step else []
    yield from guesses * REPEATED_GUESSES
    left = MOST_PROBES - len(guesses) * REPEATED_GUESSES
    known = set(guesses)
    near = range(max(FIRST_PORT, opened.seen.port - NEAR), min(LAST_PORT + 1, opened.seen.port + NEAR))
    for ports in (near, range(FIRST_PORT, LAST_PORT + 1)):
        for port in _shuffled(ports, seed):
            if port in known:
                continue
            if left <= 0:
                return
            yield port
            left -= 1
        known.update(near)


def _guesses(opened: OpenedPorts) -> Iterator[int]:
    for number in range(1, GUESSES + 1):
        port = opened.seen.port + opened.step * number
        if FIRST_PORT <= port <= LAST_PORT:
            yield port


def _shuffled(ports: range, seed: int) -> Iterator[int]:
    """Yield each port once: a stride coprime to their number visits all of them."""
    count = len(ports)
    if not count:
        return
    stride = seed // count % count
    while math.gcd(stride, count) != 1:
        stride += 1
    at = seed % count
    for _ in range(count):
        yield ports[at]
        at = (at + stride) % count


def due(elapsed: float) -> int:
    """Return how many probes may have been sent `elapsed` seconds after the first."""
    return min(MOST_PROBES, int(elapsed * PROBES_A_SECOND) + 1)


@dataclass(slots=True)
class _TriedPort:
    failures: int
    until: float


class Patience:
    """After a search that found nothing its peer (or address) is left alone for a while; longer each time."""

    def __init__(self, again: Backoff = _RETRY) -> None:
        self._again = again
        self._tried: dict[PeerId | str, _TriedPort] = {}

    def wait(self, peer: PeerId | str, now: float) -> float:
        """Return the seconds until the next search is due; 0 when it is."""
        tried = self._tried.get(peer)
        return max(0.0, tried.until - now) if tried is not None else 0.0

    def failed(self, peer: PeerId | str, now: float) -> None:
        """Record that a search has found nothing."""
        tried = self._tried.pop(peer, None) or _TriedPort(0, now)
        tried.until = now + self._again.delay(tried.failures, 0.5)
        tried.failures += 1
        while len(self._tried) >= SEARCHES_KNOWN.most:
            del self._tried[next(iter(self._tried))]
        self._tried[peer] = tried

    def forget(self, peer: PeerId | str | None = None) -> None:
        """Forget failures: it worked, or (without a peer) the network is another one."""
        if peer is None:
            self._tried.clear()
        else:
            self._tried.pop(peer, None)
