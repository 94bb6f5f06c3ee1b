"""A node that loses its links comes back at once; one that comes and goes without end costs little."""

import asyncio
from functools import partial

import pytest
from meshd.base.errors import MeshdError, Refused
from meshd.base.peer_limits import CALLS
from meshd.identity.proof import ListenProof
from meshd.peer.interface import PeerState

from tests.sim.world import World, WorldNode, pair

RECONNECTS = 10
CALLS_MADE = 3000
PACE = 0.1


def _is_back(near: WorldNode, far: WorldNode, lost: int) -> bool:
    """Return True if it is back by the session that it had."""
    status = near.status_of(far)
    return status.state is PeerState.CONNECTED and status.resumes == lost


@pytest.mark.virtual
async def test_a_node_on_a_bad_network_gets_in_again_each_time() -> None:
    async with World() as world:
        one, other = await pair(world)
        cable = world.cable("anna", "bert")
        for lost in range(1, RECONNECTS + 1):
            cable.cut()
            for near, far in ((one, other), (other, one)):
                await near.until(partial(_is_back, near, far, lost), seconds=5)


@pytest.mark.virtual
async def test_a_member_that_comes_and_goes_is_looked_at_so_often_and_then_let_in_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = 0
    check_member = ListenProof._check_member

    def counted(self: ListenProof, fields: object, transcript: object) -> object:
        nonlocal looked_at
        looked_at += 1
        return check_member(self, fields, transcript)  # type: ignore[arg-type]

    monkeypatch.setattr(ListenProof, "_check_member", counted)
    async with World() as world:
        victim, mallory = world.node("anna"), world.node("mallory")
        mallory.knows(victim)
        victim.start()
        await asyncio.sleep(1)
        refusals: list[str] = []
        began = asyncio.get_running_loop().time()
        for _ in range(CALLS_MADE):
            try:
                link = await mallory.dialer.dial(victim.peer, [victim.place])
                await link.aclose()
            except MeshdError as error:
                refusals.append(error.code if isinstance(error, Refused) else type(error).__name__)
            await asyncio.sleep(PACE)
        passed = asyncio.get_running_loop().time() - began
        assert looked_at <= CALLS.burst + CALLS.per_second * passed + 1
        assert len(refusals) >= CALLS_MADE - looked_at and set(refusals) == {"often"}
        await asyncio.sleep(2 / CALLS.per_second)
        await (await mallory.dialer.dial(victim.peer, [victim.place])).aclose()
