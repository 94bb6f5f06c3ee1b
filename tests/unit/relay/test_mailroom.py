"""Letters that wait: few, small, not for long."""

from dataclasses import replace

from meshd.relay.limits import SMALL
from meshd.relay.mailroom import Mailroom
from meshd.wire.relay import Mail

LIMITS = replace(SMALL, mail_of_one=3, mail_bytes=100, mail_seconds=10.0)


def letter(number: int, size: int = 10) -> Mail:
    return Mail(bytes(32), b"", bytes([number]) * size)


def test_letters_come_in_order_and_once() -> None:
    room: Mailroom[str] = Mailroom(LIMITS)
    room.keep("a", letter(1), 0)
    room.keep("a", letter(2), 1)
    room.keep("b", letter(3), 1)
    assert room.take("a", 2) == [letter(1), letter(2)]
    assert room.take("a", 2) == []
    assert room.held_bytes == 10


def test_the_eldest_goes_when_one_has_too_many() -> None:
    room: Mailroom[str] = Mailroom(LIMITS)
    for number in range(5):
        room.keep("a", letter(number), 0)
    assert room.take("a", 0) == [letter(2), letter(3), letter(4)]
    assert (room.dropped, room.held_bytes) == (2, 0)


def test_all_together_are_bounded() -> None:
    room: Mailroom[int] = Mailroom(LIMITS)
    for number in range(20):
        room.keep(number, letter(number, 30), 0)
        assert room.held_bytes <= 100
    assert [bool(room.take(number, 0)) for number in range(20)] == [False] * 17 + [True] * 3


def test_a_letter_larger_than_the_room_is_dropped() -> None:
    room: Mailroom[int] = Mailroom(LIMITS)
    room.keep(1, letter(1, 101), 0)
    assert (room.held_bytes, room.take(1, 0)) == (0, [])


def test_old_letters_go() -> None:
    room: Mailroom[str] = Mailroom(LIMITS)
    room.keep("a", letter(1), 0)
    room.keep("a", letter(2), 5)
    room.sweep(10)
    assert room.take("a", 10) == [letter(2)]
    room.keep("b", letter(3), 0)
    assert room.take("b", 10) == []
    assert room.held_bytes == 0


def test_what_nobody_will_fetch_is_forgotten() -> None:
    room: Mailroom[str] = Mailroom(LIMITS)
    room.keep("a", letter(1), 0)
    room.forget("a")
    room.forget("a")
    assert (room.held_bytes, room.take("a", 0)) == (0, [])
