"""Letters that wait: few, small, not for long."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.relay.switchboard import LETTER_BYTES, SMALL, Mailroom
from meshd.wire.relay import Mail

FULL = 30 + LETTER_BYTES
LIMITS = replace(SMALL, mail_of_one=3, mail_of_sender=6, mail_bytes=4 * FULL, mail_seconds=10.0)


def letter(number: int, size: int = 10, *, by: int = 0) -> Mail:
    return Mail(bytes([by]) * 32, b"", bytes([number]) * size)


def test_letters_come_in_order_and_once() -> None:
    room: Mailroom[str] = Mailroom(LIMITS)
    room.keep("a", letter(1), 0, host="h")
    room.keep("a", letter(2), 1, host="h")
    room.keep("b", letter(3), 1, host="h")
    assert room.take("a", 2) == [letter(1), letter(2)]
    assert room.take("a", 2) == []
    assert room.held_bytes == 10 + LETTER_BYTES


def test_the_eldest_goes_when_one_has_too_many() -> None:
    room: Mailroom[str] = Mailroom(LIMITS)
    for number in range(5):
        room.keep("a", letter(number), 0, host="h")
    assert room.take("a", 0) == [letter(2), letter(3), letter(4)]
    assert (room.dropped, room.held_bytes) == (2, 0)


def test_all_together_are_bounded() -> None:
    room: Mailroom[int] = Mailroom(LIMITS)
    for number in range(20):
        room.keep(number, letter(number, 30), 0, host="h")
        assert room.held_bytes <= LIMITS.mail_bytes
    assert [bool(room.take(number, 0)) for number in range(20)] == [False] * 16 + [True] * 4


def test_a_letter_larger_than_the_room_is_dropped() -> None:
    room: Mailroom[int] = Mailroom(LIMITS)
    room.keep(1, letter(1, 5 * FULL), 0, host="h")
    assert (room.held_bytes, room.take(1, 0)) == (0, [])


def test_old_letters_go() -> None:
    room: Mailroom[str] = Mailroom(LIMITS)
    room.keep("a", letter(1), 0, host="h")
    room.keep("a", letter(2), 5, host="h")
    room.sweep(10)
    assert room.take("a", 10) == [letter(2)]
    room.keep("b", letter(3), 0, host="h")
    assert room.take("b", 10) == []
    assert room.held_bytes == 0


def test_what_nobody_will_fetch_is_forgotten() -> None:
    room: Mailroom[str] = Mailroom(LIMITS)
    room.keep("a", letter(1), 0, host="h")
    room.forget("a")
    room.forget("a")
    assert (room.held_bytes, room.take("a", 0)) == (0, [])


def test_a_sender_displaces_its_own_letters_only() -> None:
    """In the room as a whole, and in the box of one node."""
    room: Mailroom[int] = Mailroom(replace(SMALL, mail_bytes=64 * FULL))
    for number in range(8):
        room.keep(number, letter(number, 30, by=number), 0, host=f"honest {number}")
    for number in range(1000):
        room.keep(100 + number % 50, letter(7, 30, by=99), 0, host="hostile")
        room.keep(0, letter(7, 30, by=99), 0, host="hostile")
    assert room.held_bytes <= 64 * FULL
    for number in range(8):
        assert letter(number, 30, by=number) in room.take(number, 0)


def test_an_address_with_many_keys_displaces_its_own_letters_only() -> None:
    room: Mailroom[int] = Mailroom(replace(SMALL, mail_bytes=64 * FULL))
    for number in range(8):
        room.keep(number, letter(number, 30, by=number), 0, host=f"honest {number}")
    for number in range(1000):
        room.keep(100 + number, letter(7, 30, by=100 + number % 100), 0, host="hostile")
        room.keep(number % 8, letter(7, 30, by=100 + number % 100), 0, host="hostile")
    for number in range(8):
        assert letter(number, 30, by=number) in room.take(number, 0)


def test_empty_letters_take_room_too() -> None:
    room: Mailroom[int] = Mailroom(LIMITS)
    for number in range(1000):
        room.keep(number, letter(number % 256, 0), 0, host="h")
    assert sum(bool(room.take(number, 0)) for number in range(1000)) <= LIMITS.mail_bytes // LETTER_BYTES


LETTERS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 3), st.integers(0, 60)), max_size=60
)


@given(LETTERS, st.lists(st.integers(0, 5), max_size=4))
@settings(deadline=None)
def test_the_room_is_within_its_limits_and_knows_what_it_holds(
    letters: list[tuple[int, int, int, int]], fetched: list[int]
) -> None:
    room: Mailroom[int] = Mailroom(LIMITS)
    for at, (to, by, host, size) in enumerate(letters):
        room.keep(to, letter(by, size, by=by), at / 4, host=str(host))
        assert room.held_bytes <= LIMITS.mail_bytes
    for to in fetched:
        assert len(room.take(to, len(letters) / 4)) <= LIMITS.mail_of_one
    left = [mail for to in range(6) for mail in room.take(to, len(letters) / 4)]
    assert len(left) <= 5 * LIMITS.mail_of_sender * 4
    assert room.held_bytes == 0
