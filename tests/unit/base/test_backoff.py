"""Whom to ask: nobody keeps others from being asked by coming first."""

import random

from meshd.base.backoff import AGAIN, MOST_ASKED, Asked

SILENT, HONEST = ["a", "b", "c", "d", "e"], "z"
ALL = [*SILENT, HONEST]


def asked(seed: int = 0) -> Asked[str, str]:
    return Asked(random.Random(seed).random)


def test_who_comes_first_in_the_list_is_not_asked_first_each_time() -> None:
    one = asked()
    assert {one.order(ALL, "it", 100)[0] for _ in range(200)} == set(ALL)


def test_those_that_say_nothing_are_behind_the_others_until_all_were_asked() -> None:
    for seed in range(50):
        one = asked(seed)
        rounds = 0
        while HONEST not in (few := one.order(ALL, "it", 100)[:3]):
            rounds += 1
            for who in few:
                one.failed(who, "it", 100)
        assert rounds <= 1


def test_who_helped_is_asked_first_until_it_fails() -> None:
    one = asked()
    one.helped(HONEST, "it")
    assert all(one.order(ALL, "it", 100)[0] == HONEST for _ in range(50))
    assert {one.order(ALL, "else", 100)[0] for _ in range(200)} == set(ALL)
    one.failed(HONEST, "it", 100)
    assert all(one.order(ALL, "it", 100)[-1] == HONEST for _ in range(50))
    assert one.order(ALL, "it", 100 + AGAIN.first)[-1] in ALL
    assert HONEST in {one.order(ALL, "it", 100 + AGAIN.first)[0] for _ in range(200)}, "rested"


def test_what_is_remembered_is_bounded() -> None:
    peers: Asked[str, int] = Asked(lambda: 0.5)  # no chance: who is not remembered stays in its place
    for number in range(2 * MOST_ASKED):
        peers.failed("failed", number, 100)
        peers.helped("helped", number)
    orders = [peers.order(("failed", "new", "helped"), number, 100) for number in range(2 * MOST_ASKED)]
    assert orders[:MOST_ASKED] == [["failed", "new", "helped"]] * MOST_ASKED
    assert orders[MOST_ASKED:] == [["helped", "new", "failed"]] * MOST_ASKED
