"""Remember what failed in the runs of one model: workers, pairs of them, their devices, llama-server. Pure.

A worker that fails while a model is loaded over it gets a second try; then it is left out, so that one bad
worker never keeps the others from serving. Its time out ends by itself. Once it ends as well when the worker
reconnects, for somebody may have mended it.

A worker that ends its leases soon after the load, again and again, is left out too, and so is one that the
head has given up because it did not answer: but only where enough others are there (worker_choice.py). No
reconnect changes that. Two of which one has ended a lease, and nobody knows which, count as if both had; and
for an hour they do not push to each other (leases.py), which makes the next end certain.

A device whose server crashed in the load may have had bad luck once, and is left out after the worker's
second crash, until the worker's native part or its devices are others: nothing else makes another device of
it. What its devices are is the worker's own word, so its crashes are counted on across such a change: then
one more is enough.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from meshd.base.backoff import Backoff
from meshd.base.peer_limits import APART, EARLY_ENDS, MARKED
from meshd.identity.keys import PeerId
from meshd.model.status import SplitPart
from meshd.peer.interface import PeerStatus
from meshd.plan.machines import IN_DOUBT, INDIRECT
from meshd.process.interface import ChildState, ChildStatus
from meshd.wire.lease import WorkerOffer
from meshd.wire.versions import NativeVersion

TRIES = 2
FIRST_SECONDS = 30.0
MOST_SECONDS = 600.0
STEADY_SECONDS = 300.0  # a lease that lived so long after the load was of use
ENDS = EARLY_ENDS.most + 1
FIRST_END_SECONDS = 60.0
MOST_END_SECONDS = 3600.0
APART_SECONDS = 3600.0  # of two workers: a cable may be back, and who sends what is wrong does so again
MOST_DOUBLINGS = 8
SERVER_TRIES = 3  # of llama-server with one split: then it is not chance
SERVER_TRIES_ANY = 6  # with whatever split: free memory, and so the split, may be another each time
SERVER_RETRY = Backoff(first=30.0, factor=2.0, most=600.0)
_CRASHES = 2
# llama.cpp's parser of options ends its output so (common/arg.cpp); other errors begin with a function's name
_REFUSED_OPTION = re.compile(
    r"error(?:: (?=--|argument|invalid|Invalid|unknown value|failed to open file|the supplied)"
    r"| while handling (?=argument|environment variable))(.+)"
)


# Workers.


@dataclass(frozen=True, slots=True)
class Mark:
    """Hold how often a worker has failed in a row, until when it is left out (loop time), and why.

    For failures before the load only: `since`, when its connection began; `forgiven`: failures before that
    were forgotten because it had reconnected.
    """

    count: int
    until: float
    text: str
    since: float = 0.0
    forgiven: bool = False


class WorkerBackoff:
    """Leave workers out for a while, for what they have done; by key."""

    def __init__(self) -> None:
        self._failures: dict[PeerId, Mark] = {}
        self._ends: dict[PeerId, Mark] = {}
        # Until when, in loop time.
        self._apart: dict[frozenset[PeerId], float] = {}
        self._no_sums: dict[frozenset[PeerId], float] = {}

    def failed(self, worker: PeerStatus, why: str, now: float) -> None:
        """Note that a load failed because of this worker."""
        mark, before = self._of(worker), self._failures.get(worker.peer)
        count = 1 + (mark.count if mark is not None else 0)
        seconds = _doubled(FIRST_SECONDS, count - TRIES, MOST_SECONDS)
        text = f"worker {worker.name} is left out for {seconds:.0f} s after {count} tries: {why}"
        forgiven = before is not None and (before.forgiven or mark is None)
        _remember(
            self._failures, worker.peer, Mark(count, now + seconds, text, worker.since, forgiven=forgiven)
        )

    def worked(self, peers: Iterable[PeerId]) -> None:
        """Note that a load succeeded with these."""
        for peer in peers:
            self._failures.pop(peer, None)

    def exclusion_reason(self, worker: PeerStatus, now: float) -> str | None:
        """Return why this worker is left out now, or None."""
        mark = self._of(worker)
        return mark.text if mark is not None and now < mark.until else None

    def next_try(self, workers: Iterable[PeerStatus], now: float) -> float | None:
        """Return when the first of these that are left out may be tried again, in loop time."""
        marks = [mark for worker in workers if (mark := self._of(worker)) is not None and now < mark.until]
        return min((mark.until for mark in marks), default=None)

    def _of(self, worker: PeerStatus) -> Mark | None:
        """Return its failures; a reconnect ends them, the first time."""
        mark = self._failures.get(worker.peer)
        return mark if mark is not None and (mark.forgiven or mark.since == worker.since) else None

    def ended(
        self, worker: PeerStatus, why: str, now: float, *, lasted: float, in_doubt: bool = False
    ) -> None:
        """Note that its lease ended by its doing, or in doubt, `lasted` seconds after the load; 0 before."""
        if lasted >= STEADY_SECONDS:
            self._ends.pop(worker.peer, None)
            return
        count = 1 + self.ends(worker.peer)
        who = "it, or a worker that it exchanges activations with," if in_doubt else "it"
        why = f"{who} failed {count} times soon after loading, the last because {why}"
        self._leave_out(worker, count, why, now)

    def hung(self, worker: PeerStatus, why: str, now: float) -> None:
        """Note that the head gave it up: once is enough, for that took long."""
        self._leave_out(worker, max(ENDS, 1 + self.ends(worker.peer)), why, now)

    def served(self, peer: PeerId) -> None:
        """Note that it was of use for long: ends before that are not in a row with later ones."""
        self._ends.pop(peer, None)

    def ends(self, peer: PeerId) -> int:
        """Count its leases in a row that have ended too soon."""
        return self._ends[peer].count if peer in self._ends else 0

    def _leave_out(self, worker: PeerStatus, count: int, why: str, now: float) -> None:
        seconds = _doubled(FIRST_END_SECONDS, count - ENDS, MOST_END_SECONDS)
        text = f"worker {worker.name} is left out for {seconds:.0f} s: {why}"
        _remember(self._ends, worker.peer, Mark(count, now + seconds, text))

    def unsteady(self, peer: PeerId, now: float) -> str | None:
        """Return why it is better done without now, or None."""
        mark = self._ends.get(peer)
        return mark.text if mark is not None and now < mark.until else None

    def part(self, first: PeerId, other: PeerId, now: float) -> None:
        """Keep these two from pushing to each other for a while."""
        _remember_pair(self._apart, first, other, now)

    def keep_from_sums(self, first: PeerId, other: PeerId, now: float) -> None:
        """Keep these two from computing together for a while: they have no connection past both daemons."""
        _remember_pair(self._no_sums, first, other, now)

    def are_apart(self, first: PeerId, other: PeerId, now: float) -> bool:
        """Return True if these two are kept apart."""
        return now < self._apart.get(frozenset((first, other)), now)

    def apart(self, names: Mapping[PeerId, str], now: float) -> dict[frozenset[str], str]:
        """Return the pairs that may not compute together, as the workers are named here, and why."""
        reasons = {
            pair: why
            for pairs, why in ((self._no_sums, INDIRECT), (self._apart, IN_DOUBT))
            for pair, until in pairs.items()
            if now < until
        }
        pairs = {pair: why for pair, why in reasons.items() if pair <= names.keys()}
        return {frozenset(names[peer] for peer in pair): why for pair, why in pairs.items()}


def _doubled(first: float, times: int, most: float) -> float:
    """Double `first` so many times; nothing before it begins."""
    return min(most, first * 2.0 ** min(times, MOST_DOUBLINGS)) if times >= 0 else 0.0


def _remember_pair(pairs: dict[frozenset[PeerId], float], first: PeerId, other: PeerId, now: float) -> None:
    pair = frozenset((first, other))
    pairs.pop(pair, None)
    pairs[pair] = now + APART_SECONDS
    if len(pairs) > APART.most:
        del pairs[next(iter(pairs))]


def _remember(marks: dict[PeerId, Mark], peer: PeerId, mark: Mark) -> None:
    marks.pop(peer, None)
    marks[peer] = mark
    if len(marks) > MARKED.most:
        del marks[next(iter(marks))]


class Blame:
    """Remember whose doing the end of one run was: filled while it lives, told to the back-off at its end."""

    def __init__(self) -> None:
        self.failed: dict[PeerId, str] = {}
        """Before the model was loaded."""
        self.loaded_at: float | None = None
        self._left: dict[PeerId, str] = {}
        self._given_up: dict[PeerId, str] = {}
        self._in_doubt: dict[PeerId, str] = {}
        self._pairs: list[tuple[PeerId, PeerId]] = []

    @property
    def anybody(self) -> bool:
        """Return True if a worker is to blame."""
        return bool(self.failed or self._left or self._given_up or self._in_doubt)

    def ended(self, peer: PeerId, why: str, others: Collection[PeerId] = ()) -> None:
        """Blame a worker whose lease or connection ended first; `others` may have made it end.

        A mesh-server ends when a push fails, or when it cannot compute with a value that it has: any of them
        may be at fault, and nobody can tell who. They do not push to each other for a while: what goes
        through the head is looked at there, so the next time it is certain.
        """
        if not others:
            blamed = self.failed if self.loaded_at is None else self._left
            blamed[peer] = why
            return
        for other in (peer, *others):
            self.doubt(other, why)
        self._pairs += combinations((peer, *others), 2)

    def doubt(self, peer: PeerId, why: str) -> None:
        """Note that it may have been this one."""
        self._in_doubt[peer] = why

    def given_up(self, peer: PeerId, why: str) -> None:
        """Note that the head does not wait for this one any more."""
        self._given_up[peer] = why

    def tell(
        self, backoff: WorkerBackoff, workers: Iterable[PeerStatus], used: Collection[PeerId], now: float
    ) -> list[PeerStatus]:
        """Tell the back-off, which leaves workers out of later runs; return those that were at fault.

        `used`: those that took part. For them, a long run without blame ends the row of early ends.
        """
        for first, other in self._pairs:
            backoff.part(first, other, now)
        lasted = now - self.loaded_at if self.loaded_at is not None else 0.0
        at_fault = []
        for worker in workers:
            peer = worker.peer
            if peer in self.failed:
                backoff.failed(worker, self.failed[peer], now)
            if peer in self._given_up:
                backoff.hung(worker, self._given_up[peer], now)
            elif peer in self._left:
                backoff.ended(worker, self._left[peer], now, lasted=lasted)
            elif peer in self._in_doubt:
                backoff.ended(worker, self._in_doubt[peer], now, lasted=lasted, in_doubt=True)
            else:
                if peer in used and lasted >= STEADY_SECONDS:
                    backoff.served(peer)
                continue
            at_fault.append(worker)
        return at_fault


# Devices of workers.


class DeviceExclusions:
    """Remember which devices of workers cannot run this model, and why."""

    def __init__(self) -> None:
        self._equipment: dict[PeerId, tuple[object, ...]] = {}  # all of a worker's devices but what is free
        self._out: dict[PeerId, dict[str, str]] = {}
        self._crashes: dict[PeerId, int] = {}  # since the last load that it was of use for

    def offered(self, peer: PeerId, native: NativeVersion | None, offer: WorkerOffer) -> Mapping[str, str]:
        """Return the devices of this offer that are left out, by name, each with the reason.

        What the worker itself says of them (Offer.unfit) holds for this offer alone.
        """
        devices = (
            (offered.name, offered.kind, offered.description, offered.total_bytes)
            for offered in offer.devices
        )
        equipment = (native, *devices)
        if self._equipment.get(peer) != equipment:  # new, or another machine now
            self._equipment[peer] = equipment
            self._out[peer] = {}
        unfit = {device.name: why for device, why in zip(offer.devices, offer.unfit, strict=False) if why}
        return unfit | self._out[peer]

    def crashed(self, peer: PeerId, devices: Iterable[str], why: str) -> None:
        """Note that the server with these devices ended by its own fault before the model was loaded."""
        crashes = self._crashes[peer] = self._crashes.get(peer, 0) + 1
        if crashes >= _CRASHES:
            text = f"its server crashed {crashes} times while the model was loaded ({why})"
            self._out[peer].update(dict.fromkeys(devices, text))

    def worked(self, peers: Iterable[PeerId]) -> None:
        """Note that the model is loaded with these: what is left in had bad luck before."""
        for peer in peers:
            self._crashes.pop(peer, None)


# llama-server.


@dataclass(frozen=True, slots=True)
class ServerDied:
    """Tell how llama-server ended, or made no token, before it was ready: its split, and its last lines."""

    name: str
    split: tuple[SplitPart, ...]
    tail: tuple[str, ...]


class ServerFailures:
    """Count the failures of llama-server before it was ready: whether they are chance, and what to say."""

    def __init__(self) -> None:
        self.restarts = 0
        """Those that nobody asked for."""
        self.why_restarted = ""
        """The last restart; empty if that one was asked for."""
        self.in_row = 0
        self._same = 0  # of them, the last with one split
        self._died: ServerDied | None = None

    def was_ready(self) -> None:
        """Note that a run has made a token."""
        self.in_row, self._same, self._died = 0, 0, None

    def died(self, how: ServerDied) -> None:
        """Note that a run has ended by it before that."""
        same = self._died is not None and self._died.split == how.split
        self.in_row += 1
        self._same = self._same + 1 if same else 1
        self._died = how

    def is_no_chance(self, *, spares: bool) -> bool:
        """Return True if it is not chance. `spares`: the next run leaves a worker out, perhaps the reason."""
        if self._refused_option:
            return True
        return (self._same >= SERVER_TRIES and not spares) or self.in_row >= SERVER_TRIES_ANY

    def what_to_say(self, why: str, llama_args: Sequence[str]) -> tuple[str, str]:
        """Return what is wrong, and what to do next; `why` is how it ended."""
        hint = "run `meshd logs llama-server` for the full log"
        if llama_args:
            hint = f"check the arguments after `--`: `{' '.join(llama_args)}`"
        return self._refused_option or f"{self.in_row} times in a row: {why}", hint

    @property
    def _refused_option(self) -> str:
        return refused_option(self._died.tail) if self._died is not None else ""

    @property
    def delay(self) -> float:
        """Return the seconds until it is worth another try."""
        return SERVER_RETRY.delay(max(0, self.in_row - SERVER_TRIES), 0.0)

    @property
    def failed_child(self) -> ChildStatus | None:
        """Return its status while it is not started."""
        if self._died is None:
            return None
        return ChildStatus(
            name=self._died.name,
            state=ChildState.FAILED,
            restarts=max(0, self.restarts - 1),
            reason=f"ended {self.in_row} times in a row before it was ready",
            tail=self._died.tail,
        )

    def as_one(self, child: ChildStatus) -> ChildStatus:
        """Show the llama-servers of all runs as one that is restarted."""
        again = self.why_restarted and child.is_up
        reason = f"the last time because {self.why_restarted}" if again else child.reason
        return replace(child, restarts=self.restarts, reason=reason)


def refused_option(tail: Sequence[str]) -> str:
    """Return llama-server's own words, or "" if its options are not the cause."""
    found = (_REFUSED_OPTION.match(line.strip()) for line in tail)
    return next((f"llama-server refuses its options: {match[1]}" for match in found if match is not None), "")
