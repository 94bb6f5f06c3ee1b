"""Which piece is fetched from whom: nothing twice without need, nothing forgotten, no liar asked again."""

import random

from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from meshd.library.members.piece_plan import COPY_SECONDS, PiecePlan
from meshd.model.weights_index import Piece, PieceIndex

FILES = st.integers(1, 12)


def index_of(files: int) -> PieceIndex:
    """So many files of one piece each."""
    data = [bytes([number]) * 10 for number in range(files)]
    return PieceIndex((10,) * files, b"".join(blake3(one).digest() for one in data))


def data_of(number: int) -> bytes:
    return bytes([number]) * 10


def next_of(plan: PiecePlan, holder: str, now: float = 0.0) -> Piece | None:
    """It is asked for at once."""
    if (piece := plan.next(holder, now)) is not None:
        plan.asked(holder, piece.number, now)
    return piece


def take(plan: PiecePlan, holder: str, number: int) -> bool:
    """It came, and is written."""
    if not plan.arrived(holder, number, data_of(number)):
        return False
    if plan.wants(number):
        plan.written(number)
    return True


def test_two_share_the_pieces() -> None:
    plan = PiecePlan(index_of(4))
    asked = [next_of(plan, holder) for holder in ("a", "b", "a", "b")]
    assert [piece.number for piece in asked if piece is not None] == [0, 1, 2, 3]


def test_what_is_there_is_not_asked_for() -> None:
    plan = PiecePlan(index_of(4), present={0, 2})
    assert plan.done_bytes == 20
    numbers = [piece.number for _ in range(2) if (piece := next_of(plan, "a")) is not None]
    assert numbers == [1, 3] and next_of(plan, "a") is None and not plan.is_done
    for number in numbers:
        assert take(plan, "a", number)
    assert plan.done_bytes == 40


def test_a_wrong_piece_goes_to_somebody_else() -> None:
    plan = PiecePlan(index_of(2))
    for _ in range(2):
        next_of(plan, "liar")
    assert not plan.arrived("liar", 0, b"wrong")
    assert plan.liars == {"liar"}
    assert next_of(plan, "liar") is None
    assert {piece.number for _ in range(2) if (piece := next_of(plan, "good"))} == {0, 1}


def test_a_stalled_holder_delays_nobody_and_counts_once() -> None:
    plan = PiecePlan(index_of(2))
    assert next_of(plan, "slow") is not None and next_of(plan, "fast") is not None
    assert take(plan, "fast", 1)
    late = next_of(plan, "fast")
    assert late is not None and late.number == 0 and next_of(plan, "third") is None, "two owe it"
    assert take(plan, "fast", 0) and plan.is_done
    assert plan.arrived("slow", 0, data_of(0)) and not plan.wants(0)
    assert plan.done_bytes == 20


def test_any_number_of_stalled_holders_cannot_keep_the_others_from_a_piece() -> None:
    plan, now = PiecePlan(index_of(2)), 0.0
    for holder in ("stalled 1", "stalled 2") * 2:  # two colluding ones owe both pieces
        assert next_of(plan, holder) is not None
    for holder in ("stalled 3", "stalled 4"):  # and more of them are there first, each time
        assert next_of(plan, "honest", now) is None, "nobody is asked for the same without need"
        now += COPY_SECONDS
        while next_of(plan, holder, now) is not None:
            pass
    now += COPY_SECONDS
    while (piece := next_of(plan, "honest", now)) is not None:
        assert take(plan, "honest", piece.number)
    assert plan.is_done


def test_a_piece_that_waits_for_the_users_rate_is_asked_of_nobody_else() -> None:
    plan = PiecePlan(index_of(1))
    for holder in ("a", "b"):
        assert plan.next(holder, 0.0) is not None
    assert plan.next("c", 1000.0) is None
    plan.asked("a", 0, 500.0)
    assert plan.next("c", 1000.0) is None, "one waits still"
    plan.asked("b", 0, 1000.0)
    assert plan.next("c", 1000.0 + COPY_SECONDS - 1) is None
    assert plan.next("c", 1000.0 + COPY_SECONDS) is not None


def test_one_that_is_lost_while_it_waits_for_the_rate_keeps_no_copy_from_others() -> None:
    plan = PiecePlan(index_of(1))
    for holder in ("stalled 1", "stalled 2"):
        assert next_of(plan, holder, 0.0) is not None
    assert plan.next("gone", COPY_SECONDS) is not None
    plan.lost("gone")
    plan.asked("gone", 0, COPY_SECONDS)  # it was about to be
    assert plan.next("honest", COPY_SECONDS) is not None


def test_what_a_lost_holder_owed_is_asked_for_first() -> None:
    plan = PiecePlan(index_of(5))
    for _ in range(2):
        next_of(plan, "gone")
    plan.lost("gone")
    numbers = [piece.number for _ in range(5) if (piece := next_of(plan, "a"))]
    assert sorted(numbers[:2]) == [0, 1] and sorted(numbers) == [0, 1, 2, 3, 4]


@given(FILES, st.sets(st.integers(0, 11)), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_piece_arrives_while_one_holder_is_honest(
    files: int, present: set[int], holders: int, rng: random.Random
) -> None:
    """Others lie, stall and leave at any moment."""
    plan = PiecePlan(index_of(files), present={number for number in present if number < files})
    owed: dict[str, list[int]] = {f"h{number}": [] for number in range(holders)}
    for _ in range(2000):
        if plan.is_done:
            break
        holder = rng.choice(list(owed))
        honest = holder == "h0"
        if len(owed[holder]) < 2 and (piece := next_of(plan, holder)) is not None:
            assert piece.number not in owed[holder]
            owed[holder].append(piece.number)
        elif owed[holder] and (honest or rng.random() < 0.3):
            number = owed[holder].pop(0)
            if honest or rng.random() < 0.5:
                assert take(plan, holder, number)
            else:
                assert not plan.arrived(holder, number, b"lie")
                owed[holder] = []
        elif not honest and rng.random() < 0.2:
            plan.lost(holder)
            owed[holder] = []
    assert plan.is_done and plan.done_bytes == 10 * files


@given(FILES, st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_only_what_is_wanted_is_asked_for_and_counted(
    files: int, present: set[int], wanted: set[int]
) -> None:
    present, wanted = ({one for one in numbers if one < files} for numbers in (present, wanted))
    plan = PiecePlan(index_of(files), present, wanted=wanted)
    assert plan.done_bytes == 10 * len(present & wanted)
    asked = []
    while (piece := next_of(plan, "a")) is not None:
        asked.append(piece.number)
        assert take(plan, "a", piece.number)
    assert asked == sorted(wanted - present) and plan.is_done
    assert plan.done_bytes == 10 * len(wanted)
