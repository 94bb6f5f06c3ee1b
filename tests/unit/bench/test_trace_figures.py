"""Test what a trace shows: sums, steps, a picture."""

import json
from xml.etree import ElementTree

import pytest
from meshd.base.errors import MeshdError

from tests.bench.timeline import Doing, Span
from tests.bench.timeline_picture import draw_timeline
from tests.bench.trace_figures import Trace, as_json, put_together, step_table, sum_table

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def spans(number: int, *done: tuple[Doing, int, int]) -> list[Span]:
    """From and to, in ms."""
    return [Span(doing, number, begin * MS, end * MS) for doing, begin, end in done]


def two_stages() -> Trace:
    """A prompt of two steps, then one token; the request came at 100 ms."""
    first = spans(
        0,
        (Doing.COMPUTE, 0, 50),  # another request's
        (Doing.IN, 101, 102),
        (Doing.COMPUTE, 102, 112),
        (Doing.OUT, 112, 113),
        (Doing.COMPUTE, 113, 123),
        (Doing.OUT, 123, 124),
        (Doing.COMPUTE, 135, 140),
        (Doing.OUT, 140, 141),
    )
    second = spans(
        0,
        (Doing.WAIT, 102, 113),
        (Doing.COMPUTE, 113, 123),
        (Doing.WAIT, 123, 124),
        (Doing.COMPUTE, 124, 134),
        (Doing.OUT, 134, 135),
        (Doing.WAIT, 136, 141),
        (Doing.COMPUTE, 141, 146),
    )
    head = [
        *spans(1, (Doing.WAIT, 103, 135)),
        *spans(0, (Doing.WAIT, 104, 110)),
        *spans(1, (Doing.WAIT, 136, 146)),
    ]
    workers = {"worker-2": second, "worker-1": first}
    return put_together(workers, head, 100 * MS, 150 * MS, prompt_steps=2, tokens=1)


def test_sums_are_of_each_part_and_whole() -> None:
    trace = two_stages()
    assert [lane.name for lane in trace.lanes] == ["worker-1", "worker-2"], "in the order of the stages"
    _, rows = sum_table(trace)
    assert [tuple(row) for row in rows] == [
        ("prompt", "head", "0.003 s   9%", "0.032 s  91%", "0.000 s   0%", "0.000 s   0%"),
        ("prompt", "worker-1", "0.020 s  57%", "0.000 s   0%", "0.003 s   9%", "0.012 s  34%"),
        ("prompt", "worker-2", "0.020 s  57%", "0.012 s  34%", "0.001 s   3%", "0.002 s   6%"),
        ("tokens", "head", "0.005 s  33%", "0.010 s  67%", "0.000 s   0%", "0.000 s   0%"),
        ("tokens", "worker-1", "0.005 s  33%", "0.000 s   0%", "0.001 s   7%", "0.009 s  60%"),
        ("tokens", "worker-2", "0.005 s  33%", "0.005 s  33%", "0.000 s   0%", "0.005 s  33%"),
    ]


def test_steps_are_shown_in_turn() -> None:
    _, rows = step_table(two_stages())
    assert [row[:4] for row in rows] == [
        ("prompt 1", "worker-1", "2.0", "13.0"),
        ("prompt 1", "worker-2", "13.0", "23.0"),
        ("prompt 2", "worker-1", "13.0", "24.0"),
        ("prompt 2", "worker-2", "24.0", "35.0"),
        ("tokens 1", "worker-1", "0.0", "6.0"),
        ("tokens 1", "worker-2", "6.0", "11.0"),
    ]
    assert [row[-1] for row in rows] == ["1.0", "2.0", "0.0", "0.0", "0.0", "1.0"], "of its own part"


def test_json_has_every_span() -> None:
    found = json.loads(json.dumps(as_json(two_stages())))
    assert [part["name"] for part in found["parts"]] == ["prompt", "tokens"]
    assert found["parts"][0]["sums"]["worker-2"]["waits"] == pytest.approx(0.012)
    first = found["devices"][0]["steps"][0]
    assert [span["doing"] for span in first["spans"]] == ["in", "compute", "out"]
    assert first["spans"][1] == {"doing": "compute", "number": 0, "begin": 0.002, "end": 0.012}


def test_devices_of_one_worker_are_told_apart() -> None:
    both = [*spans(0, (Doing.COMPUTE, 0, 10)), *spans(1, (Doing.WAIT, 0, 10), (Doing.COMPUTE, 10, 20))]
    trace = put_together({"worker": both}, [], 0, 30 * MS, prompt_steps=1, tokens=0)
    assert [lane.name for lane in trace.lanes] == ["worker/0", "worker/1"]
    assert [part[0] for part in trace.parts] == ["prompt"], "there are no more tokens than the first"


def test_a_worker_that_computed_nothing_is_an_error() -> None:
    with pytest.raises(MeshdError, match="worker computed 0 graphs"):
        put_together({"worker": []}, [], 0, 30 * MS, prompt_steps=1, tokens=0)


def test_the_picture_has_a_bar_for_each_span() -> None:
    trace = two_stages()
    picture = ElementTree.fromstring(draw_timeline("a & b", trace.panels()))
    bars = [bar for bar in picture.findall(f"{SVG}rect") if bar.get("height") == "24"]
    rows = 2 * 3  # of two panels: the head, two workers
    spans_drawn = sum(len(step.spans) for lane in trace.lanes for step in lane.steps)
    assert len(bars) == rows + spans_drawn + len(trace.head)
    assert all(0 <= float(bar.get("x", "")) + float(bar.get("width", "")) <= 1000 for bar in bars)
    assert {"a & b", "prompt", "tokens", "head", "worker-1"} <= {
        text.text for text in picture.iter(f"{SVG}text")
    }
