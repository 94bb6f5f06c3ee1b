"""Parts of a token's time, and of a prompt's: they add up to what was measured, whatever they are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.time_account import (
    ComputingTime,
    PartKind,
    PartSource,
    SpentTime,
    TimeAccount,
    TokenRounds,
    WayTime,
    prompt_account,
    round_account,
    token_account,
)

SECONDS = st.floats(min_value=0, max_value=1e4, allow_nan=False)
SPENT = st.builds(
    SpentTime,
    seconds=SECONDS,
    away=SECONDS,
    held=SECONDS,
    head=st.just("desk"),
    own=st.lists(st.builds(ComputingTime, st.just("desk CPU"), SECONDS, st.just(False)), max_size=2).map(
        tuple
    ),
    workers=st.lists(st.builds(ComputingTime, st.just("attic CPU"), SECONDS, st.booleans()), max_size=4).map(
        tuple
    ),
    ways=st.lists(
        st.builds(WayTime, st.just("desk → attic"), SECONDS, SECONDS, st.booleans(), st.none() | SECONDS),
        max_size=5,
    ).map(tuple),
)


@st.composite
def rounds(draw: st.DrawFn) -> TokenRounds:
    tokens = draw(st.integers(1, 5000))
    made = draw(st.integers(1, tokens))
    return TokenRounds(tokens, made, made + draw(st.integers(0, 24)) * made)


def adds_up(account: TimeAccount) -> None:
    """The parts and the rest are the whole."""
    whole = sum(part.seconds for part in account.parts) + account.unexplained
    most = max(1.0, *(abs(part.seconds) for part in account.parts))
    assert whole == pytest.approx(account.seconds, abs=1e-6 * most)


@given(SPENT, rounds())
def test_the_parts_of_a_token_and_the_rest_are_the_whole(spent: SpentTime, made: TokenRounds) -> None:
    account = token_account(spent, made)
    assert account.seconds == pytest.approx(spent.seconds / made.tokens)
    assert (account.tokens, account.rounds) == (made.tokens, made.rounds)
    adds_up(account)
    assert all(part.seconds >= 0 for part in account.parts)


@given(SPENT, st.integers(1, 5000), st.integers(1, 5000))
def test_the_parts_of_a_round_and_the_rest_are_the_whole(spent: SpentTime, tokens: int, rounds: int) -> None:
    """A round may make several tokens, and steps of prompts make none."""
    account = round_account(spent, TokenRounds(tokens, rounds, tokens + 7))
    assert account.seconds == pytest.approx(spent.seconds / rounds)
    assert (account.tokens, account.rounds) == (tokens, rounds)
    adds_up(account)


@given(SPENT, st.integers(1, 5000), SECONDS)
def test_the_parts_of_a_prompt_and_the_rest_are_the_whole(
    spent: SpentTime, tokens: int, queue: float
) -> None:
    account = prompt_account(spent, tokens, queue)
    assert account.seconds == pytest.approx(spent.seconds + queue)
    adds_up(account)
    assert all(part.seconds >= 0 for part in account.parts if part.kind is not PartKind.AT_ONCE)


TEN = TokenRounds(10, 10, 10)


def two_workers(**changed: float) -> SpentTime:
    """Ten tokens of 100 ms; llama-server waits for 90 of them."""
    given = {"seconds": 1.0, "away": 0.9, "held": 0.0} | changed
    return SpentTime(
        seconds=given["seconds"],
        away=given["away"],
        held=given["held"],
        head="desk",
        own=(),
        workers=(ComputingTime("attic CPU", 0.2, True), ComputingTime("shed CPU", 0.3, True)),
        ways=(
            WayTime("desk → attic", 0.005, 0.0),
            WayTime("attic → shed", 0.010, 0.001),
            WayTime("shed → desk", 0.015, 0.0, is_result=True),
        ),
    )


def test_each_token_goes_all_the_ways() -> None:
    account = token_account(two_workers(), TEN)
    found = {(part.kind, part.where): part.seconds for part in account.parts}
    assert found == pytest.approx(
        {
            (PartKind.SERVER, "desk"): 0.01,
            (PartKind.COMPUTING, "attic CPU"): 0.02,
            (PartKind.COMPUTING, "shed CPU"): 0.03,
            (PartKind.WAY, "desk → attic"): 0.005,
            (PartKind.WAY, "attic → shed"): 0.011,
            (PartKind.WAY, "shed → desk"): 0.015,
            (PartKind.WAITING, "daemon of desk"): 0.0,
        }
    )
    assert account.unexplained == pytest.approx(0.009)


def test_of_several_answers_each_round_goes_the_ways_once() -> None:
    """Thirty tokens of three answers, in ten rounds."""
    account = round_account(two_workers(), TokenRounds(30, 10, 30))
    found = {part.where: part.seconds for part in account.parts}
    assert found["attic CPU"] == pytest.approx(0.02) and found["desk → attic"] == pytest.approx(0.005)
    assert found["attic → shed"] == pytest.approx(0.010 + 3 * 0.001), "the bytes of three tokens"
    assert account.seconds == pytest.approx(0.1)


def test_a_round_of_several_tokens_goes_the_ways_once() -> None:
    """Ten tokens in four rounds, which checked eight drafted ones."""
    spent = two_workers()
    account = token_account(spent, TokenRounds(10, 4, 12))
    ways = [part.seconds for part in account.parts if part.kind is PartKind.WAY]
    assert ways == pytest.approx([0.4 * 0.005, 0.4 * 0.010 + 1.2 * 0.001, 0.4 * 0.015])
    computing = [part.seconds for part in account.parts if part.kind is PartKind.COMPUTING]
    assert computing == pytest.approx([0.02, 0.03]), "as measured over all of them"
    far = (spent.ways[0], replace(spent.ways[1], ordered=0.09), spent.ways[2])
    [order] = [
        part
        for part in token_account(replace(spent, ways=far), TokenRounds(10, 4, 12)).parts
        if part.where == "shed CPU for its order"
    ]
    there = 0.005 + 0.2 / 4 + 0.010 + 3 * 0.001
    assert order.seconds == pytest.approx(0.4 * (0.09 - there))


def test_a_worker_far_from_the_head_waits_for_its_order() -> None:
    """Test with a worker whose input is there after 36 ms of a token, and the order after 40."""
    spent = two_workers()
    ways = (spent.ways[0], replace(spent.ways[1], ordered=0.04), spent.ways[2])
    account = token_account(replace(spent, ways=ways), TEN)
    [order] = [part for part in account.parts if part.where == "shed CPU for its order"]
    assert order.kind is PartKind.WAITING and order.seconds == pytest.approx(0.004)
    assert account.unexplained == pytest.approx(0.005)
    early = (spent.ways[0], replace(spent.ways[1], ordered=0.03), spent.ways[2])
    assert token_account(replace(spent, ways=early), TEN) == token_account(spent, TEN)


def test_bytes_that_wait_in_the_daemon_are_a_part_beyond_the_time_of_the_path() -> None:
    account = token_account(two_workers(held=0.05), TEN)
    [waiting] = [part for part in account.parts if part.kind is PartKind.WAITING]
    assert waiting.seconds == pytest.approx(0.004), "a millisecond of each token is the path's"
    assert account.unexplained == pytest.approx(0.005)


def test_devices_compute_a_prompt_at_the_same_time() -> None:
    account = prompt_account(two_workers(seconds=0.4, away=0.4), 10, 0.5)
    [queue] = [part for part in account.parts if part.kind is PartKind.QUEUE]
    [twice] = [part for part in account.parts if part.kind is PartKind.AT_ONCE]
    assert queue.seconds == 0.5
    assert twice.seconds == pytest.approx(-(0.2 + 0.3 + 0.03 + 0.01 - 0.4)), "one result goes back"
    assert account.seconds == pytest.approx(0.9) and account.unexplained == pytest.approx(0.0)


def test_layers_of_the_head_are_predicted_within_the_time_that_it_did_not_wait() -> None:
    spent = SpentTime(
        seconds=1.0,
        away=0.4,
        held=0.0,
        head="desk",
        own=(ComputingTime("desk CPU", 0.9, False),),
        workers=(),
        ways=(),
    )
    server, own = token_account(spent, TokenRounds(1, 1, 1)).parts
    assert own.seconds == pytest.approx(0.6) and own.source is PartSource.PREDICTED
    assert server.seconds == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("most", "part"),
    [
        (100, TokenRounds(100, 40, 160)),
        (101, TokenRounds(100, 40, 160)),
        (50, TokenRounds(50, 20, 80)),
        (25, TokenRounds(25, 10, 40)),
        (1, TokenRounds(1, 1, 2)),
    ],
)
def test_a_part_of_the_rounds_keeps_their_shares(most: int, part: TokenRounds) -> None:
    assert TokenRounds(100, 40, 160).part(most) == part


def test_a_part_of_few_rounds_has_one_at_least() -> None:
    assert TokenRounds(1000, 10, 10).part(1) == TokenRounds(1, 1, 1)
