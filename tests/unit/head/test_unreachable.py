"""From when on a worker in use counts as out of reach."""

import asyncio

import pytest
from meshd.base.tasks import Owner
from meshd.gateway.interface import Readiness
from meshd.head.leases import LATE_SECONDS, PeerPatience, as_reached, why_degraded
from meshd.identity.keys import PeerId
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState, PeerStatus

from tests.unit.head.fake_mesh import Net

pytestmark = pytest.mark.virtual

ONE, OTHER = PeerId(bytes([1]) * 32), PeerId(bytes([2]) * 32)
USED = {ONE, OTHER}


def _peer(peer: PeerId, name: str, state: PeerState = PeerState.CONNECTED, since: float = 0.0) -> PeerStatus:
    return PeerStatus(
        peer=peer,
        name=name,
        role="worker",
        state=state,
        paths=(),
        native=None,
        software="",
        resumes=0,
        since=since,
        last_error="",
        clock_offset=None,
    )


def test_a_short_pause_is_not_told() -> None:
    peers = [_peer(ONE, "one", PeerState.SUSPENDED, 100.0), _peer(OTHER, "other")]
    assert why_degraded(peers, USED, 109.9) == ""
    assert why_degraded(peers, USED, 110.0) == "no connection to worker one for 10 s"


def test_each_that_is_silent_is_named() -> None:
    peers = [_peer(ONE, "one", PeerState.SUSPENDED, 100.0), _peer(OTHER, "other", PeerState.SUSPENDED, 90.0)]
    told = "no connection to worker one for 12 s; no connection to worker other for 22 s"
    assert why_degraded(peers, USED, 112.4) == told


def test_others_than_those_in_use_do_not_matter() -> None:
    assert why_degraded([_peer(ONE, "one", PeerState.SUSPENDED)], {OTHER}, 500.0) == ""


@pytest.mark.parametrize("state", [state for state in PeerState if state is not PeerState.SUSPENDED])
def test_a_worker_with_a_connection_or_without_a_session_is_not_silent(state: PeerState) -> None:
    assert why_degraded([_peer(ONE, "one", state)], USED, 500.0) == ""


def _first_given_up(away: int, back: int, *, grace: float = 120.0, until: int = 3600) -> int | None:
    """When a worker that comes and goes in this way is given up; looked at each second."""
    patience = PeerPatience(grace, 0.0)
    for now in range(1, until):
        state = PeerState.SUSPENDED if (now - 1) % (away + back) < away else PeerState.CONNECTED
        if patience.look([_peer(ONE, "one", state), _peer(OTHER, "other")], USED, float(now)) is not None:
            return now
    return None


def test_a_worker_that_is_back_for_moments_only_is_given_up_soon_after_the_grace() -> None:
    assert _first_given_up(119, 1) == 120 + 1 + 4 + LATE_SECONDS
    assert _first_given_up(30, 1, grace=60.0) == 60 + 2 + 8 + LATE_SECONDS


def test_a_worker_that_makes_up_for_its_gaps_is_kept() -> None:
    assert _first_given_up(100, 25) is None
    assert _first_given_up(4, 1) is None


def test_one_gap_alone_is_the_sessions_to_decide() -> None:
    assert _first_given_up(120, 3600) is None


def test_who_takes_no_part_is_not_waited_for() -> None:
    patience = PeerPatience(10.0, 0.0)
    for now in range(1, 100):
        assert patience.look([_peer(ONE, "one", PeerState.SUSPENDED)], {OTHER}, float(now)) is None


async def test_a_load_that_waits_for_a_silent_worker_says_so() -> None:
    async with Owner() as owner:
        net = Net(owner)
        head, garage = net.mesh("head", "serve"), net.mesh("garage")
        loading, used = Readiness(ModelState.LOADING, "asking garage"), [garage.key.peer]
        assert as_reached(loading, head, used) == loading
        garage.say(PeerState.SUSPENDED)
        garage.since = asyncio.get_running_loop().time() - 14.0
        now = as_reached(loading, head, used)
        assert now.state is ModelState.LOADING
        assert now.reason == "asking garage; no connection to worker garage for 14 s"
        owner.cancel()
