"""Unproven connections: bounded, and who has many addresses or one displaces its own kind."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.unproven_connections import Standing, UnprovenConnections


class Guests:
    """Counts who was sent away; of several, the oldest goes (`pick` 0) or the newest that may."""

    def __init__(self, *, most: int, most_of_one: int, pick: int = 0) -> None:
        self.unproven = UnprovenConnections(
            most=most, most_of_one=most_of_one, below=lambda count: min(pick, count - 1)
        )
        self.away: list[int] = []

    def arrive(self, number: int, host: str, standing: Standing = Standing.STRANGER) -> None:
        self.unproven.arrive(number, host=host, send_away=lambda: self.away.append(number), standing=standing)


def test_an_address_with_all_its_places_displaces_its_own() -> None:
    guests = Guests(most=10, most_of_one=2)
    for number, host in enumerate(["1.1.1.1", "2.2.2.2", "1.1.1.1", "1.1.1.1"]):
        guests.arrive(number, host)
    assert guests.away == [0]
    assert len(guests.unproven) == 3


def test_the_network_with_most_connections_loses_one_when_it_is_full() -> None:
    guests = Guests(most=4, most_of_one=2)
    guests.arrive(100, "9.9.9.9")  # the oldest of all, and alone
    for number in range(10):
        guests.arrive(number, f"1.1.1.{number}")
    guests.arrive(200, "8.8.8.8")
    assert guests.away == [0, 1, 2, 3, 4, 5, 6, 7]
    assert guests.unproven.sent_away == 8


def test_of_that_network_the_address_with_most_loses_one() -> None:
    guests = Guests(most=4, most_of_one=3)
    for number, host in enumerate(["1.1.1.1", "1.1.1.2", "1.1.1.2", "1.1.1.3", "1.1.1.4"]):
        guests.arrive(number, host)
    assert guests.away == [1]


def test_the_newer_half_is_never_sent_away() -> None:
    guests = Guests(most=8, most_of_one=2, pick=1000)
    for number in range(9):
        guests.arrive(number, f"1.{number}.1.1")
    assert guests.away == [3]


def test_a_standing_displaces_only_its_own() -> None:
    guests = Guests(most=2, most_of_one=2)
    guests.arrive(1, "1.1.1.1", Standing.KNOWN_ADDRESS)
    guests.arrive(2, "1.1.1.2")
    guests.unproven.promote(2)
    for number in range(100, 200):
        guests.arrive(number, f"2.{number}.1.1")
    assert not {1, 2} & set(guests.away)
    assert len(guests.unproven) == 4


def test_the_marked_share_their_places_too() -> None:
    guests = Guests(most=2, most_of_one=2)
    for number in range(4):
        guests.arrive(number, f"1.{number}.1.1")
        guests.unproven.promote(number)
    assert guests.away == [0, 1]
    guests.unproven.promote(0)  # it has gone
    assert len(guests.unproven) == 2


def test_it_is_crowded_for_strangers_alone() -> None:
    guests = Guests(most=2, most_of_one=2)
    guests.arrive(1, "1.1.1.1")
    assert not guests.unproven.is_crowded_for(1)
    guests.arrive(2, "1.1.1.2")
    guests.arrive(3, "1.1.1.3", Standing.KNOWN_ADDRESS)
    assert [guests.unproven.is_crowded_for(number) for number in (1, 2, 3)] == [True, True, False]
    guests.unproven.promote(2)
    assert not guests.unproven.is_crowded_for(1)


def test_who_has_left_makes_room() -> None:
    guests = Guests(most=2, most_of_one=2)
    guests.arrive(1, "1.1.1.1")
    guests.arrive(2, "1.1.1.2")
    guests.unproven.leave(1)
    guests.unproven.leave(1)
    guests.arrive(3, "1.1.1.3")
    assert guests.away == []


def test_an_ipv6_network_is_one_address() -> None:
    guests = Guests(most=10, most_of_one=2)
    for number, host in enumerate(["2001:db8::1", "2001:db8::2%eth0", "2001:db8::3", "2001:db8:0:1::1"]):
        guests.arrive(number, host)
    assert guests.away == [0]


def test_an_ipv6_site_is_one_network() -> None:
    guests = Guests(most=3, most_of_one=2)
    for number, host in enumerate(["2001:db8:1::1", "2001:db8:2:1::1", "2001:db8:2:2::1", "2001:db8:3::1"]):
        guests.arrive(number, host)
    assert guests.away == [1]


hosts = st.sampled_from(["1.1.1.1", "1.1.1.2", "2001:db8::1", "2001:db8::2", "::ffff:1.1.1.1", "", "odd"])
step = st.tuples(st.sampled_from(["comes", "goes", "shows a mark"]), st.integers(0, 30), hosts)


@given(st.lists(st.tuples(step, st.sampled_from(Standing)), max_size=100), st.integers(0, 10))
def test_never_more_than_it_may_hold(steps: list[tuple[tuple[str, int, str], Standing]], pick: int) -> None:
    guests = Guests(most=6, most_of_one=3, pick=pick)
    there: set[int] = set()
    for number, ((what, other, host), standing) in enumerate(steps):
        if what == "comes":
            guests.arrive(1000 + number, host, standing)
            there.add(1000 + number)
            assert 1000 + number not in guests.away
        elif other < len(there):
            guest = sorted(there)[other]
            if what == "goes":
                guests.unproven.leave(guest)
                there.discard(guest)
            else:
                guests.unproven.promote(guest)
        there -= set(guests.away)
        assert len(guests.unproven) == len(there) <= 6 * len(Standing)
    assert len(set(guests.away)) == len(guests.away)
