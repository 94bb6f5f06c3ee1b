"""`meshd serve`, `plan` and `why` say the same of one mesh, and what `plan` says is what `serve` does."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from meshd.config.forms import HostPort
from meshd.daemon.plan_view import plan_reply
from meshd.head.speculation import DraftForecast
from meshd.plan.choice import SplitAdvice, SplitChoice, advise, choose_split, plan_model
from meshd.plan.machines import Machines
from meshd.plan.reasons import RunOn, SplitComparison, brief, in_words
from meshd.plan.wishes import HeadOptions

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

AUTO = replace(OPTIONS, split="auto")
CLOSE = machines([offer("a", 16, rtt=0.004)], {"head": 1.0, "a": 1.2})
"""The head alone is a little faster than the best split, which is a little faster than the worker alone."""
FASTER = machines([offer("a", 16)], {"head": 2.0, "a": 1.0})
TOO_SMALL = machines([offer("a", 16)], {"head": 1.0, "a": 3.0}, own=1.0)


def told(there: Machines, options: HeadOptions) -> tuple[SplitChoice, SplitComparison, SplitAdvice]:
    """Return what runs, the comparison of `meshd plan`, and the advice of `meshd why`."""
    served = plan_model(MODEL, WORK, there, options)
    choices = choose_split(MODEL, WORK, there, options, least=options.min_workers or 0)
    nothing = DraftForecast(
        free=0,
        model=0,
        free_acceptance=0.0,
        model_acceptance=0.0,
        measured=False,
        repetitive_tok_s=0.0,
        prose_tok_s=0.0,
    )
    plan = plan_reply("model", "head", [(one, nothing) for one in choices], ()).plans[0]
    comparison = choices[0].comparison
    assert comparison is not None and plan.why == in_words((comparison,))
    return served, comparison, advise(MODEL, WORK, there, options, served.plan)


def nodes(split: SplitChoice) -> Sequence[str]:
    return list(dict.fromkeys(share.device.node for share in split.plan.shares if share.layers))


@pytest.mark.parametrize("least", [None, 0, 1])
@pytest.mark.parametrize("there", [CLOSE, FASTER, TOO_SMALL])
def test_they_give_the_same_reason_in_the_same_words(there: Machines, least: int | None) -> None:
    served, planned, advice = told(there, replace(AUTO, min_workers=least))
    assert served.plan.reasons[0] == planned == advice.basis.comparison
    words = in_words((planned,))
    assert brief(served.plan.reasons).startswith(words) and in_words(served.plan.reasons).startswith(words)
    assert str(advice.basis).startswith(f"{words}; predicted ")


def test_a_model_that_is_fastest_here_runs_here_unless_its_user_demands_a_worker() -> None:
    served, planned, advice = told(CLOSE, AUTO)
    assert nodes(served) == ["head"] and planned.chosen.nodes == ("head",) and planned.other is not None
    assert advice.change is None
    served, planned, advice = told(CLOSE, replace(AUTO, min_workers=1))
    assert "a" in nodes(served) and planned.faster is not None and planned.least == 1
    assert advice.change == RunOn("head", is_head=True)
    assert 0.03 <= advice.gain < 0.3


def test_a_worker_is_used_where_it_is_faster_or_the_model_needs_it() -> None:
    assert "a" in nodes(told(FASTER, AUTO)[0])
    assert "a" in nodes(told(TOO_SMALL, AUTO)[0])


@pytest.mark.parametrize(
    ("options", "least"),
    [
        (AUTO, 0),
        (replace(AUTO, min_workers=2), 2),
        (replace(AUTO, min_workers=0, devices=("none",)), 0),
        (replace(AUTO, devices=("none",)), 1),
        (replace(AUTO, tensor_split=(1.0, 1.0)), 1),
        (replace(AUTO, rpc=(HostPort("10.0.0.9", 50052),)), 1),
        (replace(AUTO, split="always"), 1),
    ],
)
def test_a_worker_is_needed_where_the_comparison_cannot_choose_this_node_alone(
    options: HeadOptions, least: int
) -> None:
    assert options.least_workers == least
