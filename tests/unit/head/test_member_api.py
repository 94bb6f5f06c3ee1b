"""Test what members are told of a head's models."""

from dataclasses import replace

import pytest
from meshd.head.member_api import served_models
from meshd.model.served_facts import ServedFacts
from meshd.model.status import AnswersAtOnce, ModelState, ModelStatus
from meshd.wire.models import ApiModel

STATUS = ModelStatus(
    name="tiny",
    fingerprint="f0" * 32,
    state=ModelState.READY,
    reason="loaded",
    load_seconds=1.0,
    weights_local_bytes=0,
    weights_network_bytes=0,
    tensors_from_network=(),
    bytes_per_token=None,
    split=(),
    answers=AnswersAtOnce(slots=4, tokens=4096),
    aliases=("gpt-4o",),
)
NEVER_LOADED = replace(
    STATUS, name="big", fingerprint="", state=ModelState.UNLOADED, answers=None, aliases=()
)


def test_all_models_are_told_with_what_each_has_to_do() -> None:
    facts = {"tiny": ServedFacts(4096, 8192, 1_770_000_000, capabilities=("completion", "tools"))}
    told = served_models(
        [STATUS, NEVER_LOADED],
        {"tiny": 3, "big": 0}.__getitem__,
        lambda name: facts.get(name, ServedFacts()),
        on_demand=True,
    )
    tiny = ApiModel("tiny", "ready", True, "loaded", 3, 4, b"\xf0" * 32, aliases=("gpt-4o",))
    assert told == (
        replace(tiny, context=4096, created=1_770_000_000, capabilities=("completion", "tools")),
        ApiModel("big", "unloaded", True, "loaded", 0, 1, capabilities=("completion",)),
    )


@pytest.mark.parametrize("state", ModelState)
def test_a_model_takes_requests_while_it_can_be_had_in_time(state: ModelState) -> None:
    status = replace(STATUS, state=state)
    [on_demand] = served_models([status], lambda _name: 0, lambda _name: ServedFacts(), on_demand=True)
    [alone] = served_models([status], lambda _name: 0, lambda _name: ServedFacts(), on_demand=False)
    assert alone.takes == (state is ModelState.READY)
    assert on_demand.takes == (state in (ModelState.READY, ModelState.LOADING, ModelState.UNLOADED))
