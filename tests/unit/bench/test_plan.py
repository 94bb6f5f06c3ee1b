"""Predictions beside measurements: the set-ups, and what counts as a good one."""

import pytest
from meshd.base.errors import MeshdError, UserError
from meshd.model.status import Speeds

from tests.bench.plan_figures import PlanRun, SetupFigures, Tolerance, result_table, run_line
from tests.bench.plan_setups import SETUPS, Setup, pinned_cores, setups_of_devices
from tests.bench.random_model import SHAPES

LIMITS = Tolerance(0.2, 0.3)


def run(nodes: str, *, generate: float = 1.0, prompt: float = 1.0, seconds: float = 10.0) -> PlanRun:
    """`generate` and `prompt`: predicted to measured; `seconds`: of the answer."""
    speed = (512 + 256) / seconds
    measured = Speeds(speed, speed)
    return PlanRun(tuple(nodes.split("+")), Speeds(prompt * speed, generate * speed), measured)


def test_there_are_twelve_of_all_kinds() -> None:
    assert len(SETUPS) == 12
    assert {len(one.rtts) for one in SETUPS} == {1, 2, 3, 4}
    assert {rtt for one in SETUPS for rtt in one.rtts} == {0, 10, 40}
    assert any(len(set(one.rtts)) == 3 for one in SETUPS), "unequal ones"
    assert {one.model for one in SETUPS} == {"medium", "moe"} <= set(SHAPES)
    for pinned in (False, True):
        unequal = [one for one in SETUPS if one.pinned is pinned and len(set(one.threads)) > 1]
        assert {one.model for one in unequal} == {"medium", "moe"}
    assert sum(one.head > 0 for one in SETUPS) == 6, "half have a head that computes"
    assert all(sum(one.threads) + one.head < 16 for one in SETUPS), "some cores are left for the daemons"


def test_pinned_workers_share_no_core() -> None:
    machine = [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert pinned_cores((1, 2), machine) == [(3,), (1, 2)]
    with pytest.raises(UserError, match="needs 5 cores, and 4"):
        pinned_cores((2, 3), machine)


def test_a_setup_in_words_and_in_options() -> None:
    one = Setup((2, 1), (10, 40), "moe")
    assert one.text == "moe: 2 threads at 10 ms, 1 thread at 40 ms"
    assert one.worker_options[1] == ("--device", "CPU", "--threads", "1") and one.cores == ()
    assert Setup((2, 1), (10, 40), pinned=True).text == "medium: 2 cores at 10 ms, 1 core at 40 ms"
    one = Setup((2,), (10,), head=4)
    assert one.text == "medium: head with 4 threads, 2 threads at 10 ms"
    assert (one.head_options, one.llama_args) == (("--device", "CPU", "--split", "auto"), ("--", "-t", "4"))
    found = setups_of_devices(["CUDA0", "CUDA1"])
    assert [one.devices for one in found] == [("CUDA0",)] * 2 + [("CUDA0", "CUDA1")] * 2
    assert found[3].text == "8b: CUDA0 at 10 ms, CUDA1 at 10 ms"
    assert found[0].worker_options == [("--device", "CUDA0")]


@pytest.mark.parametrize(
    ("generate", "prompt", "holds"),
    [(1.19, 0.71, True), (0.81, 1.29, True), (1.21, 1.0, False), (1.0, 0.69, False), (0.79, 1.0, False)],
)
def test_a_prediction_holds_within_its_limits(generate: float, prompt: float, holds: bool) -> None:
    whole = run("a+b", generate=generate, prompt=prompt)
    assert whole.is_within(LIMITS) is holds
    assert SetupFigures(SETUPS[0], whole, (whole,)).is_good(LIMITS) is holds


def test_a_choice_is_good_within_a_twentieth_of_the_fastest() -> None:
    whole, alone = run("a+b", seconds=10.0), run("a", seconds=9.6)
    good = SetupFigures(SETUPS[0], whole, (whole, alone), chosen=whole)
    assert good.fastest is alone and good.is_well_chosen and good.is_good(LIMITS)
    quick = run("b", seconds=9.4)
    bad = SetupFigures(SETUPS[0], whole, (whole, alone, quick), chosen=whole)
    assert not bad.is_well_chosen and not bad.is_good(LIMITS)
    again = run("b", seconds=12.0)
    same = SetupFigures(SETUPS[0], whole, (whole, quick, again), chosen=again)
    assert same.is_well_chosen, "the same workers, at another time"


def test_the_table_says_what_holds() -> None:
    whole, alone = run("a+b", generate=1.5, seconds=10.0), run("a", seconds=8.0)
    found = SetupFigures(SETUPS[2], whole, (whole, alone), chosen=alone)
    head, rows = result_table([(3, found), (4, SetupFigures(SETUPS[3], alone, (alone,)))], LIMITS)
    assert head[3] == "within 20% and 30%" and all(len(row) == len(head) for row in rows)
    assert rows[0] == [
        "3. medium: head with 4 threads, 4 threads at 0 ms, 2 threads at 0 ms",
        "115.2, 76.8 (1.50)",
        "76.8, 76.8 (1.00)",
        "no",
        "a, 8.00 s",
        "a, 8.00 s",
        "yes",
    ]
    assert rows[1][3:] == ["yes", "-", "-", "-"]
    assert run_line(whole) == "a+b, 10.00 s: generation 115.2, 76.8 (1.50), prompts 76.8, 76.8 (1.00)"


def test_a_speed_that_is_missing_is_an_error() -> None:
    with pytest.raises(MeshdError, match="a speed is missing"):
        _ = PlanRun(("a",), Speeds(None, 1.0), Speeds(1.0, 1.0)).prompts
