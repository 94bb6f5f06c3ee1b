"""Unproven connections: never more than there may be, and the oldest is sent away."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.unproven_connections import UnprovenConnections


class Guests:
    """Counts who was sent away."""

    def __init__(self, unproven: UnprovenConnections) -> None:
        self.unproven = unproven
        self.away: list[int] = []

    def arrive(self, number: int, host: str) -> None:
        self.unproven.arrive(number, host=host, send_away=lambda: self.away.append(number))


def test_the_oldest_of_one_address_goes_first() -> None:
    guests = Guests(UnprovenConnections(most=10, most_of_one=2))
    for number, host in enumerate(["1.1.1.1", "2.2.2.2", "1.1.1.1", "1.1.1.1"]):
        guests.arrive(number, host)
    assert guests.away == [0]
    assert len(guests.unproven) == 3


def test_the_oldest_of_all_goes_when_it_is_full() -> None:
    guests = Guests(UnprovenConnections(most=3, most_of_one=2))
    for number in range(5):
        guests.arrive(number, f"1.1.1.{number}")
    assert guests.away == [0, 1]
    assert guests.unproven.sent_away == 2


def test_who_has_left_makes_room() -> None:
    guests = Guests(UnprovenConnections(most=2, most_of_one=2))
    guests.arrive(1, "1.1.1.1")
    guests.arrive(2, "1.1.1.2")
    guests.unproven.leave(1)
    guests.unproven.leave(1)
    guests.arrive(3, "1.1.1.3")
    assert guests.away == []


def test_an_ipv6_network_is_one_address() -> None:
    guests = Guests(UnprovenConnections(most=10, most_of_one=2))
    for number, host in enumerate(["2001:db8::1", "2001:db8::2%eth0", "2001:db8::3", "2001:db8:0:1::1"]):
        guests.arrive(number, host)
    assert guests.away == [0]


hosts = st.sampled_from(["1.1.1.1", "1.1.1.2", "2001:db8::1", "2001:db8::2", "::ffff:1.1.1.1", "", "odd"])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), hosts), max_size=100))
def test_never_more_than_it_may_hold(steps: list[tuple[bool, int, str]]) -> None:
    guests = Guests(UnprovenConnections(most=6, most_of_one=3))
    there: set[int] = set()
    for number, (comes, other, host) in enumerate(steps):
        if comes:
            guests.arrive(1000 + number, host)
            there.add(1000 + number)
        elif other < len(there):
            guest = sorted(there)[other]
            guests.unproven.leave(guest)
            there.discard(guest)
        there -= set(guests.away)
        assert len(guests.unproven) == len(there) <= 6
    assert len(set(guests.away)) == len(guests.away)
