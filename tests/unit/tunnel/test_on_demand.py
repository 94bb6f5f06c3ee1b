"""A stream to a member that is there without a session: it waits for one, and for nothing else."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest
from meshd.base.errors import Broken
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.peer.interface import Allow, Handler, MetadataValue, PeerState, PeerStatus, Stream
from meshd.tunnel.joined import ON_DEMAND_SECONDS, open_on_demand

from tests.sim import loop as virtual
from tests.unit.tunnel.far import PEER, streams


def _status(state: PeerState, *, present: bool) -> PeerStatus:
    return PeerStatus(
        peer=PEER,
        name="garage",
        role="worker",
        state=state,
        paths=(),
        native=None,
        software="",
        resumes=0,
        since=0.0,
        last_error="",
        clock_offset=None,
        present=present,
    )


class SlowMesh:
    """Connected after so many seconds, from when a stream is wanted."""

    def __init__(self, seconds: float, *, present: bool) -> None:
        self._seconds = seconds
        self._present = present
        self._wanted_at: float | None = None
        self.tries = 0

    def _connected(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._wanted_at is not None and now >= self._wanted_at + self._seconds

    def peers(self) -> Sequence[PeerStatus]:
        if self._connected():
            return (_status(PeerState.CONNECTED, present=False),)
        return (_status(PeerState.KNOWN, present=self._present),)

    def member(self, peer: PeerId) -> Member | None:
        return None

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        self.tries += 1
        if self._wanted_at is None:
            self._wanted_at = asyncio.get_running_loop().time()
        if not self._connected():
            raise Broken("not connected")
        return streams()[0]

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        raise AssertionError("nothing is served here")

    async def changed(self, seen: int) -> int:
        await asyncio.sleep(0.5)
        return seen + 1


def _open(mesh: SlowMesh) -> Callable[[], float]:
    def run() -> float:
        async def main() -> float:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await open_on_demand(mesh, PEER, "web", metadata={})
            return loop.time() - began

        return virtual.run(main())

    return run


def test_it_waits_for_the_session() -> None:
    mesh = SlowMesh(2.0, present=True)
    assert 2.0 <= _open(mesh)() < 3.0 and mesh.tries == 2


def test_it_does_not_wait_for_ever() -> None:
    mesh = SlowMesh(ON_DEMAND_SECONDS + 5, present=True)
    with pytest.raises(Broken):
        _open(mesh)()
    assert mesh.tries == 2


def test_who_is_away_is_not_waited_for() -> None:
    mesh = SlowMesh(2.0, present=False)
    with pytest.raises(Broken):
        _open(mesh)()
    assert mesh.tries == 1
