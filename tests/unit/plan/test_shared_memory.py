"""A node that says it shares another one's memory makes no plan fail."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.plan.machines import Machines, NodeOffer, one_for_each_pool
from meshd.plan.over_offers import plan_over, reservations
from meshd.plan.split import NotEnoughMemory
from meshd.plan.wishes import HeadOptions
from meshd.wire.lease import OfferedDevice

from tests.unit.head.rig import cpu_lines
from tests.unit.head.test_model import ready, stage
from tests.unit.plan.offers_scene import cpu, long_model, node_offer
from tests.unit.plan.plain_options import PLAIN
from tests.unit.plan.test_over_offers import card, placed

pytestmark = pytest.mark.virtual

LONG = replace(PLAIN, node_name="head", machine="here", devices=("none",), ctx_size=1 << 18)


def used(
    offers: Sequence[NodeOffer],
    options: HeadOptions = LONG,
    *,
    own: Sequence[OfferedDevice] = (),
    layers: int = 64,
) -> dict[str, list[str]]:
    """The nodes with layers, and the names that llama-server has for their devices."""
    there = Machines(tuple(offers), tuple(own) or (cpu(),))
    plan, busy = plan_over(long_model(layers), there, options)
    found: dict[str, list[str]] = {}
    for node, name, _ in placed(plan):
        found.setdefault(node, []).append(name)
    assert {item.node for item in busy} == set(found) - {"head"}
    started = [count for counts in reservations(plan, busy) for count in counts if count]
    assert plan.devices[: len(started)] == tuple(f"RPC{number}" for number in range(len(started)))
    assert len(started) == sum(name.startswith("RPC") for name in plan.devices)
    return found


@pytest.mark.parametrize("liar", ["a-liar", "z-liar"])
@pytest.mark.parametrize("says", [0.001, 0.3, 1.2])
def test_who_names_another_ones_card_takes_nothing_from_it(liar: str, says: float) -> None:
    honest = node_offer("honest", card(4))
    assert used([honest]) == {"honest": ["RPC0"]}
    offers = sorted([honest, node_offer(liar, card(says))], key=lambda item: item.node)
    assert used(offers) == {"honest": ["RPC0"]}


def test_however_many_they_are_and_whatever_they_name() -> None:
    offers = [
        node_offer("a", card(1.2), card(1.2, "CUDA1", of="two")),
        node_offer("b", card(1.2, of="two"), card(1.3, "CUDA1")),
        node_offer("honest", card(4), card(1.2, "CUDA1", of="two")),
        node_offer("other", card(4, of="two")),
    ]
    assert used(offers) == {"honest": ["RPC0"], "other": ["RPC1"]}


def test_the_heads_own_memory_is_no_others() -> None:
    """Whatever it says is free there."""
    options = replace(LONG, devices=(), ctx_size=1 << 17, min_workers=0)
    own = [cpu(4)]
    assert used([], options, own=own) == {"head": ["CPU"]}
    for says in (0.5, 100.0):
        assert "head" in used([node_offer("liar", cpu(says), machine="here")], options, own=own)


def test_one_that_says_more_has_to_lend_it() -> None:
    """And is left out for a while, as any other, when it does not."""
    assert used(
        [node_offer("honest", card(1.5)), node_offer("liar", card(100))], replace(LONG, ctx_size=1 << 19)
    ) == {"liar": ["RPC0"]}


def test_two_nodes_on_one_machine_take_part_both() -> None:
    offers = [node_offer("a", cpu(2), machine="m"), node_offer("b", cpu(2), machine="m")]
    assert set(used(offers, replace(LONG, ctx_size=8192))) == {"a", "b"}


def test_a_node_keeps_what_is_its_own() -> None:
    """It may lend its card with the memory that is named by another one, too."""
    offers = [
        node_offer("a", cpu(0.4), machine="m"),
        node_offer("b", cpu(0.3), card(1.6), machine="m"),
        node_offer("c", cpu(1)),
    ]
    alone = one_for_each_pool(offers, [cpu()], LONG)
    assert [[device.name for device in item.devices] for item in alone] == [["CPU"], ["CUDA0"], ["CPU"]]
    assert one_for_each_pool([offers[0], offers[2]], [cpu()], LONG) == []


def test_too_little_is_too_little_and_the_first_reason_is_told() -> None:
    offers = [node_offer("a", card(0.3)), node_offer("b", card(0.2))]
    with pytest.raises(
        NotEnoughMemory, match=r"a CUDA0 and b CUDA0 have nothing for them \(205 MiB free"
    ) as caught:
        used(offers)
    assert "same memory" not in caught.value.what


def test_with_too_few_workers_the_first_reason_is_told() -> None:
    options = replace(LONG, min_workers=2)
    with pytest.raises(NotEnoughMemory, match="does not fit"):
        used([node_offer("a", card(1.2)), node_offer("honest", card(4))], options)


def test_a_tensor_split_is_taken_as_it_is() -> None:
    offers = [node_offer("a", card(1.2)), node_offer("honest", card(4))]
    with pytest.raises(NotEnoughMemory):
        used(offers, replace(LONG, tensor_split=(1, 1)))


async def test_a_head_runs_the_model_with_the_honest_one(tmp_path: Path) -> None:
    """The other one is sent home, and llama-server told of one worker."""
    async with stage(tmp_path) as it:
        liar, honest = it.worker("a-liar", machine="m"), it.worker("honest", machine="m")
        liar.device_lines = cpu_lines(free_mib=1200)
        long = ("--override-kv", f"llama.context_length=int:{1 << 20}")
        options = replace(PLAIN, devices=("none",), ctx_size=1 << 19, incarnation=bytes(16), llama_args=long)
        serve = it.serve_with(options)
        assert await ready(serve) == {"honest"}
        assert (len(liar.children), len(honest.children)) == (0, 1)
        spec = it.bench.children[0].spec
        assert spec is not None
        argv = list(spec.argv)
        assert argv[argv.index("-dev") + 1] == "MESH0"
