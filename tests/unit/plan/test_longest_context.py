"""How long a context is: as asked, the longest that fits, or longer where that costs nothing."""

from dataclasses import replace

import pytest
from meshd.model.layers import ModelLayers
from meshd.plan.choice import SplitChoice, plan_model
from meshd.plan.machines import Machines
from meshd.plan.reasons import Answers
from meshd.plan.split import NotEnoughMemory
from meshd.plan.wishes import DraftModel, HeadOptions

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

SCARCE = 3.4  # GiB: the model takes most of it
LONG = replace(MODEL, trained_context=131072)


def on(free: float, options: HeadOptions = OPTIONS, model: ModelLayers = LONG) -> SplitChoice:
    return plan_model(model, WORK, there(free), replace(options, devices=("none",)))


def there(free: float) -> Machines:
    return machines([offer("a", free)], {"head": 1.0, "a": 1.0})


def context(split: SplitChoice) -> int:
    return split.plan.shape.cells


def test_with_memory_to_spare_it_is_what_the_model_was_trained_for() -> None:
    assert context(on(512)) == 131072
    told = [one.at_once.tokens for one in on(512).plan.reasons if isinstance(one, Answers)]
    assert told == [131072], "what is told is what is served"


def test_a_split_that_was_chosen_by_speed_keeps_its_output_where_that_was_found_faster() -> None:
    """Though the estimate, which decides where no speed is known, would put it elsewhere."""
    auto = replace(OPTIONS, split="auto")
    usual = on(512, replace(auto, ctx_size=8192))
    chosen = on(512, auto)
    by_estimate = on(512)
    assert by_estimate.plan.override_tensor and not usual.plan.override_tensor
    assert context(chosen) == 131072
    assert chosen.plan.override_tensor == usual.plan.override_tensor


def test_with_little_memory_it_is_the_usual() -> None:
    assert context(on(SCARCE)) == 8192


def test_no_more_than_half_of_the_free_memory_is_taken_for_it() -> None:
    lengths = set()
    for tenths in range(40, 100, 2):
        found = on(tenths / 10)
        usual = on(tenths / 10, replace(OPTIONS, ctx_size=8192))
        [before], [after] = ([s for s in one.plan.shares if s.layers] for one in (usual, found))
        assert after.total - before.total <= (after.device.free - before.total) / 2
        assert after.layers == before.layers and found.plan.shape.parallel == usual.plan.shape.parallel
        lengths.add(context(found))
    assert len(lengths) > 2 and lengths <= {8192, 16384, 32768, 65536, 131072}


def test_the_cache_of_a_draft_model_grows_with_it_and_is_counted() -> None:
    draft = DraftModel("/d.gguf", replace(MODEL, layers=(1000,) * 30))
    drafting = replace(OPTIONS, speculate="auto", draft=draft)
    on_head = machines([], {"head": 1.0}, own=10.0)
    without = plan_model(LONG, WORK, on_head, replace(OPTIONS, speculate="auto")).plan
    with_it = plan_model(LONG, WORK, on_head, drafting).plan
    cache = draft.memory(with_it.shape)
    assert 8192 < with_it.shape.cells < without.shape.cells
    [own] = on_head.own
    [share] = [share for share in with_it.shares if share.layers]
    assert share.device.free == own.free_bytes - cache
    assert share.total <= share.device.free


def test_a_model_with_a_short_context_has_that() -> None:
    assert context(on(512, model=replace(MODEL, trained_context=4096))) == 4096


@pytest.mark.parametrize("options", [{"ctx_size": 8192}, {"llama_args": ("-c", "8192")}])
def test_what_is_asked_for_is_not_lengthened(options: dict[str, object]) -> None:
    assert context(on(512, replace(OPTIONS, **options))) == 8192  # type: ignore[arg-type]


def test_the_longest_that_fits() -> None:
    longest = replace(OPTIONS, ctx_size=0)
    assert context(on(512, longest)) == 131072
    found = context(on(SCARCE, longest))
    assert 8192 < found < 131072
    with pytest.raises(NotEnoughMemory):
        on(SCARCE, replace(OPTIONS, ctx_size=found + 512))
    with pytest.raises(NotEnoughMemory):
        on(1, longest)
