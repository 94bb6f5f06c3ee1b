"""Multicast DNS (RFC 6762, 6763): nodes of a mesh in one network find each other without being told.

Each network is told its own addresses and nothing of the others; one that comes up is joined within seconds,
one that changes its addresses starts again under another name. What is heard is an address to try and no more
(mdns_text.py says what a record holds, and what strangers see of it).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshd.base import log
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.keys import MeshId, PeerId
from meshd.rendezvous.interface import MdnsState, MdnsStatus
from meshd.rendezvous.mdns_neighbours import Neighbours
from meshd.rendezvous.mdns_network import Network
from meshd.rendezvous.mdns_places import Place, places
from meshd.rendezvous.mdns_text import MDNS_NONCE_BYTES, Sign
from meshd.wire.address import Candidate

_LOOK_SECONDS = 2.0  # how often the networks of this machine are looked at
_AGAIN_SECONDS = 30.0  # a network that could not be joined is tried again after that
_SILENT_SECONDS = 15.0  # nothing heard for so long after the start: multicast may be filtered
MAX_NETWORKS = 16
LOG = log.get("mdns")


class Mdns:
    """Announces this node in every network that it can be reached in, and looks for the others."""

    def __init__(
        self,
        *,
        mesh: MeshId,
        me: PeerId,
        addresses: Callable[[], Sequence[tuple[str, str]]],
        candidates: Callable[[], Sequence[Candidate]],
        peers: Callable[[], Sequence[PeerId]],
        found: Callable[[PeerId, Sequence[Candidate]], None],
        random: Callable[[int], bytes],
    ) -> None:
        """Set up. `addresses`: (interface, host) of the real interfaces now; `candidates`: what the listeners
        offer.

        `peers`: the peers to look for (asked every 2 s); `found` gets all addresses at which one is seen,
        none when it has gone, at most once in 5 s for each peer. `random(n)` gives n random bytes.
        """
        self._me = me
        self._addresses = addresses
        self._candidates = candidates
        self._peers = peers
        self._found = found
        self._random = random
        self._neighbours = Neighbours(mesh, me)
        self._networks: dict[str, _JoinedNetwork] = {}
        self._failed: dict[str, tuple[Place, float, str]] = {}
        self._news = asyncio.Event()
        self._began: float | None = None
        self._now: Callable[[], float] = lambda: 0.0

    @property
    def status(self) -> MdnsStatus:
        """The present status."""
        joined = tuple(sorted(name for name, network in self._networks.items() if network.is_up))
        waited = self._began is not None and self._now() - self._began >= _SILENT_SECONDS
        state: MdnsState = "looking"
        if self._neighbours.heard_at is not None:
            state = "heard"
        elif waited and joined:
            state = "silent"
        why = "; ".join(f"{name}: {text}" for name, (_, _, text) in sorted(self._failed.items()))
        if state == "silent":
            why = why or "no other node was heard: there is none, or this network filters multicast"
        return MdnsStatus(state=state, networks=joined, members=self._neighbours.members, why=why)

    async def serve(self) -> None:
        """Serve until cancelled; then say goodbye to each network (0.3 s)."""
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        async with Owner() as owner:
            while True:
                await self._adapt(owner)
                self._neighbours.know(self._peers())
                for peer, candidates in self._neighbours.tell(self._now()):
                    LOG.debug(
                        "neighbour", peer=peer.short, remote=[str(candidate) for candidate in candidates]
                    )
                    self._found(peer, candidates)
                self._news.clear()
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._news.wait()
                except TimeoutError:
                    pass

    async def _adapt(self, owner: Owner) -> None:
        """Join the networks that are new, leave those that have gone or changed."""
        wanted = places(self._addresses(), self._candidates())[:MAX_NETWORKS]
        by_name = {place.interface: place for place in wanted}
        gone = [
            joined
            for name, joined in self._networks.items()
            if by_name.get(name) != joined.place or joined.ended
        ]
        for joined in gone:
            joined.task.cancel()
        for joined in gone:
            await cancel_and_wait(joined.task)
            del self._networks[joined.place.interface]
            self._neighbours.lost_network(joined.place.interface)
            if joined.failure:
                self._failed[joined.place.interface] = (joined.place, self._now(), joined.failure)
        for name, (place, since, _) in list(self._failed.items()):
            if by_name.get(name) != place or self._now() - since >= _AGAIN_SECONDS:
                del self._failed[name]
        for place in wanted:
            if place.interface not in self._networks and place.interface not in self._failed:
                network = Network(
                    place,
                    neighbours=self._neighbours,
                    news=self._news,
                    sign=self._sign(place),
                    random=self._random,
                )
                task = owner.start_for(
                    f"network {place.interface}", network.serve(), name=f"mdns {place.interface}"
                )
                self._networks[place.interface] = _JoinedNetwork(network, task)

    def _sign(self, place: Place) -> Sign | None:
        if not place.port:
            return None
        nonce = self._random(MDNS_NONCE_BYTES)
        return Sign.of(self._neighbours.mesh, self._me, nonce=nonce, udp_port=place.udp_port)


@dataclass(frozen=True, slots=True)
class _JoinedNetwork:
    network: Network
    task: asyncio.Task[None]

    @property
    def place(self) -> Place:
        return self.network.place

    @property
    def is_up(self) -> bool:
        return self.network.is_up

    @property
    def ended(self) -> bool:
        return self.task.done()

    @property
    def failure(self) -> str:
        return self.network.failure


async def find(
    *,
    mesh: MeshId,
    peer: PeerId,
    addresses: Callable[[], Sequence[tuple[str, str]]],
    random: Callable[[int], bytes],
    seconds: float,
) -> tuple[Candidate, ...]:
    """Return where `peer` of `mesh` is in the networks of this machine; empty if not seen in `seconds`.

    For a joiner whose token has no address that works: it announces nothing, and only asks.
    """
    seen: asyncio.Future[tuple[Candidate, ...]] = asyncio.get_running_loop().create_future()

    def found(_peer: PeerId, candidates: Sequence[Candidate]) -> None:
        if candidates and not seen.done():
            seen.set_result(tuple(candidates))

    # Search like any node, without announcing anything.
    search = Mdns(
        mesh=mesh,
        me=PeerId(random(32)),  # nobody's
        addresses=addresses,
        candidates=tuple,
        peers=lambda: (peer,),
        found=found,
        random=random,
    )
    async with Owner() as owner:
        task = owner.start(search.serve(), name="mdns search")
        try:
            async with asyncio.timeout(seconds):
                await seen
        except TimeoutError:
            return ()
        finally:
            task.cancel()
    return seen.result()
