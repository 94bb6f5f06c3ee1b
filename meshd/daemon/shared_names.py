"""Logs when two nodes have one name, which then stands for neither of them."""

import asyncio

from meshd.admin.health import same_name
from meshd.base import log
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh

_LOOK_SECONDS = 5.0  # between two looks: in a large mesh something changes all the time
LOG = log.get("daemon")


async def watch_names(mesh: Mesh, me: PeerId, name: str) -> None:
    """Once for each set of nodes with one name, for as long as they have it. Until cancelled."""
    told: dict[str, list[str]] = {}
    seen = -1
    while True:
        seen = await mesh.changed(seen)
        peers = {str(status.peer): status.name for status in mesh.peers()}
        shared = naming.shared({**peers, str(me): name})
        for one, nodes in shared.items():
            if told.get(one) != nodes:
                other = next(node for node in nodes if node != str(me))
                LOG.warning(
                    "name_shared", name=one, peer=other[: naming.SHORT_CHARS], what=same_name(one, nodes)
                )
        told = shared
        await asyncio.sleep(_LOOK_SECONDS)
