"""How long a head waits for a worker that owes it an answer.

A worker watches its rpc-server itself (hang_detector.py), and knows more of it: its CPU time, what it reads.
This is for one that does not say what it sees. The head sees requests and answers alone, so it is slower to
judge: a worker that means well has spoken before. See docs/decisions/0032-losses.md.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshd.identity.keys import PeerId
from meshd.rpc.device_check import DeviceCheck
from meshd.rpc.hang_detector import LOOK_SECONDS, TIMES_LONGEST
from meshd.rpc.pending_work import Arrived, Debt, Owed

LEAST_STEP_SECONDS = (
    60.0  # for a step like those before: a worker that sees its server hang says so within 30
)
MOST_STEP_SECONDS = (
    600.0  # for a load that does not advance, and at least for a step that is larger than all before
)
TIMES_LARGER = 4.0  # as long for each of its bytes as the slowest before it took
TAKE_SECONDS = 160.0  # more for each tensor of another worker: an rpc-server waits 150 s for one
PASSING_RATE = 16 << 10  # bytes a second, either way: what passes faster than this is not waited for
READING_RATE = 1 << 20  # bytes a second that a worker reads of its own weights, at least


class HeadTimeouts:
    """How long the workers of one life of a model are waited for; it knows what tensors they send each other.

    The head sees none of these pass. But a worker that answers has had all that it was to take before, and so
    another one has pushed it.
    """

    def __init__(self, clock: Callable[[], float], *, largest: int) -> None:
        """`largest`: bytes of the largest weight, which is read in one piece."""
        self._clock = clock
        self._load_limit = MOST_STEP_SECONDS + largest / READING_RATE
        self._peers: dict[Owed, PeerId] = {}

    def patience(self, peer: PeerId) -> "HeadPatience":
        """With one of them."""
        return HeadPatience(peer, self, self._clock, load_limit=self._load_limit)

    def add(self, owed: Owed, peer: PeerId) -> None:
        """A connection to `peer`."""
        self._peers[owed] = peer

    def remove(self, owed: Owed) -> None:
        """It has ended."""
        del self._peers[owed]

    def taken(self, token: int) -> None:
        """Some worker has this tensor."""
        for owed in self._peers:
            if owed.pushed(token):
                return

    def pusher(self, token: int) -> PeerId | None:
        """Who is to push this tensor, if the head has asked anybody."""
        return next((peer for owed, peer in self._peers.items() if owed.is_to_push(token)), None)


class _Taken(Arrived):
    """Tells who has taken what; what has only arrived the head cannot know."""

    def __init__(self, timeouts: HeadTimeouts) -> None:
        super().__init__()
        self._timeouts = timeouts

    def take(self, token: int) -> None:
        self._timeouts.taken(token)


class HeadEnd:
    """One connection of llama-server, as the head's tunnel sees it. Implements tunnel.interface.Watched."""

    def __init__(self, timeouts: HeadTimeouts, clock: Callable[[], float]) -> None:
        self.owed = Owed(DeviceCheck(), arrived=_Taken(timeouts), graph_done=self._graph_done)
        self._clock = clock
        self._began = clock()  # the step that it is at
        self._largest = -1  # steps with a graph that were done: bytes,
        self._longest = 0.0  # seconds,
        self._slowest = 0.0  # and seconds for each byte that was computed with
        self._bytes = 0  # that have passed, both ways
        self._bytes_before = 0
        self._settled = 0
        self._loads = 0
        self._loading = True
        self.waited = 0.0
        """Seconds for which something is owed, less what has come of it."""

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Requests."""
        self._bytes += len(data)
        if not self.owed.count:
            self._began = self._clock()
        return self.owed.from_peer(data)

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Answers. Raises RemoteProtocolError for devices that cannot be."""
        self._bytes += len(data)
        return self.owed.to_peer(data)

    def target_waits(self, waits: bool) -> None:
        """llama-server takes no more now, or does again."""
        self.owed.peer_waits(waits)

    def peer_waits(self, waits: bool) -> None:
        """The worker takes no more now, or does again."""
        self.owed.target_waits(waits)

    def _graph_done(self, size: int) -> None:
        now = self._clock()
        took, self._began = now - self._began, now
        self._largest, self._longest = max(self._largest, size), max(self._longest, took)
        if self.owed.done_inputs:
            self._slowest = max(self._slowest, took / self.owed.done_inputs)

    # The verdict.

    def look(self, passed: float, *, load_limit: float | None) -> str:
        """Why it is not borne with any more, if so; `passed` seconds after the look before.

        `load_limit` while the model is loaded: then the answers do not count, but what is loaded.
        """
        debt, loading = self.owed.debt, load_limit is not None
        advanced = self._has_advanced(loading=loading) or loading != self._loading
        self._loading = loading
        if advanced or (debt is None and not loading):
            self.waited = 0.0
        elif debt is not None and not debt.is_push and not self.owed.peer_waits_now:
            self.waited += passed
        moved, self._bytes_before = self._bytes - self._bytes_before, self._bytes
        self.waited = max(0.0, self.waited - moved / PASSING_RATE)
        if debt is None or debt.is_push:
            return ""
        limit = self._limit(debt) if load_limit is None else load_limit
        return _text(self.waited, loading=loading) if self.waited > limit else ""

    def _has_advanced(self, *, loading: bool) -> bool:
        settled, self._settled = self.owed.settled != self._settled, self.owed.settled
        loads, self._loads = self.owed.loads != self._loads, self.owed.loads
        return loads if loading else settled

    def _limit(self, debt: Debt) -> float:
        if not debt.graph:
            limit = LEAST_STEP_SECONDS
        elif debt.size <= self._largest:
            limit = max(LEAST_STEP_SECONDS, TIMES_LONGEST * self._longest)
        else:
            limit = max(MOST_STEP_SECONDS, TIMES_LARGER * self._slowest * debt.inputs)
        return limit + TAKE_SECONDS * debt.takes


