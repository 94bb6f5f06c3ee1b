"""Paths of which no session knows the rate are filled for a moment; nobody is made to take more than that."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from meshd.base.errors import Broken, EndOfStream, MeshdError
from meshd.base.peer_limits import PROBES_AT_ONCE_OF_PEER, PROBES_TAKEN
from meshd.base.tasks import Owner
from meshd.devices.path_probe import PATH_PROBE_SERVICE, PROBED_BYTES, PROBED_PEERS, PathProber, ProbesTaken
from meshd.identity.keys import PeerId
from meshd.peer.interface import PathStatus, PeerStatus, Stream

from tests.sim.loop import run
from tests.unit.admin.test_snapshot import path
from tests.unit.head.fake_mesh import FakeMesh, Net

pytestmark = pytest.mark.virtual


class Paths:
    """A node whose paths to others have these rates and round trips; `found`: the rate from then on."""

    def __init__(self, mesh: FakeMesh) -> None:
        self.mesh = mesh
        self.known: dict[PeerId, float | None] = {}
        self.rtts: dict[PeerId, float] = {}
        self.opened: list[PeerId] = []
        self.found: float | None = None
        self._see = mesh.peers
        self._open = mesh.open_stream
        mesh.peers = self.peers  # type: ignore[method-assign]
        mesh.open_stream = self.open_stream  # type: ignore[method-assign,assignment]

    def peers(self) -> Sequence[PeerStatus]:
        return [replace(one, paths=(self._path(one.peer),)) for one in self._see()]

    def _path(self, peer: PeerId) -> PathStatus:
        rtt = self.rtts.get(peer, 0.01)
        return replace(path(selected=True), rtt=rtt, rtt_min=rtt, rtt_floor=rtt, rate=self.known.get(peer))

    def open_stream(self, peer: PeerId, service: str, **more: object) -> object:
        self.opened.append(peer)
        self.known[peer] = self.found
        return self._open(peer, service, metadata={})


class Scene:
    def __init__(self, net: Net, count: int) -> None:
        self.head = net.mesh("head", "serve")
        self.workers = [net.mesh(f"worker {number}") for number in range(count)]
        for worker in self.workers:
            ProbesTaken(worker)
        self.paths = Paths(self.head)
        self.prober = PathProber(self.head)
        self.peers = [worker.key.peer for worker in self.workers]


@asynccontextmanager
async def scene(count: int) -> AsyncIterator[Scene]:
    async with Owner() as owner:
        yield Scene(Net(owner), count)
        owner.cancel()


async def test_only_paths_of_which_nothing_is_known_are_filled_the_nearest_first() -> None:
    async with scene(3) as it:
        near, far, known = it.peers
        it.paths.rtts = {near: 0.001, far: 0.1}
        it.paths.known[known] = 1e6
        await it.prober.probe(it.peers)
        assert it.paths.opened == [near, far]


async def test_a_path_that_tells_nothing_is_not_filled_again_and_again() -> None:
    async with scene(1) as it:
        for _ in range(3):
            await it.prober.probe(it.peers)
        assert it.paths.opened == it.peers
        await asyncio.sleep(601.0)
        await it.prober.probe(it.peers)
        assert it.paths.opened == 2 * it.peers


async def test_a_large_mesh_does_not_fill_all_paths() -> None:
    async with scene(PROBED_PEERS + 3) as it:
        await it.prober.probe(it.peers)
        assert len(it.paths.opened) == PROBED_PEERS


_BURST = 256 << 10


def _taken(rate: float, *, known_after: int = 0, doubles_after: int = 0) -> int:
    """Return the bytes that one takes who reads a burst in each round trip of 10 ms.

    The rate is known after so many bytes, and doubles after each `doubles_after` if it does.
    """

    async def main() -> int:
        async with scene(1) as it:
            taken = 0

            async def read(stream: Stream) -> None:
                nonlocal taken
                with suppress(EndOfStream):
                    while True:
                        before = taken
                        taken += (length := len(await stream.read()))
                        stream.consumed(length)
                        if taken // _BURST > before // _BURST:
                            await asyncio.sleep(0.01)
                        if taken >= known_after:
                            doubled = taken // doubles_after if doubles_after else 0
                            it.paths.known[it.peers[0]] = rate * 2**doubled
                stream.write_eof()

            it.workers[0].handle(PATH_PROBE_SERVICE, read, allow=lambda _member, _metadata: None)
            it.paths.found = None
            await it.prober.probe(it.peers)
            return taken

    return run(main())


def test_no_more_is_sent_once_the_rate_does_not_grow() -> None:
    assert 1 << 20 <= _taken(1e6) <= 2 << 20 < PROBED_BYTES


def test_a_rate_that_still_grows_is_waited_for() -> None:
    """A link tells none before it has carried much, and then more with each round trip."""
    assert _taken(1e6, known_after=2 << 20) <= 4 << 20
    assert _taken(1e6, known_after=2 << 20, doubles_after=512 << 10) >= 12 << 20, "what half a second carries"


async def test_it_ends_when_the_other_node_does_not_read() -> None:
    async with scene(1) as it:

        async def stuck(_stream: object) -> None:
            await asyncio.Event().wait()

        it.workers[0].handle(PATH_PROBE_SERVICE, stuck, allow=lambda _member, _metadata: None)
        began = asyncio.get_running_loop().time()
        await it.prober.probe(it.peers)
        assert asyncio.get_running_loop().time() - began <= 0.5


async def test_a_node_that_refuses_stops_nothing() -> None:
    async with scene(2) as it:
        it.workers[0].handle(PATH_PROBE_SERVICE, it.head.handle, allow=lambda _member, _metadata: "no")  # type: ignore[arg-type]
        await it.prober.probe(it.peers)
        assert sorted(it.paths.opened) == sorted(it.peers)


async def _send(mesh: FakeMesh, peer: PeerId, count: int) -> None:
    stream = mesh.open_stream(peer, PATH_PROBE_SERVICE, metadata={})
    for _ in range(count // (64 << 10)):
        await stream.write(bytes(64 << 10))
    stream.write_eof()
    await stream.read()


async def test_who_sends_more_than_a_path_is_filled_with_is_cut_off() -> None:
    async with scene(1) as it:
        with pytest.raises((Broken, MeshdError)):
            await _send(it.head, it.peers[0], PROBED_BYTES + (1 << 20))


async def test_a_member_fills_its_path_so_often_and_no_more() -> None:
    async with scene(1) as it:
        allow = it.workers[0].services[PATH_PROBE_SERVICE][1]
        releases = [allow(it.head.member_here, {}) for _ in range(PROBES_AT_ONCE_OF_PEER.most)]
        assert allow(it.head.member_here, {}) == "too many measurements of a path at once"
        said = []
        for _ in range(int(PROBES_TAKEN.burst)):
            for release in releases:
                assert callable(release)
                release()
            releases = []
            one = allow(it.head.member_here, {})
            said.append(one)
            if callable(one):
                releases = [one]
        assert said[-1] == "the path was measured a moment ago"
