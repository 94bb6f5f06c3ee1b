"""What a generated token costs on the wire, measured at the end of a load."""

from collections.abc import Set
from pathlib import Path

from meshd.identity.keys import PeerId
from meshd.role.interface import Kit

# The second token of an answer still carries the graph of its shape, so two answers are compared that differ
# by later tokens only.
SHORT_TOKENS, SAMPLE_TOKENS = 2, 4


async def measure_token(kit: Kit, socket: Path, workers: Set[PeerId]) -> float | None:
    """Bytes on the links to the workers for one token, both directions; None when none came."""
    if not workers:
        return 0.0
    costs = []
    for tokens in (SHORT_TOKENS, SHORT_TOKENS + SAMPLE_TOKENS):
        before = _link_bytes(kit, workers)
        if await kit.complete(socket, tokens) != tokens:
            return None
        costs.append(_link_bytes(kit, workers) - before)
    return (costs[1] - costs[0]) / SAMPLE_TOKENS


def _link_bytes(kit: Kit, workers: Set[PeerId]) -> int:
    return sum(
        path.sent_bytes + path.received_bytes
        for peer in kit.mesh.peers()
        if peer.peer in workers
        for path in peer.paths
    )
