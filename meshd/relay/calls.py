"""The circuits to each node, and which one is evicted when the node has its maximum. Pure.

Whom a node lets in is not for its callers to say: one that asks for circuits and proves nothing in them would
keep all others out. A circuit is settled once the node has said more in it than it says to a stranger, or
keeps it for longer than it waits for a proof. Those that are not settled give way.
"""

from collections import Counter

from meshd.relay.states import Circuit, NodeIdentity

SETTLED_BYTES = 8 << 10  # of the node that was called: its side of a handshake and a proof is less


class Calls:
    """`settled_seconds`: a circuit that both sides keep for so long is one that they want."""

    def __init__(self, settled_seconds: float) -> None:
        self._seconds = settled_seconds
        self._to: dict[NodeIdentity, dict[int, Circuit]] = {}

    def add(self, circuit: Circuit) -> None:
        """Add a circuit."""
        self._to.setdefault(circuit.callee, {})[circuit.number] = circuit

    def remove(self, circuit: Circuit) -> None:
        """Remove a circuit that is over."""
        calls = self._to[circuit.callee]
        del calls[circuit.number]
        if not calls:
            del self._to[circuit.callee]

    def between(self, caller: NodeIdentity, callee: NodeIdentity) -> int:
        """Return how many circuits `caller` has to `callee`."""
        return sum(circuit.caller == caller for circuit in self._to.get(callee, {}).values())

    def yielding(self, callee: NodeIdentity, caller: NodeIdentity, now: float) -> Circuit | None:
        """Choose the circuit to evict for one more of `caller`: the oldest of the caller with the most, if it
        has more.
        """
        calls = self._to.get(callee, {}).values()
        held = Counter(circuit.caller for circuit in calls)
        loose = [
            circuit
            for circuit in calls
            if held[circuit.caller] > held[caller] and not self._is_settled(circuit, now)
        ]
        return max(loose, key=lambda circuit: (held[circuit.caller], -circuit.number), default=None)

    def _is_settled(self, circuit: Circuit, now: float) -> bool:
        both = len(circuit.came) == 2
        return both and (circuit.answered >= SETTLED_BYTES or now - circuit.since > self._seconds)
