"""Who computes, copies and waits: whatever was written down, no device does two things at once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import MeshdError

from tests.bench.timeline import (
    Doing,
    Span,
    in_turn,
    make_lane,
    micro_batches,
    prompt_end,
    read_spans,
    stages,
    sums,
    within,
)

TIMES = st.integers(0, 2000)
SPANS = st.builds(
    lambda doing, begin, size: Span(doing, 0, begin, begin + size),
    st.sampled_from(list(Doing)),
    TIMES,
    st.integers(0, 300),
)
# one device's work for one graph: what it waits for and copies, and how long it computes; with pauses
ROUNDS = st.lists(st.tuples(*[st.integers(0, 50)] * 6), min_size=1, max_size=24)


def worked(rounds: list[tuple[int, ...]], begin: int = 0) -> list[Span]:
    """In turn: waits, copies in, computes, copies out, each after a pause where there is one."""
    spans, now = [], begin
    for pause, waits, copies, computes, out, later in rounds:
        now += pause
        for doing, size in (
            (Doing.WAIT, waits),
            (Doing.IN, copies),
            (Doing.COMPUTE, computes),
            (Doing.OUT, out),
        ):
            spans.append(Span(doing, 0, now, now + size))
            now += size
        now += later
    return spans


def lines(spans: list[Span]) -> str:
    return "".join(f"{span.doing} {span.number} {span.begin} {span.end}\n" for span in spans)


@given(st.lists(SPANS))
def test_what_was_written_is_read(spans: list[Span]) -> None:
    assert read_spans(lines(spans)) == spans
    assert read_spans(lines(spans) + "compute 0 12") == spans, "its writer was ended"


@pytest.mark.parametrize("line", ["", "rests 0 1 2", "wait 0 1", "wait 0 1 2 3", "wait 0 2 1", "wait x 1 2"])
def test_another_line_is_an_error(line: str) -> None:
    with pytest.raises(MeshdError, match="a trace"):
        read_spans(f"compute 0 1 2\n{line}\n")


@given(st.lists(SPANS))
def test_no_device_does_two_things_at_once(spans: list[Span]) -> None:
    """A GPU is given graphs while it computes; each is still there, and no time is counted twice."""
    found = in_turn(spans)
    assert all(before.end <= after.begin for before, after in pairwise(found))
    assert all(span.begin <= span.end for span in found)
    for doing in Doing:
        several = [span.doing for span in found].count(doing), [span.doing for span in spans].count(doing)
        assert several[0] == several[1] if doing is Doing.COMPUTE else several[0] <= several[1]
    covered = {time for span in spans for time in range(span.begin, span.end)}
    assert sum(span.end - span.begin for span in found) == len(covered)


@given(st.lists(SPANS), TIMES, TIMES)
def test_what_began_before_is_of_something_else(spans: list[Span], begin: int, end: int) -> None:
    found = within(spans, begin, end)
    assert all(begin <= span.begin <= span.end <= max(begin, end) for span in found)
    assert len(found) == sum(begin <= span.begin < end for span in spans)


@given(ROUNDS, st.integers(1, 4), st.integers(0, 100))
def test_steps_have_all_that_was_done(rounds: list[tuple[int, ...]], graphs: int, begin: int) -> None:
    rounds = rounds * graphs
    spans = worked(rounds, begin)
    lane = make_lane("worker", spans, len(rounds) // graphs, begin=begin)
    assert [span for step in lane.steps for span in step.spans] == in_turn(spans)
    for step in lane.steps:
        assert sum(span.doing is Doing.COMPUTE for span in step.spans) == graphs
        assert step.idle >= 0
    assert lane.steps[0].begin == begin
    assert [step.begin for step in lane.steps[1:]] == [step.end for step in lane.steps[:-1]]
    end = lane.steps[-1].end
    found = sums(lane.steps, begin, end)
    assert found.computes + found.waits + found.copies + found.idle == end - begin
    assert found.idle == sum(step.idle for step in lane.steps)


def test_what_comes_in_is_of_the_next_step_and_what_goes_out_of_the_one_before() -> None:
    lane = make_lane("worker", worked([(5, 0, 1, 10, 2, 0), (0, 7, 1, 10, 2, 0)]), 2, begin=0)
    first, second = lane.steps
    assert [(span.doing, span.end - span.begin) for span in second.spans] == [
        (Doing.WAIT, 7),
        (Doing.IN, 1),
        (Doing.COMPUTE, 10),
        (Doing.OUT, 2),
    ]
    assert (first.begin, first.end, first.idle, first.computes_from) == (0, 18, 5, 6)
    assert (second.begin, second.end, second.idle, second.computes_from) == (18, 38, 0, 26)


def test_what_came_in_for_a_step_that_was_not_computed_is_left_out() -> None:
    spans = [*worked([(0, 0, 1, 10, 2, 0)]), Span(Doing.IN, 0, 20, 21)]
    (step,) = make_lane("worker", spans, 1, begin=0).steps
    assert step.end == 13


@pytest.mark.parametrize(("graphs", "steps"), [(3, 2), (0, 1), (1, 2)])
def test_graphs_that_cannot_be_told_apart_are_an_error(graphs: int, steps: int) -> None:
    with pytest.raises(MeshdError, match=f"worker computed {graphs} graphs in {steps} steps"):
        make_lane("worker", worked([(0, 0, 0, 5, 0, 0)] * graphs), steps, begin=0)


def test_stages_come_in_the_order_of_the_first_step() -> None:
    late = make_lane("late", worked([(0, 30, 0, 10, 0, 0), (0, 0, 0, 10, 0, 0)]), 2, begin=0)
    early = make_lane("early", worked([(20, 0, 0, 10, 0, 0), (0, 0, 0, 1, 0, 0)]), 2, begin=0)
    assert [lane.name for lane in stages([late, early])] == ["early", "late"]
    assert prompt_end([late, early], 1) == 40


@given(st.integers(1, 9000), st.integers(1, 600), st.integers(1, 9000))
def test_a_prompt_is_divided_as_llama_does(batch: int, micro_batch: int, tokens: int) -> None:
    steps, left = 0, tokens
    while left:
        of_batch = min(left, batch)
        left -= of_batch
        while of_batch > 0:
            of_batch -= micro_batch
            steps += 1
    assert micro_batches(tokens, batch=batch, micro_batch=micro_batch) == steps
