"""Decide who sends over one link now: state and event in, next state and action out. Pure.

A caller that has given the session data asks to send it. So does, indirectly, the code that feeds the session
with what a link has received: deep in nested calls, and while the link's own task may be at work. This table
says what each may do, so that nothing is sent while the session is being fed or within another send, and
nothing overtakes what a full link has not accepted.

`step` has the rules. The driver (links.py) looks up precomputed rows, by the number of a state in `TURNS`:
each message asks several times, and so it costs no more than a flag.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class SendState(Enum):
    """The state of the sending side."""

    WORKING = "working"  # the task is at work: it asks the session again before it rests
    IDLE = "idle"  # the task rests: a caller with something to send does so at once
    SENDING = "sending"  # somebody is sending
    HELD = "held"  # the link has not accepted all of it: the task was woken for the rest


class FeedState(Enum):
    """The state of the receiving side."""

    NO = "no"
    FEEDING = "feeding"  # the session is taking in what was received
    ASKED = "asked"  # the same, and something is to be sent because of it


class SendEvent(Enum):
    """An event on a link's sending side."""

    ASKED = "asked"  # the session may have something to send
    FEED = "feed"  # the session is about to take in what was received
    FED = "fed"  # the session has taken it in
    FEED_FAILED = "feed failed"
    SENT = "sent"  # the immediate send is done
    FULL = "full"  # the link accepts no more, or is broken; the task, which is woken, has the rest
    TASK_WORKS = "task works"
    TASK_RESTS = "task rests"


class SendAct(Enum):
    """The action to take."""

    NOTHING = "nothing"
    SEND = "send"  # at once
    WAKE = "wake"  # wake the task, which will send


@dataclass(frozen=True, slots=True)
class SendTurn:
    """The combined state of both sides."""

    sends: SendState
    feeds: FeedState = FeedState.NO


NOTHING, SEND, WAKE = SendAct
TURNS = tuple(SendTurn(sends, feeds) for sends in SendState for feeds in FeedState)


def step(turn: SendTurn, event: SendEvent) -> tuple[SendTurn, SendAct]:
    """Return the next state, and the action."""
    sends, feeds = turn.sends, turn.feeds
    act = NOTHING
    match event:
        case SendEvent.FEED:
            feeds = FeedState.FEEDING
        case SendEvent.FEED_FAILED:
            feeds = FeedState.NO
        case SendEvent.ASKED if feeds is not FeedState.NO:
            feeds = FeedState.ASKED  # once, when the session has been fed
        case SendEvent.FED if feeds is not FeedState.ASKED:
            feeds = FeedState.NO
        case SendEvent.ASKED | SendEvent.FED:
            feeds = FeedState.NO
            if sends is SendState.IDLE:
                sends, act = SendState.SENDING, SEND
            else:
                act = WAKE
        case SendEvent.SENT if sends is SendState.HELD:
            pass  # the task sends the rest
        case SendEvent.SENT | SendEvent.TASK_RESTS:
            sends = SendState.IDLE
        case SendEvent.FULL:
            sends = SendState.HELD
        case SendEvent.TASK_WORKS:
            sends = SendState.WORKING
    return SendTurn(sends, feeds), act


def _row(event: SendEvent) -> Sequence[tuple[int, SendAct]]:
    steps = (step(turn, event) for turn in TURNS)
    return tuple((TURNS.index(after), act) for after, act in steps)


def _after(event: SendEvent) -> Sequence[int]:
    """Return the next states for an event without a choice of action."""
    return tuple(after for after, _ in _row(event))


IDLE = TURNS.index(SendTurn(SendState.IDLE))
WORKING = TURNS.index(SendTurn(SendState.WORKING))
ASKED = _row(SendEvent.ASKED)
FED = _row(SendEvent.FED)
FEED = _after(SendEvent.FEED)
FEED_FAILED = _after(SendEvent.FEED_FAILED)
SENT = _after(SendEvent.SENT)
FULL = _after(SendEvent.FULL)
TASK_WORKS = _after(SendEvent.TASK_WORKS)
TASK_RESTS = _after(SendEvent.TASK_RESTS)
