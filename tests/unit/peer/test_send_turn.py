"""Who sends over a link: nobody beside another, nobody while the session is fed, and nothing is forgotten."""

import itertools

import pytest
from meshd.peer import send_turn
from meshd.peer.send_turn import (
    NOTHING,
    SEND,
    TURNS,
    WAKE,
    FeedState,
    SendAct,
    SendEvent,
    SendState,
    SendTurn,
    step,
)

REST = SendTurn(SendState.IDLE)
AT_WORK = SendTurn(SendState.WORKING)


def after(*events: SendEvent, begin: SendTurn = REST) -> tuple[SendTurn, list[SendAct]]:
    turn, acts = begin, []
    for event in events:
        turn, act = step(turn, event)
        acts.append(act)
    return turn, acts


def test_who_asks_while_the_link_is_idle_sends_at_once() -> None:
    turn, acts = after(SendEvent.ASKED, SendEvent.SENT)
    assert (turn, acts) == (REST, [SEND, NOTHING])


def test_who_asks_within_another_ones_sending_wakes_the_task() -> None:
    _, acts = after(SendEvent.ASKED, SendEvent.ASKED)
    assert acts == [SEND, WAKE]


@pytest.mark.parametrize("times", [1, 5])
def test_however_often_is_asked_while_the_session_is_fed_it_is_sent_once_after_that(times: int) -> None:
    _, acts = after(SendEvent.FEED, *[SendEvent.ASKED] * times, SendEvent.FED)
    assert acts == [NOTHING] * (times + 1) + [SEND]
    _, acts = after(SendEvent.FEED, *[SendEvent.ASKED] * times, SendEvent.FED, begin=AT_WORK)
    assert acts[-1] is WAKE


def test_nothing_is_sent_because_of_a_session_that_was_fed_and_asked_for_nothing() -> None:
    for begin in TURNS:
        assert after(SendEvent.FEED, SendEvent.FED, begin=begin)[1] == [NOTHING, NOTHING]


def test_a_feed_that_failed_asks_for_nothing() -> None:
    turn, acts = after(SendEvent.FEED, SendEvent.ASKED, SendEvent.FEED_FAILED)
    assert (turn, acts) == (REST, [NOTHING] * 3)


def test_what_a_full_link_has_not_taken_is_the_tasks_and_nobody_overtakes_it() -> None:
    turn, _ = after(SendEvent.ASKED, SendEvent.FULL, SendEvent.SENT)
    assert turn == SendTurn(SendState.HELD)
    fed = after(SendEvent.FEED, SendEvent.ASKED, SendEvent.FED, begin=turn)
    assert (fed[0], fed[1][-1]) == (turn, WAKE)
    assert after(SendEvent.ASKED, begin=turn) == (turn, [WAKE])
    turn, _ = after(SendEvent.TASK_WORKS, SendEvent.TASK_RESTS, begin=turn)
    assert turn == REST


def test_of_whatever_order_of_events_nobody_sends_beside_another() -> None:
    for events in itertools.product(SendEvent, repeat=4):
        turn, sending = AT_WORK, False
        for event in events:
            before = turn
            turn, act = step(turn, event)
            if act is SEND:
                assert before.sends is SendState.IDLE and turn.feeds is FeedState.NO
                assert event is SendEvent.FED or before.feeds is FeedState.NO
                sending = True
        assert sending <= (SendEvent.ASKED in events)


def test_who_asks_is_never_forgotten() -> None:
    """What is to be done comes at once, or when the session has been fed."""
    for turn in TURNS:
        asked, act = step(turn, SendEvent.ASKED)
        if act is NOTHING:
            _, act = step(asked, SendEvent.FED)
        assert act in (SEND, WAKE)


def test_the_rows_are_what_the_rules_say() -> None:
    for event in SendEvent:
        row = getattr(send_turn, event.name)
        for turn, there in zip(TURNS, row, strict=True):
            number, act = there if isinstance(there, tuple) else (there, NOTHING)
            assert (TURNS[number], act) == step(turn, event)
