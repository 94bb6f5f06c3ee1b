"""Which tensors a standby worker is asked to hold."""

from dataclasses import replace

from meshd.head.measures import RunFacts
from meshd.head.standby import FOR_ANY, StandbyPart, part_of
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.plan.choice import plan_model
from meshd.plan.machines import NodeOffer
from meshd.plan.over_offers import SLACK_BYTES
from meshd.plan.split import placed_tensors
from meshd.wire.limits import MAX_ASKED_TENSORS

from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

NAMES = ["token_embd.weight", *(f"blk.{number}.ffn_up.weight" for number in range(30)), "output_norm.weight"]
TENSOR = GIB // 4
ALWAYS = replace(OPTIONS, split="always", devices=("none",), output="worker")
THERE = machines([offer("a", 8), offer("c", 16)], {"head": 1.0, "a": 1.0, "c": 1.0})
"""`c` has twice the memory of `a`, and so twice the layers."""


def index(names: list[str] = NAMES) -> WeightsIndex:
    rows = [
        TensorEntry(0, 0, at * TENSOR, TENSOR, at.to_bytes(32, "big"), name) for at, name in enumerate(names)
    ]
    return WeightsIndex((FileEntry(len(names) * TENSOR, 1, 1, 1),), tuple(rows), "f" * 64)


def facts() -> RunFacts:
    split = plan_model(MODEL, WORK, THERE, ALWAYS)
    return RunFacts(split.plan, THERE, ALWAYS, MODEL, WORK, split.outcome)


def part(standby: NodeOffer, names: list[str] = NAMES, *, whole: bool = True) -> StandbyPart:
    return part_of(facts(), index(names), standby, THERE, whole=whole)


def with_room(tensors: float) -> NodeOffer:
    """For the plan it has as much memory as `a`."""
    return offer("b", (tensors * TENSOR + SLACK_BYTES) / GIB)


def planned(*nodes: NodeOffer) -> set[int]:
    """The tensors of `b` in the plan over these."""
    plan = plan_model(MODEL, WORK, replace(THERE, offers=nodes), ALWAYS).plan
    return set(placed_tensors(plan, MODEL, NAMES)["b"])


def test_all_of_it_where_that_fits() -> None:
    assert part(with_room(32)) == StandbyPart(tuple(range(32)), 32 * TENSOR, FOR_ANY)
    assert part(with_room(31.5)).why != FOR_ANY


def test_what_is_there_twice_is_held_once() -> None:
    twice = index()
    tensors = tuple(replace(one, digest=bytes(32)) for one in twice.tensors)
    found = part_of(facts(), replace(twice, tensors=tensors), with_room(40), THERE)
    assert (found.size, len(found.numbers)) == (TENSOR, 1)


def test_else_what_the_plans_after_a_loss_give_it() -> None:
    spare = with_room(31.5)
    a, c = THERE.offers
    after_a, after_c = planned(spare, c), planned(a, spare)
    assert after_a and after_c and after_a != after_c
    found = part(spare)
    assert found.numbers == tuple(sorted(after_a | after_c))
    assert found.size == len(found.numbers) * TENSOR and found.why == "for the loss of a, c"
    assert len(part(with_room(40), whole=False).numbers) < 32, "it could not keep all of it"


def test_as_far_as_that_fits() -> None:
    a, c = THERE.offers
    size = len(planned(with_room(16), c))
    spare = with_room(16)
    found = part(spare)
    assert set(found.numbers) == planned(spare, c) and len(found.numbers) == size
    assert found.why == "for the loss of a; for that of c it lacks room"
    assert planned(a, spare)


def test_nothing_where_no_loss_leaves_a_plan() -> None:
    nothing = part(offer("b", 0.2))
    assert nothing.numbers == () and "has no room for what it would need" in nothing.why


def test_a_model_of_too_many_tensors_cannot_be_asked_for() -> None:
    names = [f"blk.0.{number}.weight" for number in range(MAX_ASKED_TENSORS + 1)]
    assert part(with_room(40), names).numbers == ()
