"""Whose attempt goes on, and who may speak in it."""

from meshd.identity.keys import KeyPair, PeerId
from meshd.link.punch_attempts import MAX_ANSWERED, MAX_ANSWERED_OF_ONE, Attempt, Attempts
from meshd.wire.punching import Go, Knock, No, Punching, Ready

PEERS = sorted(KeyPair.from_seed(bytes([n]) * 32).peer for n in range(1, 8))
LOW, OWN, HIGH, *OTHERS = PEERS
FIRST, SECOND = b"1" * 16, b"2" * 16
READY, GO = Ready(attempt=FIRST, candidates=(), waited_ms=0), Go(attempt=FIRST, candidates=())


class Heard:
    def __init__(self) -> None:
        self.words: list[Punching] = []


def test_each_side_hears_only_the_words_meant_for_it() -> None:
    heard = Heard()
    ours, theirs = Attempts(OWN), Attempts(OWN)
    ours.begin(FIRST, LOW, heard.words.append)
    assert isinstance(theirs.answer(FIRST, LOW, heard.words.append), Attempt)
    for attempts in (ours, theirs):
        for word in (READY, GO, Knock(attempt=FIRST), No(attempt=FIRST, code="busy")):
            attempts.heard(LOW, word)
    assert heard.words == [READY, No(attempt=FIRST, code="busy"), GO, No(attempt=FIRST, code="busy")]


def test_nobody_speaks_in_anothers_attempt() -> None:
    heard = Heard()
    attempts = Attempts(OWN)
    attempts.begin(FIRST, LOW, heard.words.append)
    attempts.heard(HIGH, READY)
    attempts.heard(LOW, Ready(attempt=SECOND, candidates=(), waited_ms=0))
    attempts.end(FIRST)
    attempts.heard(LOW, READY)
    assert not heard.words
    attempts.end(FIRST)


def crossed(own: PeerId, other: PeerId) -> tuple[list[Punching], Attempt | No | None]:
    """We have knocked at `other`, and its knock comes."""
    heard = Heard()
    attempts = Attempts(own)
    attempts.begin(FIRST, other, heard.words.append)
    return heard.words, attempts.answer(SECOND, other, heard.words.append)


def test_of_two_knocks_that_cross_the_higher_ones_goes_on() -> None:
    heard, answer = crossed(own=HIGH, other=LOW)
    assert answer == No(attempt=SECOND, code="glare")
    assert not heard
    heard, answer = crossed(own=LOW, other=HIGH)
    assert isinstance(answer, Attempt)
    assert heard == [No(attempt=FIRST, code="glare")]


def test_one_that_has_yielded_is_in_nobodys_way() -> None:
    attempts = Attempts(HIGH)
    attempts.begin(FIRST, LOW, lambda _: None).yielded = True
    assert isinstance(attempts.answer(SECOND, LOW, lambda _: None), Attempt)


def test_a_knock_at_somebody_else_does_not_cross() -> None:
    attempts = Attempts(HIGH)
    attempts.begin(FIRST, LOW, lambda _: None)
    assert isinstance(attempts.answer(SECOND, OWN, lambda _: None), Attempt)


def test_a_copy_of_a_knock_is_not_answered_twice() -> None:
    attempts = Attempts(OWN)
    assert isinstance(attempts.answer(FIRST, LOW, lambda _: None), Attempt)
    assert attempts.answer(FIRST, LOW, lambda _: None) is None
    assert len(attempts) == 1


def test_there_are_so_many_attempts_and_no_more() -> None:
    attempts = Attempts(OWN)
    numbers = iter(range(1, 100))

    def knock(peer: PeerId) -> Attempt | No | None:
        return attempts.answer(next(numbers).to_bytes(16, "big"), peer, lambda _: None)

    for _ in range(MAX_ANSWERED_OF_ONE):
        assert isinstance(knock(LOW), Attempt)
    refused = knock(LOW)
    assert isinstance(refused, No)
    assert refused.code == "busy"
    for _ in range(MAX_ANSWERED - MAX_ANSWERED_OF_ONE):
        assert isinstance(knock(HIGH), Attempt)
    assert isinstance(knock(OTHERS[0]), No)
    attempts.end((1).to_bytes(16, "big"))
    assert isinstance(knock(OTHERS[0]), Attempt)
