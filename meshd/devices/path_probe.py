"""Fill the path to another member for a moment, so that both sessions learn what it carries.

A link's rate is known only once the link was the bottleneck (mux/pacing.py). Before that, the prediction of a
split has to guess the rate, and the guess decides whether a prompt is worth a second machine. So where the
rate is unknown, a node sends meaningless bytes, for half a second and 16 MiB at most, and no longer than the
rate grows. The other node drops them.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from meshd.base.admission import Rates, Release, Slots
from meshd.base.errors import EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.peer_limits import PROBES_AT_ONCE, PROBES_AT_ONCE_OF_PEER, PROBES_TAKEN
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.peer.interface import Mesh, MetadataValue, PathStatus, PeerStatus, Stream

GIVEN_UP = 0  # code of a reset stream that is no longer needed
PATH_PROBE_SERVICE = "path-probe"
PROBED_BYTES = 16 << 20  # at most: a path of 100 MB/s and 20 ms is full after some nine round trips
PROBED_SECONDS = 0.5
PROBED_PEERS = 8  # of one question: the nearest peers
_CHUNK_BYTES = 64 << 10
_FLAT_BYTES = 1 << 20  # if so many bytes find no higher rate, this is what the path carries
_FLAT_ROUND_TRIPS = 3.0  # and so long: bytes are written before anything is known of those on their way
_GROWTH = 1.05
_TAKEN_SECONDS = 5.0  # of a probe: who sends nothing must not hold its place
_AGAIN_SECONDS = 600.0  # until a path whose rate stayed unknown is filled again


class ProbesTaken:
    """Receive and drop what members send to fill their paths to this node."""

    def __init__(self, mesh: Mesh) -> None:
        self._places = Slots(PROBES_AT_ONCE, PROBES_AT_ONCE_OF_PEER)
        self._taken = Rates(PROBES_TAKEN)
        mesh.handle(PATH_PROBE_SERVICE, self._serve, allow=self._may_send)

    def _may_send(self, member: Member, _metadata: Mapping[str, MetadataValue]) -> str | Release:
        release = self._places.take(member.peer)
        if release is None:
            return "too many measurements of a path at once"
        if not self._taken.spend(member.peer, asyncio.get_running_loop().time()):
            release()
            return "the path was measured a moment ago"
        return release

    async def _serve(self, stream: Stream) -> None:
        left = PROBED_BYTES
        with suppress(EndOfStream, TimeoutError):
            async with asyncio.timeout(_TAKEN_SECONDS):
                while True:
                    data = await stream.read()
                    stream.consumed(len(data))
                    left -= len(data)
                    if left < 0:
                        raise RemoteProtocolError("path-probe: too many bytes", code="capacity")
        stream.write_eof()


class PathProber:
    """Probe members whose path was never full, one after the other."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._tried: dict[PeerId, float] = {}

    async def probe(self, peers: Iterable[PeerId]) -> None:
        """Probe `peers`, the nearest first. The rate of a peer that refuses stays unknown."""
        wanted = set(peers)
        now = asyncio.get_running_loop().time()
        self._tried = {peer: at for peer, at in self._tried.items() if now - at < _AGAIN_SECONDS}
        for round_trip, peer in self._unknown(wanted)[:PROBED_PEERS]:
            self._tried[peer] = now
            with suppress(MeshdError, TimeoutError):
                await self._fill(peer, round_trip)

    def _unknown(self, wanted: set[PeerId]) -> list[tuple[float, PeerId]]:
        """Return the peers, and how long a round trip to each takes, the nearest first."""
        found = []
        for status in self._mesh.peers():
            path = _selected(status)
            if status.peer not in wanted or status.peer in self._tried or path is None:
                continue
            if path.rate is None and path.idle_rtt is not None:
                found.append((path.idle_rtt, status.peer))
        return sorted(found)

    async def _fill(self, peer: PeerId, round_trip: float) -> None:
        stream = self._mesh.open_stream(peer, PATH_PROBE_SERVICE, metadata={}, bulk=True)
        try:
            async with asyncio.timeout(PROBED_SECONDS):
                now = asyncio.get_running_loop().time
                chunk = bytes(_CHUNK_BYTES)
                sent = flat = 0
                best, grown = 0.0, now()
                while sent < PROBED_BYTES and not (
                    flat >= _FLAT_BYTES and now() - grown >= _FLAT_ROUND_TRIPS * round_trip
                ):
                    await stream.write(chunk)
                    sent += len(chunk)
                    rate = self._rate(peer)
                    flat += len(chunk) if rate else 0  # unknown: a start that still grows (mux/pacing.py)
                    if rate > _GROWTH * best:
                        best, grown, flat = rate, now(), 0
                stream.write_eof()
                await stream.read()
        finally:
            stream.reset(GIVEN_UP, "")

    def _rate(self, peer: PeerId) -> float:
        """Return the rate of the path to `peer` that is known now, in bytes per second; 0 if unknown."""
        status = next((known for known in self._mesh.peers() if known.peer == peer), None)
        path = None if status is None else _selected(status)
        return 0.0 if path is None else path.rate or 0.0


def _selected(status: PeerStatus) -> PathStatus | None:
    """Return the path that carries data, if any."""
    return next((path for path in status.paths if path.selected), None)
