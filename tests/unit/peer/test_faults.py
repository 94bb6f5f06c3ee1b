"""How many failures a peer may cause before its links are refused, and for how long."""

from meshd.base.peer_limits import FAULTS, FAULTS_KNOWN
from meshd.identity.keys import PeerId
from meshd.peer.faults import REFUSED_SECONDS, TOLD_MINUTES, Faults

PEER, OTHER = PeerId(bytes(32)), PeerId(bytes(31) + b"\1")


def test_a_few_failures_are_put_up_with() -> None:
    faults = Faults()
    for _ in range(int(FAULTS.burst)):
        faults.blame(PEER, 0.0, "it failed")
    assert not faults.refuses(PEER, 0.0)


def test_who_goes_on_is_refused_for_a_while_and_nobody_else() -> None:
    faults = Faults()
    for _ in range(int(FAULTS.burst) + 1):
        faults.blame(PEER, 10.0, "it failed")
    assert faults.refuses(PEER, 10.0)
    assert faults.refuses(PEER, 9.0 + REFUSED_SECONDS)
    assert not faults.refuses(PEER, 10.0 + REFUSED_SECONDS)
    assert not faults.refuses(OTHER, 10.0)


def test_failures_now_and_then_are_forgotten() -> None:
    faults = Faults()
    for number in range(1000):
        now = number / FAULTS.per_second
        faults.blame(PEER, now, "it failed")
        assert not faults.refuses(PEER, now)


def test_few_peers_are_remembered() -> None:
    faults = Faults()
    for number in range(10_000):
        for _ in range(int(FAULTS.burst) + 1):
            faults.blame(PeerId(number.to_bytes(32, "big")), 0.0, "it failed")
    assert len(faults._buckets) == len(faults._until) == len(faults._records) == FAULTS_KNOWN.most


def test_people_are_told_of_the_last_hour() -> None:
    faults, minute = Faults(), 60.0
    assert faults.told(PEER, 0.0) == (0, "")
    for number in range(3 * TOLD_MINUTES):
        faults.broke(PEER, number * minute, f"broken {number}")
        faults.broke(PEER, number * minute, f"broken again {number}")
    now = (3 * TOLD_MINUTES - 1) * minute
    assert faults.told(PEER, now) == (2 * TOLD_MINUTES, "broken again 179")
    assert faults.told(PEER, now + TOLD_MINUTES / 2 * minute) == (TOLD_MINUTES, "broken again 179")
    assert faults.told(PEER, now + TOLD_MINUTES * minute) == (0, "")
    assert faults.told(OTHER, now) == (0, "")
    assert not faults.refuses(PEER, now), "a protocol violation ends a link, and no more"


def test_little_is_remembered_of_one() -> None:
    faults = Faults()
    for number in range(10_000):
        faults.broke(PEER, number / 10, "x" * 100_000)
    count, what = faults.told(PEER, 999.9)
    assert count == 10_000 and len(what) == 200
    assert len(faults._records[PEER].minutes) <= TOLD_MINUTES
