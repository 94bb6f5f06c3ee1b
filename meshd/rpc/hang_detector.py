"""Detects that an rpc-server hangs: its connection is up, requests wait, and nothing happens.

Looked at once a second. What it owes is told by the bytes of its connections (pending_work.py). Signs of life
are answers, pushes, bytes read from a file, and, where it computes on CPUs, the CPU time that it uses: a step
of any length is one as long as that goes on. A GPU that computes shows none, so there the steps themselves
are the measure. See docs/decisions/0032-losses.md.
"""

from meshd.rpc.pending_work import Arrived, ConnectionInspector, Outward, Owed, Step

LOOK_SECONDS = 1.0
LEAST_SILENT_SECONDS = 5.0  # without a sign of life: shorter pauses have a hundred reasons
MOST_SILENT_SECONDS = 25.0  # with the looks before and after it, the kill and its news, less than 30
TIMES_LONGEST = 2.0
BUSY_SHARE = 0.01  # of one core: what a process that computes gets even on a crowded machine
READ_BYTES = 64 << 10  # since the last sign of life: less is a thread that wakes another, not a file
COMPILE_SECONDS = 120.0  # of CPU time that count for a GPU while it loads: drivers compile then


Spent = tuple[float, int]
"""By a process since its start: seconds of CPU time, and bytes that it has read from files."""


class Watch:
    """One lease's server. Times are of a clock that the caller gives, in seconds."""

    def __init__(self, *, on_cpu: bool) -> None:
        """`on_cpu`: it computes there, so that a step uses CPU time."""
        self._on_cpu = on_cpu
        self._owed: list[Owed] = []
        self._outward: list[Outward] = []
        self._pushes = 0
        self._largest = -1  # size of the largest step with a graph that was done
        self._longest = 0.0  # seconds that a step took
        self._clock = 0.0  # time that was looked at: a daemon that stands still accuses nobody
        self._looked: float | None = None
        self._since = 0.0  # the step began,
        self._alive = 0.0  # and showed a sign of life
        self._step: Step | None = None
        self._done = 0
        self._bytes = 0
        self._spent: Spent = (0.0, 0)
        self.arrived = Arrived()
        self.loaded = False
        """The head has its first token: whatever a driver compiles has been compiled."""

    # Observations.

    def connection(self, inspector: ConnectionInspector) -> Owed:
        """Of the head; `close` it at its end."""
        owed = Owed(inspector, arrived=self.arrived, graph_done=self._graph_done)
        self._owed.append(owed)
        return owed

    def close(self, connection: Owed) -> None:
        """It has ended."""
        self._owed.remove(connection)

    def neighbour(self) -> Outward:
        """A connection to another server."""
        outward = Outward(self._pushed)
        self._outward.append(outward)
        return outward

    def close_neighbour(self, connection: Outward) -> None:
        """It has ended."""
        self._outward.remove(connection)

    def _pushed(self, token: int) -> None:
        self._pushes += 1
        for owed in self._owed:
            if owed.pushed(token):
                return

    def _graph_done(self, size: int) -> None:
        self._largest = max(self._largest, size)

    # The verdict.

    @property
    def is_at_work(self) -> bool:
        """It was at a step when it was last looked at."""
        return self._step is not None

    def look(self, now: float, spent: Spent | None, *, sharers: int = 0) -> str:
        """Why the server is of no use any more, empty while it may be.

        `spent` None: nobody tells. `sharers`: how many other servers compute on the same GPU now, each of
        which makes this one's steps longer by as much again.
        """
        self._tick(now)
        before, self._step = self._step, self._at_work()
        done = self._pushes + sum(owed.done for owed in self._owed)
        moved, self._done = done != self._done, done
        if moved and before is not None:
            self._longest = max(self._longest, self._clock - self._since)
        if moved or before is None or self._step is None:
            self._since = self._clock
            self._note_life(spent)
        elif self._shows_life(spent):
            self._note_life(spent)
        if self._step is None or (spent is None and self._on_cpu):
            return ""
        silent = self._clock - self._alive
        limit = self._limit(self._step, sharers)
        return "" if silent <= limit else self._text(silent)

    def _tick(self, now: float) -> None:
        passed = 0.0 if self._looked is None else now - self._looked
        self._clock += min(max(passed, 0.0), 2 * LOOK_SECONDS)
        self._looked = now

    def _at_work(self) -> Step | None:
        """What it is at, and owes to a client that would take it."""
        if any(connection.peer_waits_now for connection in self._connections()):
            return None
        greeted = [owed for owed in self._owed if owed.greeted]
        # one that waits behind another to be served is not answered, and that is no fault
        steps = [owed.step for owed in (greeted or self._owed)]
        return next((step for step in steps if step is not None), None)

    def _connections(self) -> list[Owed | Outward]:
        return [*self._owed, *self._outward]

    def _note_life(self, spent: Spent | None) -> None:
        self._alive = self._clock
        self._bytes = self._all_bytes()
        if spent is not None:
            self._spent = spent

    def _shows_life(self, spent: Spent | None) -> bool:
        if self._all_bytes() != self._bytes:
            return True
        if spent is None:
            return False
        cpu, read = (now - then for now, then in zip(spent, self._spent, strict=True))
        compiles = not self.loaded and self._clock - self._since < COMPILE_SECONDS
        busy = cpu >= BUSY_SHARE * (self._clock - self._alive)
        return read >= READ_BYTES or (busy and (self._on_cpu or compiles))

    def _all_bytes(self) -> int:
        return sum(connection.bytes for connection in self._connections()) + self.arrived.bytes

    def _limit(self, step: Step, sharers: int) -> float:
        if not step.graph or step.size > self._largest:
            return MOST_SILENT_SECONDS
        return min(
            MOST_SILENT_SECONDS, max(LEAST_SILENT_SECONDS, TIMES_LONGEST * self._longest * (1 + sharers))
        )

    def _text(self, silent: float) -> str:
        return (
            f"it hangs: requests are waiting, and for {silent:.0f} s it has answered, sent and read nothing "
            f"(its longest step before took {max(self._longest, LOOK_SECONDS):.0f} s at most)"
        )
