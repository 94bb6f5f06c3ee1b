"""How long requests wait for their turn."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.interface import Readiness
from meshd.gateway.queued_proxy import AllTurns
from meshd.model.status import ModelState

from tests.process.gateway_fake import FakeUpstream
from tests.sim.loop import run

MOST = 600.0


async def wait_behind_another(*, loads: tuple[float, float], ends: float | None) -> float:
    """Seconds until the turn of a request comes, which waits for one that ends at `ends`; the model is loaded
    between the times `loads`. Raises HttpRefusal."""
    loop = asyncio.get_running_loop()
    began, upstream = loop.time(), FakeUpstream(Path("/nowhere"), slots=1)
    for at, state in zip(loads, (ModelState.LOADING, ModelState.READY), strict=True):
        loop.call_at(began + at, setattr, upstream, "readiness", Readiness(state, ""))
    turns = AllTurns(max_wait=MOST).of(upstream)
    assert turns is not None

    async def first() -> None:
        with turns.enter("a"):
            await asyncio.sleep(MOST * 100 if ends is None else ends)

    task = asyncio.ensure_future(first())
    await asyncio.sleep(0)
    try:
        with turns.enter("b") as turn:
            assert (turns.running, turns.waiting) == (1, 1)
            await turn.come()
            return loop.time() - began
    except HttpRefusal as refusal:
        assert refusal.failure.code == "queue_timeout"
        refusal.add_note(str(loop.time() - began))
        raise
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("loads", "ends"), [((0.0, 0.0), 599.0), ((0.0, 3600.0), 4190.0), ((500.0, 3600.0), 3690.0)]
)
def test_a_load_takes_nothing_of_the_time(loads: tuple[float, float], ends: float) -> None:
    assert run(wait_behind_another(loads=loads, ends=ends)) == pytest.approx(ends)


@pytest.mark.parametrize(
    ("loads", "late"), [((0.0, 0.0), 600), ((0.0, 3600.0), 4200), ((500.0, 3600.0), 3700)]
)
def test_the_time_of_other_answers_counts(loads: tuple[float, float], late: float) -> None:
    with pytest.raises(HttpRefusal) as caught:
        run(wait_behind_another(loads=loads, ends=None))
    assert float(caught.value.__notes__[0]) == pytest.approx(late, abs=1.5)


def test_no_turn_begins_while_they_are_held_and_nobody_is_refused_for_that() -> None:
    async def main() -> None:
        upstream = FakeUpstream(Path("/nowhere"), slots=2, holds_turns="worker two is paused")
        turns = AllTurns(max_wait=MOST).of(upstream)
        assert turns is not None
        others = ExitStack()
        first, second = (others.enter_context(turns.enter(user)) for user in "ab")
        with others, turns.enter("c") as third:
            places = [turn.notice(0.0) for turn in (first, second, third)]
            assert places == [
                f"waiting for a turn: {place}; worker two is paused"
                for place in ("next", "1 before this one", "2 before this one")
            ]
            assert (turns.running, upstream.waiting) == (0, 3)
            come = asyncio.ensure_future(third.come())
            await asyncio.sleep(2 * MOST)
            upstream.holds_turns = ""
            await first.come()
            await second.come()
            assert (turns.running, upstream.waiting, come.done()) == (2, 1, False)
            others.close()
            await come
        assert (turns.running, upstream.waiting) == (0, 0)

    run(main())
