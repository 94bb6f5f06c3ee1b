"""Which workers are left out, for how long, and when they are tried again."""

from dataclasses import replace

from meshd.peer.interface import PeerState, PeerStatus
from meshd.role.standing import FIRST_SECONDS, MOST_SECONDS, TRIES, Standings

from tests.unit.identity.cast import GUEST, WORKER

BAD = PeerStatus(
    peer=WORKER.peer,
    name="bad",
    role="worker",
    state=PeerState.CONNECTED,
    paths=(),
    native=None,
    software="",
    resumes=0,
    since=1.0,
    last_error="",
    clock_offset=None,
)
GOOD = replace(BAD, peer=GUEST.peer, name="good")


def test_a_first_failure_costs_nothing_and_the_second_a_time_out() -> None:
    standings = Standings()
    standings.failed(BAD, "it crashed", 100.0)
    assert standings.why_not(BAD, 100.0) is None
    assert standings.next_try([BAD, GOOD], 100.0) is None
    standings.failed(BAD, "it crashed", 110.0)
    why = standings.why_not(BAD, 110.0) or ""
    assert "bad" in why and "30 s" in why and "2 tries" in why and "it crashed" in why
    assert standings.why_not(GOOD, 110.0) is None
    assert standings.next_try([BAD, GOOD], 110.0) == 110.0 + FIRST_SECONDS
    assert standings.why_not(BAD, 110.0 + FIRST_SECONDS) is None


def test_after_the_time_out_one_failure_is_enough_for_a_longer_one() -> None:
    standings = Standings()
    seconds = []
    for _ in range(TRIES + 40):
        standings.failed(BAD, "again", 0.0)
        if (until := standings.next_try([BAD], 0.0)) is not None:
            seconds.append(until)
    assert seconds[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    assert max(seconds) == MOST_SECONDS


def test_reconnecting_and_working_wipe_the_slate() -> None:
    for forgive in ("reconnect", "work"):
        standings = Standings()
        for _ in range(TRIES):
            standings.failed(BAD, "it crashed", 0.0)
        assert standings.why_not(BAD, 0.0)
        now = BAD
        if forgive == "reconnect":
            now = replace(BAD, since=2.0)
        else:
            standings.worked([BAD.peer])
        assert standings.why_not(now, 0.0) is None
        standings.failed(now, "it crashed", 0.0)
        assert standings.why_not(now, 0.0) is None  # a first failure again
