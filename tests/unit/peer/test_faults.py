"""How many failures a peer may cause before its links are refused, and for how long."""

from meshd.base.shares import FAULTS
from meshd.identity.keys import PeerId
from meshd.peer.faults import MAX_PEERS, REFUSED_SECONDS, Faults

PEER, OTHER = PeerId(bytes(32)), PeerId(bytes(31) + b"\1")


def test_a_few_failures_are_put_up_with() -> None:
    faults = Faults()
    for _ in range(int(FAULTS.burst)):
        faults.blame(PEER, 0.0)
    assert not faults.refuses(PEER, 0.0)


def test_who_goes_on_is_refused_for_a_while_and_nobody_else() -> None:
    faults = Faults()
    for _ in range(int(FAULTS.burst) + 1):
        faults.blame(PEER, 10.0)
    assert faults.refuses(PEER, 10.0)
    assert faults.refuses(PEER, 9.0 + REFUSED_SECONDS)
    assert not faults.refuses(PEER, 10.0 + REFUSED_SECONDS)
    assert not faults.refuses(OTHER, 10.0)


def test_failures_now_and_then_are_forgotten() -> None:
    faults = Faults()
    for number in range(1000):
        now = number / FAULTS.per_second
        faults.blame(PEER, now)
        assert not faults.refuses(PEER, now)


def test_few_peers_are_remembered() -> None:
    faults = Faults()
    for number in range(10_000):
        for _ in range(int(FAULTS.burst) + 1):
            faults.blame(PeerId(number.to_bytes(32, "big")), 0.0)
    assert len(faults._buckets) == len(faults._until) == MAX_PEERS