class HeadPatience:
    """With one worker, for the time of its lease."""

    def __init__(
        self, peer: PeerId, timeouts: HeadTimeouts, clock: Callable[[], float], *, load_limit: float
    ) -> None:
        self._peer = peer
        self._timeouts = timeouts
        self._clock = clock
        self._load_limit = load_limit
        self._ends: list[HeadEnd] = []
        self._looked = clock()
        self.loaded = False
        """The head has its first token."""
        self.waited_for: PeerId | None = None
        """The worker whose tensor this one was waiting for when it ended a connection."""

    @contextmanager
    def connection(self) -> Iterator[HeadEnd]:
        """One of llama-server, until the block is left."""
        end = HeadEnd(self._timeouts, self._clock)
        self._ends.append(end)
        self._timeouts.add(end.owed, self._peer)
        try:
            yield end
        finally:
            token = end.owed.waits_for
            self.waited_for = self._timeouts.pusher(token) if token is not None else None
            self._ends.remove(end)
            self._timeouts.remove(end.owed)

    def look(self, *, reachable: bool) -> str:
        """Why the worker is not borne with any more, or nothing; once a second, or so.

        Time without a path is the grace's matter, and time in which this node stood still nobody's fault.
        """
        now = self._clock()
        passed, self._looked = min(max(now - self._looked, 0.0), 2 * LOOK_SECONDS), now
        load_limit = None if self.loaded else self._load_limit
        whys = [end.look(passed if reachable else 0.0, load_limit=load_limit) for end in self._ends]
        return next((why for why in whys if why), "")


def _text(waited: float, *, loading: bool) -> str:
    if loading:
        return f"it does not load: requests have waited for {waited:.0f} s without progress"
    return f"it does not answer: requests have waited for {waited:.0f} s without a reason"
