"""Bounds the share of the loop's time that reading along in peers' traffic may take from everything else.

All connections of a node share one budget, so that several leases of one member take no more than one. A
connection that had little read lately need not wait for those that had much.

13 KiB of a compressed stream are enough for 90,000 messages that do nothing; for a token some tens go each
way. Counted are seconds of a processor, as `python -m tests.unit.rpc.reading_cost` prints them.
"""

import weakref

SHARE = 0.24  # seconds of reading a second
SECONDS_AT_ONCE = 0.26
MESSAGE_SECONDS = 1.8e-6  # a message: the dearest kind is FREE
ENTRY_SECONDS = 2.4e-6  # one of LOAD: the view and the store look at it
LINE_SECONDS = 40e-6  # a line of a mesh-server's report, with waking up for it
PROGRESS_WEIGHT = 600e-6  # at the head, where llama-server has to take it: one is due in PROGRESS_SECONDS
LITTLE_SECONDS = 2e-3  # a connection that owes no more than this never waits for others


class NodeReading:
    """The budget of a node; each connection has a `ReadingBudget` of it. Times in seconds, of one clock."""

    __slots__ = ("_members", "_since", "_spent")

    def __init__(self) -> None:
        self._spent = 0.0  # seconds of reading
        self._since = 0.0
        self._members: weakref.WeakSet[ReadingBudget] = weakref.WeakSet()  # of connections that are open

    def add(self, member: "ReadingBudget") -> None:
        """Count a connection, for as long as it has its budget."""
        self._members.add(member)

    @property
    def share_of_one(self) -> float:
        """The seconds a second that each connection can always have read."""
        return SHARE / max(1, len(self._members))

    def spend(self, seconds: float) -> None:
        """Count seconds of reading, of any connection."""
        self._spent += seconds

    def pause(self, now: float) -> float:
        """Return how long connections wait that had much read, in seconds."""
        self._spent = max(0.0, self._spent - (now - self._since) * SHARE)
        self._since = now
        return max(0.0, (self._spent - SECONDS_AT_ONCE) / SHARE)


class ReadingBudget:
    """The part of one connection in the budget of its node."""

    __slots__ = ("__weakref__", "_node", "_since", "_spent")

    def __init__(self, node: NodeReading | None = None) -> None:
        """Join the node's budget; without `node` this one has a budget of its own."""
        self._node = node if node is not None else NodeReading()
        self._node.add(self)
        self._spent = 0.0  # seconds that it owes
        self._since = 0.0

    def spend(self, seconds: float) -> None:
        """Count seconds of reading."""
        self._spent += seconds
        self._node.spend(seconds)

    def pause(self, now: float) -> float:
        """Return how long the next bytes of this connection have to wait; ask again after that time."""
        owed = self._spent - (now - self._since) * self._node.share_of_one
        # what was read while nobody waited is soon forgotten
        self._spent = min(max(0.0, owed), SECONDS_AT_ONCE)
        self._since = now
        pause = self._node.pause(now)
        return pause if self._spent > LITTLE_SECONDS else 0.0
