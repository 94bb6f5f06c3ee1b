"""Whose attempt goes on, and who may speak in it."""

from meshd.identity.keys import KeyPair, PeerId
from meshd.link.attempts import MAX_ANSWERED, MAX_ANSWERED_OF_ONE, Attempts, PunchAttempt, PunchVerdict
from meshd.wire.signal import Punching, PunchReady

PEERS = sorted(KeyPair.from_seed(bytes([n]) * 32).peer for n in range(1, 8))
LOW, OWN, HIGH, *OTHERS = PEERS
FIRST, SECOND = b"1" * 16, b"2" * 16
READY = PunchReady(attempt=FIRST, candidates=(), waited_ms=0)


def test_nobody_speaks_in_anothers_attempt() -> None:
    heard: list[Punching] = []
    attempts: Attempts[Punching] = Attempts(OWN)
    attempts.begin(FIRST, LOW, heard.append)
    attempts.heard(HIGH, FIRST, READY)
    attempts.heard(LOW, SECOND, READY)
    assert not heard
    attempts.heard(LOW, FIRST, READY)
    assert heard == [READY]
    attempts.end(FIRST)
    attempts.heard(LOW, FIRST, READY)
    assert heard == [READY]
    attempts.end(FIRST)


def crossed(own: PeerId, other: PeerId) -> tuple[list[str], PunchAttempt[Punching] | PunchVerdict | None]:
    """We have knocked at `other`, and its knock comes."""
    ways: list[str] = []
    attempts: Attempts[Punching] = Attempts(own)
    attempts.begin(FIRST, other, lambda _: None).give_way = lambda: ways.append("given")
    return ways, attempts.answer(SECOND, other, lambda _: None)


def test_of_two_knocks_that_cross_the_higher_ones_goes_on() -> None:
    ways, answer = crossed(own=HIGH, other=LOW)
    assert answer is PunchVerdict.GLARE
    assert not ways
    ways, answer = crossed(own=LOW, other=HIGH)
    assert isinstance(answer, PunchAttempt)
    assert ways == ["given"]


def test_one_that_has_yielded_is_in_nobodys_way() -> None:
    attempts: Attempts[Punching] = Attempts(HIGH)
    attempts.begin(FIRST, LOW, lambda _: None).yielded = True
    assert isinstance(attempts.answer(SECOND, LOW, lambda _: None), PunchAttempt)


def test_a_knock_at_somebody_else_does_not_cross() -> None:
    attempts: Attempts[Punching] = Attempts(HIGH)
    attempts.begin(FIRST, LOW, lambda _: None)
    assert isinstance(attempts.answer(SECOND, OWN, lambda _: None), PunchAttempt)


def test_a_copy_of_a_knock_is_not_answered_twice() -> None:
    attempts: Attempts[Punching] = Attempts(OWN)
    assert isinstance(attempts.answer(FIRST, LOW, lambda _: None), PunchAttempt)
    assert attempts.answer(FIRST, LOW, lambda _: None) is None
    assert len(attempts) == 1


def test_there_are_so_many_attempts_and_no_more() -> None:
    attempts: Attempts[Punching] = Attempts(OWN)
    numbers = iter(range(1, 100))

    def knock(peer: PeerId) -> PunchAttempt[Punching] | PunchVerdict | None:
        return attempts.answer(next(numbers).to_bytes(16, "big"), peer, lambda _: None)

    for _ in range(MAX_ANSWERED_OF_ONE):
        assert isinstance(knock(LOW), PunchAttempt)
    assert knock(LOW) is PunchVerdict.BUSY
    for _ in range(MAX_ANSWERED - MAX_ANSWERED_OF_ONE):
        assert isinstance(knock(HIGH), PunchAttempt)
    assert knock(OTHERS[0]) is PunchVerdict.BUSY
    attempts.end((1).to_bytes(16, "big"))
    assert isinstance(knock(OTHERS[0]), PunchAttempt)
