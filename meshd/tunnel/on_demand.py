"""Opens a stream to a member that is not connected because nobody needed it, as most are in a large mesh."""

import asyncio
from collections.abc import Mapping

from meshd.base.errors import Broken
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh, MetadataValue, PeerState, PeerStatus, Stream

ON_DEMAND_SECONDS = 10.0


async def open_on_demand(
    mesh: Mesh, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
) -> Stream:
    """Open a stream as `Mesh.open_stream`; wait for a session, 10 s at most, if the peer is present without
    one.
    """
    try:
        return mesh.open_stream(peer, service, metadata=metadata, bulk=bulk)
    except Broken:
        status = _status(mesh, peer)
        if status is None or not status.present:
            raise
    try:
        async with asyncio.timeout(ON_DEMAND_SECONDS):
            seen = -1
            while (status := _status(mesh, peer)) is not None and status.state is not PeerState.CONNECTED:
                seen = await mesh.changed(seen)
    except TimeoutError:
        pass
    return mesh.open_stream(peer, service, metadata=metadata, bulk=bulk)


def _status(mesh: Mesh, peer: PeerId) -> PeerStatus | None:
    return next((status for status in mesh.peers() if status.peer == peer), None)
