"""Paces of many, of whom those are remembered that owe."""

from meshd.base.bucket_by_key import MANY, Paces
from meshd.base.peer_limits import Rate

SLOW = Rate("things", 0.1, 2, "peer", "not done")


def test_whoever_owes_is_remembered_however_many_come() -> None:
    paces: Paces[int] = Paces(SLOW)
    for _ in range(2):
        assert paces.of(-1, 100).spend(1, 100)
    for number in range(20 * MANY):
        paces.of(number, 100)
    assert not paces.of(-1, 100).spend(1, 100)
    assert len(paces._of) <= 2 * MANY
    assert paces.of(-1, 110).spend(1, 110)
