"""Test what a run on GPUs leaves for the next one: all that is whole, and nothing of another machine."""

import json
from dataclasses import replace

import pytest
from meshd.base.errors import UserError
from meshd.bench.figures import ENDS_ON_CPU, LOCAL, MESHD, STOCK, BenchRun

from tests.bench.gpu_page import GpuRunFacts
from tests.bench.gpu_results import Found, decode, encode

MADE = GpuRunFacts(
    when="2026-01-02",
    machine="a machine",
    backend="cuda",
    devices=("CUDA0 (a card)", "CUDA1 (a card)"),
    pin="a pin",
    workers=(1,),
)
TODAY = replace(MADE, when="2026-01-03", workers=(2, 4))


def run(setup: str, workers: int, rtt: float = 20.0) -> BenchRun:
    return BenchRun(setup=setup, workers=workers, rtt_ms=rtt, load=1.0, token=0.01, prompt=0.1, text="sea")


ALONE = [run(LOCAL, 0, 0.0), run(ENDS_ON_CPU, 0, 0.0)]


def test_all_that_is_whole_comes_back() -> None:
    found = Found("8b", 4_000, [*ALONE, run(MESHD, 1), run(STOCK, 1)], one_way={20.0: 0.0101})
    made, again = decode(encode(MADE, [found]), TODAY, label="gpu.json")
    assert again == [found]
    assert made == replace(TODAY, when="2026-01-02", workers=(1, 2, 4))


def test_what_is_not_whole_or_failed_is_measured_again() -> None:
    runs = [*ALONE, run(MESHD, 1), run(STOCK, 1), run(MESHD, 1), run(MESHD, 2)]
    text = encode(MADE, [Found("8b", 4_000, runs, faults=["stock, 2 workers: it ended"])])
    [found] = decode(text, TODAY, label="gpu.json")[1]
    assert found.runs == runs[:4]
    assert found.faults == []
    assert (found.alone, found.times(1, 20.0), found.times(2, 20.0), found.times(1, 50.0)) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"machine": "another"}, "different machine: `another` there, `a machine` here"),
        ({"devices": ("CUDA0 (a card)",)}, "different device: `CUDA0 (a card)` there"),
        ({"pin": "other sources"}, "different pin"),
        ({"backend": "vulkan"}, "different backend"),
    ],
)
def test_figures_of_something_else_are_refused(change: dict[str, object], said: str) -> None:
    text = json.dumps({**json.loads(encode(MADE, [])), **change})
    with pytest.raises(UserError) as raised:
        decode(text, TODAY, label="gpu.json")
    assert said in raised.value.what


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": 1}', encode(MADE, []).replace("results", "x")])
def test_what_is_no_such_file_is_refused(text: str) -> None:
    with pytest.raises(UserError) as raised:
        decode(text, TODAY, label="gpu.json")
    assert "`gpu.json` is not what `python -m tests.bench.gpu` writes" in raised.value.what


def test_a_run_of_another_form_is_refused() -> None:
    text = encode(MADE, [Found("8b", 1, ALONE)]).replace('"load"', '"loaded"')
    with pytest.raises(UserError):
        decode(text, TODAY, label="gpu.json")
