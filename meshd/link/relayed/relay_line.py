"""The line to a relay that this node stays connected to or visits; and the eviction of visits."""

import asyncio
from collections import Counter
from collections.abc import Hashable, Sequence

from meshd.identity.invite import RelayHint
from meshd.link.relayed.control_connection import ControlConnection

Asker = tuple[Hashable, Hashable]  # issuer, peer


class Line:
    """One relay and the connection to it, when there is one."""

    def __init__(self, relay: RelayHint, *, own: bool, whom: Asker) -> None:
        self.relay = relay
        self.whom = whom  # issuer and peer for which a relay that is not ours is visited
        self.task: asyncio.Task[None] | None = None
        self.own = own
        self.control: ControlConnection | None = None
        self.why = "not connected yet"
        self.tries = 0
        self.changed = asyncio.Event()  # replaced by a new one whenever it was set
        self.wanted = asyncio.Event()  # somebody waits: try at once
        self.used_at = asyncio.get_running_loop().time()

    def end(self, why: str) -> None:
        """End the visit."""
        self.tell(None, why)
        if self.task is not None:
            self.task.cancel()

    def tell(self, control: ControlConnection | None, why: str) -> None:
        """Tell those who wait for the line its new state."""
        self.control, self.why = control, why
        self.tries += 1
        self.changed.set()
        self.changed = asyncio.Event()


def gives_way(visits: Sequence[Line], asker: Asker) -> Line | None:
    """Choose the visit to close so that `asker` fits, or None to refuse `asker`.

    Takes the largest issuer, there the largest peer, there a visit without a connection, or the least
    recently used.
    """
    issuers = Counter([asker[0], *(line.whom[0] for line in visits)])
    issuer = max(issuers, key=issuers.__getitem__)
    visits = [line for line in visits if line.whom[0] == issuer]
    peers = Counter([*([asker] if asker[0] == issuer else []), *(line.whom for line in visits)])
    most = max(peers, key=peers.__getitem__)
    if most == asker and peers[most] > 1:
        return None
    visits = [line for line in visits if line.whom == most] or visits
    return min(visits, key=lambda line: (line.control is not None, line.used_at), default=None)
