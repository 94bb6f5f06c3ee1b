"""How long a context is: as asked, the longest that fits, or longer where that costs nothing."""

from dataclasses import replace

import pytest
from meshd.model.layers import ModelLayers
from meshd.model.split_values import NotEnoughMemory
from meshd.role.head.draft_model import DraftModel
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.serving_split import ServingSplit, serving_split
from meshd.role.head.split_plan import HeadOptions

from tests.unit.role.head.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

SCARCE = 3.4  # GiB: the model takes most of it
LONG = replace(MODEL, trained_context=131072)


def on(free: float, options: HeadOptions = OPTIONS, model: ModelLayers = LONG) -> ServingSplit:
    return serving_split(model, WORK, there(free), replace(options, devices=("none",)))


def there(free: float) -> Machines:
    return machines([offer("a", free)], {"head": 1.0, "a": 1.0})


def context(split: ServingSplit) -> int:
    return split.plan.shape.answer_tokens


def test_with_memory_to_spare_it_is_what_the_model_was_trained_for() -> None:
    assert context(on(512)) == 131072
    assert "131072 tokens" in on(512).plan.why and "8192" not in on(512).plan.why


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
    drafting = replace(OPTIONS, speculate=True, draft_model=draft)
    on_head = machines([], {"head": 1.0}, own=10.0)
    without = serving_split(LONG, WORK, on_head, replace(OPTIONS, speculate=True)).plan
    with_it = serving_split(LONG, WORK, on_head, drafting).plan
    cache = draft.memory(with_it.shape)
    assert 8192 < with_it.shape.answer_tokens < without.shape.answer_tokens
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
    longest = replace(OPTIONS, largest_context=True)
    assert context(on(512, longest)) == 131072
    found = context(on(SCARCE, longest))
    assert 8192 < found < 131072
    with pytest.raises(NotEnoughMemory):
        on(SCARCE, replace(OPTIONS, ctx_size=found + 512))
    with pytest.raises(NotEnoughMemory):
        on(1, longest)
