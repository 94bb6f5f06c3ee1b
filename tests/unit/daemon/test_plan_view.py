"""`meshd why` gives the predictions of `meshd plan`, whatever was measured, and says what changed them."""

from dataclasses import replace

from meshd.admin.request import to_fields
from meshd.daemon.plan_view import why_reply
from meshd.head.explain import Explained
from meshd.head.measures import RunFacts
from meshd.model.output import DevicePath
from meshd.model.time_account import TimeAccount
from meshd.plan.choice import advise, choose_split, plan_model
from meshd.plan.machines import Machines
from meshd.plan.wishes import HeadOptions

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

AUTO: HeadOptions = replace(OPTIONS, split="auto", devices=("none",))
THERE = machines([offer("a", 16, rtt=0.01)], {"head": 1.0, "a": 1.0})
MEASURED = TimeAccount(seconds=0.5, tokens=100, parts=(), unexplained=0.0)
"""Far slower than predicted."""


def explained(now: Machines, token: TimeAccount | None = None) -> Explained:
    """Loaded with THERE, asked when the machines are `now`."""
    split = plan_model(MODEL, WORK, THERE, AUTO)
    return Explained(
        facts=RunFacts(split.plan, now, AUTO, MODEL, WORK, split.outcome),
        split=(),
        answers=(),
        active=0,
        now=0.0,
        token=token,
        prompt=None,
        round=None,
        why_no_round="",
        running=None,
        advice=advise(MODEL, WORK, now, AUTO, split.plan),
    )


def test_as_long_as_nothing_changes_load_plan_and_why_give_one_figure() -> None:
    reply = why_reply("model", explained(THERE, MEASURED))
    planned = choose_split(MODEL, WORK, THERE, AUTO)[0].prediction.generate_tok_s
    assert reply.advice.generate_tok_s == reply.generate_tok_s_at_load == planned
    assert to_fields(reply.advice)["generate_tok_s"] == round(planned, 2)
    assert reply.since_load == ()


def test_a_figure_that_differs_names_the_input_that_does() -> None:
    [one] = THERE.offers
    now = replace(THERE, offers=(replace(one, path=DevicePath(0.1, 1e9)),))
    reply = why_reply("model", explained(now))
    planned = choose_split(MODEL, WORK, now, AUTO)[0].prediction.generate_tok_s
    assert reply.advice.generate_tok_s == planned
    assert reply.generate_tok_s_at_load is not None and reply.generate_tok_s_at_load > 1.5 * planned
    [changed] = reply.since_load
    assert changed == "`head ↔ a` takes 100.2 ms of a token (10.2 ms then)"


def test_nothing_was_predicted_at_load_where_a_device_was_not_measured() -> None:
    found = explained(THERE)
    at_load = found.facts.at_load
    unknown = replace(at_load, prediction=replace(at_load.prediction, is_measured=False))
    found = replace(found, facts=replace(found.facts, at_load=unknown))
    assert why_reply("model", found).generate_tok_s_at_load is None
