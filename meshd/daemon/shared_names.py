"""Log when two nodes have the same name, which then means neither of them."""

import asyncio

from meshd.admin.health import same_name
from meshd.base import log
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh

_LOOK_SECONDS = 5.0  # between two checks: in a large mesh something changes all the time
LOG = log.get("daemon")


async def watch_names(mesh: Mesh, me: PeerId, name: str) -> None:
    """Log each set of nodes that share a name once while they share it, until cancelled."""
    logged: dict[str, list[str]] = {}
    seen = -1
    while True:
        seen = await mesh.changed(seen)
        peers = {str(status.peer): status.name for status in mesh.peers()}
        shared = naming.shared({**peers, str(me): name})
        for shared_name, nodes in shared.items():
            if logged.get(shared_name) != nodes:
                other = next(node for node in nodes if node != str(me))
                LOG.warning(
                    "name_shared",
                    name=shared_name,
                    peer=other[: naming.SHORT_CHARS],
                    what=same_name(shared_name, nodes),
                )
        logged = shared
        await asyncio.sleep(_LOOK_SECONDS)
