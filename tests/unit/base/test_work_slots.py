"""Places that are counted when somebody is let in."""

from meshd.base.peer_limits import Share
from meshd.base.work_slots import Slots

ALL = Share("things", 5, "node", "no more")
OF_ONE = Share("things", 3, "peer", "no more")
OF_ISSUER = Share("things", 4, "issuer", "no more")


def test_no_more_are_let_in_than_there_are_places() -> None:
    slots = Slots(ALL, OF_ONE)
    first = [slots.take("anna") for _ in range(10)]
    assert sum(one is not None for one in first) == OF_ONE.most
    second = [slots.take("bert") for _ in range(10)]
    assert sum(one is not None for one in second) == ALL.most - OF_ONE.most
    assert slots.take("carl") is None
    assert len(slots) == ALL.most


def test_a_place_is_given_back_once() -> None:
    slots = Slots(OF_ONE)
    held = [slots.take("anna") for _ in range(3)]
    assert slots.take("bert") is None
    for release in held[:1] * 4:
        assert release is not None
        release()
    assert len(slots) == 2
    assert slots.take("bert") is not None
    assert slots.take("bert") is None


def test_many_that_one_issuer_let_in_leave_places_for_others() -> None:
    slots = Slots(ALL, OF_ONE, OF_ISSUER)
    held = [slots.take(f"key {number}", "token") for number in range(10)]
    assert sum(one is not None for one in held) == OF_ISSUER.most
    assert slots.take("bert", "another") is not None
    for release in held:
        if release is not None:
            release()
    assert len(slots) == 1 and slots.take("carl", "token") is not None
