"""How much of what a peer sends is judged in a time: that takes the loop from all others.

A graph of the largest size takes 0.07 s, and 121 KiB of a compressed stream are enough for one; if all its
shapes differ it takes 0.16 s. 13 KiB are enough for 0.07 s of messages that do nothing. llama-server sends
graphs while it loads, and one for each new shape: a micro batch, or every 256th token. Of other messages some
tens go each way for a token.

All is counted in tensors: what a node of a graph takes whose shape was there before, 2 microseconds. The
factors below are what `python -m tests.unit.rpc.judging_cost` prints (two cores of an AMD EPYC that others
used too, 2026-11-23).
"""

from meshd.rpc.mesh_protocol import GRAPH_TENSORS

TENSORS_PER_SECOND = 120_000  # 0.24 s of computing; 160 new graphs of 16 layers, one a micro batch
TENSORS_AT_ONCE = 4 * GRAPH_TENSORS  # 0.26 s
SHAPE_TENSORS = 1.4  # a shape of a graph that is new in it, beside its tensor
ENTRY_TENSORS = 1.0  # one of LOAD: the firewall and the store look at it
MESSAGE_TENSORS = 0.8  # a message, beside the tensors that it has: a READ with its DATA; a WRITE takes 0.5
PROGRESS_TENSORS = 300.0  # at the head, where llama-server has to take it: one is due in PROGRESS_SECONDS


class JudgingBudget:
    """Times in seconds, of one clock."""

    __slots__ = ("_since", "_spent")

    def __init__(self) -> None:
        self._spent = 0.0  # tensors
        self._since = 0.0

    def spend(self, tensors: float) -> None:
        """So many are about to be judged."""
        self._spent += tensors

    def pause(self, now: float) -> float:
        """How long the next bytes of this peer have to wait."""
        self._spent = max(0.0, self._spent - (now - self._since) * TENSORS_PER_SECOND)
        self._since = now
        return max(0.0, (self._spent - TENSORS_AT_ONCE) / TENSORS_PER_SECOND)
