"""Plans over offers: reservations, memory that several lend, idle workers; and whether models fit."""

from dataclasses import replace

import pytest
from meshd.base.errors import Refused
from meshd.head.survey import path_to
from meshd.model.output import DevicePath
from meshd.model.short_names import short_layers
from meshd.plan.machines import Machines, NodeOffer, PlainRpc
from meshd.plan.over_offers import SLACK_BYTES, UNUSED_BYTES, Fit, ModelFit, fits, reservations, without_idle
from meshd.plan.reasons import LeftOut, NoFreeMemory, NoRoom, NoShare, Reported, Shortage, in_words
from meshd.plan.split import NotEnoughMemory, Plan, split_of
from meshd.wire.lease import LEASE_ID_BYTES, SHARED_MEMORY, OfferedDevice, WorkerOffer

from tests.unit.admin.test_snapshot import path
from tests.unit.plan.offers_scene import GIB, cpu, gpu, long_model, make_plan, model, node_offer
from tests.unit.plan.plain_options import PLAIN

OPTIONS = replace(PLAIN, machine="here")


def test_every_layer_lies_somewhere_and_status_has_the_order_of_the_layers() -> None:
    """llama.cpp puts the first layers on the head's CPU."""
    plan = make_plan(model(), offers=[node_offer("a", cpu()), node_offer("b", cpu())], options=OPTIONS)
    split = split_of(plan)
    assert [part.node for part in split] == ["head", "a", "b"]
    assert sum(part.layers for part in split) == 8
    assert all(part.layers for part in split)


@pytest.mark.parametrize(
    ("output", "path", "name", "on_head"),
    [
        ("auto", None, "CUDA0", True),
        ("auto", DevicePath(0.05), "Vulkan0", True),
        ("auto", DevicePath(0.05), "CUDA0", False),
        ("auto", DevicePath(0.0001, 1e9), "Vulkan0", False),
        ("head", DevicePath(0.0001, 1e9), "CUDA0", True),
        ("worker", DevicePath(0.05), "Vulkan0", False),
    ],
)
def test_the_output_follows_the_path_to_the_last_worker_and_the_user(
    output: str, path: DevicePath | None, name: str, on_head: bool
) -> None:
    tiny = model()
    wordy = replace(tiny, output=50_000_000, widths=replace(tiny.widths, vocabulary=100_000))
    plan = make_plan(
        wordy,
        offers=[node_offer("a", gpu()), replace(node_offer("b", gpu(name=name)), path=path)],
        options=replace(PLAIN, devices=("none",), output=output),
    )
    assert (plan.override_tensor != "") is on_head


def test_with_candidates_from_the_worker_a_distant_gpu_makes_the_logits() -> None:
    tiny = model()
    wordy = replace(tiny, output=50_000_000, widths=replace(tiny.widths, vocabulary=100_000))

    def output_worker(name: str) -> str:
        options = replace(PLAIN, devices=("none",))
        offers = [replace(node_offer("a", gpu(name=name)), path=DevicePath(0.05))]
        plan = make_plan(wordy, offers=offers, options=options)
        assert (plan.output_worker is None) is (plan.override_tensor != "")
        return plan.output_worker.name if plan.output_worker is not None else ""

    assert output_worker("CUDA0") == "CUDA0"
    assert output_worker("Vulkan0") == "", "nobody knows whether it sorts so many"


def test_the_head_that_has_the_last_layers_makes_the_logits() -> None:
    offers = [node_offer("a", cpu())]
    plan = make_plan(model(), offers=offers, own=[cpu(), gpu()], options=OPTIONS)
    assert plan.output_worker is None
    alone = make_plan(model(), offers=[], options=replace(OPTIONS, min_workers=0))
    assert alone.output_worker is None


def test_the_path_to_a_worker_is_the_one_with_the_data() -> None:
    by = replace(path(selected=False), rtt=0.5)
    used = replace(path(selected=True), rtt=0.03, rate=2e6)
    assert path_to([by, used]) == DevicePath(0.03, 2e6)
    assert path_to([replace(used, rtt_min=0.02)]) == DevicePath(0.02, 2e6)
    assert path_to([replace(used, rtt_min=0.02, rtt_floor=0.01)]) == DevicePath(0.01, 2e6)
    assert path_to([replace(used, rtt=None)]) is None
    here = replace(path(selected=True, where="loopback"), rate=2e6)
    assert path_to([replace(here, rtt=0.0005)]) == DevicePath(0.0005, 2e6, is_loopback=True)
    assert path_to([replace(here, rtt=0.03)]) == DevicePath(0.03, 2e6), "a forwarded port"
    assert path_to([by]) is None


def test_a_reservation_has_room_and_stays_within_the_offer() -> None:
    offers = [node_offer("a", cpu()), node_offer("b", cpu(0.3))]
    plan = make_plan(model(), offers=offers, options=OPTIONS)
    (first,), (second,) = reservations(plan, offers)
    share = next(share for share in plan.shares if share.device.node == "a")
    assert share.total + SLACK_BYTES <= first <= 4 * GIB
    assert second <= int(0.3 * GIB)


def test_a_device_without_layers_is_kept_in_the_list() -> None:
    offers = [node_offer("a", gpu(), cpu())]
    plan = make_plan(model(), offers=offers, options=replace(PLAIN, tensor_split=(1, 0, 1)))
    ((used, unused),) = reservations(plan, offers)
    assert used > UNUSED_BYTES
    assert unused == UNUSED_BYTES


def test_a_device_without_free_memory_is_not_started_and_those_behind_it_move_up() -> None:
    offers = [node_offer("a", gpu(0, "FULL"), gpu()), node_offer("b", gpu())]
    plan = make_plan(model(), offers=offers, options=OPTIONS)
    names = {(share.device.node, share.device.name): share.llama_name for share in plan.shares}
    assert (names["a", "CUDA0"], names["b", "CUDA0"]) == ("RPC0", "RPC1")
    assert [left.why for left in plan.left_out if left.device == "FULL"] == [NoFreeMemory()]
    (full, used), _ = reservations(plan, offers)
    assert full == 0
    assert used > UNUSED_BYTES


def test_one_machines_memory_is_counted_once() -> None:
    tight = [node_offer("a", cpu(0.2), machine="here"), node_offer("b", cpu(0.2), machine="here")]
    with pytest.raises(NotEnoughMemory):
        make_plan(
            long_model(),
            offers=tight,
            own=[cpu(0.2)],
            options=replace(PLAIN, machine="here", ctx_size=400_000),
        )
    apart = [node_offer("a", cpu(0.2), machine="there"), node_offer("b", cpu(0.2), machine="elsewhere")]
    many = make_plan(long_model(), offers=apart, own=[cpu(0.2)], options=replace(PLAIN, machine="here"))
    assert len(many.shares) == 3


def card(free: float, name: str = "CUDA0", *, of: str = "one") -> OfferedDevice:
    return replace(gpu(free, name), card=of)


def in_cards_of_their_own(item: NodeOffer) -> NodeOffer:
    devices = [replace(device, card=f"{item.node} {device.name}") for device in item.offer.devices]
    return replace(item, offer=replace(item.offer, devices=tuple(devices)))


@pytest.mark.parametrize("many", ["a-many", "z-many"])
def test_a_node_with_many_devices_pushes_no_other_out(many: str) -> None:
    """Test a model with fewer layers than devices, or more devices than llama.cpp takes."""
    offers = [
        node_offer(many, *(gpu(name=f"D{number}") for number in range(15))),
        node_offer("honest", cpu()),
    ]
    offers.sort(key=lambda item: item.node)
    for layers in (4, 32):
        plan = make_plan(model(layers), offers=offers, options=OPTIONS)
        assert {node for node, _, _ in placed(plan)} == {many, "honest"}


@pytest.mark.parametrize("small", ["a-small", "z-small"])
def test_of_a_memory_that_two_lend_the_one_that_gives_less_is_left_out(small: str) -> None:
    offers = [node_offer(small, card(0.001)), node_offer("honest", card(4))]
    offers.sort(key=lambda item: item.node)
    plan = make_plan(model(), offers=offers, options=OPTIONS)
    assert [node for node, _, _ in placed(plan)] == ["honest"]


@pytest.mark.parametrize(
    "offers",
    [
        [node_offer("a", card(0.15)), node_offer("b", card(0.15))],
        [node_offer("a", card(0.15), card(0.15, "Vulkan0"))],
    ],
    ids=["two workers", "two backends of one worker"],
)
def test_one_card_is_counted_once_however_many_lend_it(offers: list[NodeOffer]) -> None:
    options = replace(PLAIN, ctx_size=60_000, devices=("none",))
    with pytest.raises(NotEnoughMemory):
        make_plan(long_model(), offers=offers, options=options)
    apart = [in_cards_of_their_own(item) for item in offers]
    make_plan(long_model(), offers=apart, options=options)  # twice as much would do


def test_a_card_that_the_head_has_too_is_counted_once() -> None:
    own = [cpu(), card(0.35)]
    options = replace(PLAIN, ctx_size=200_000)
    plan = make_plan(long_model(), offers=[node_offer("a", card(0.35))], own=own, options=options)
    assert sum(share.total for share in plan.shares if share.device.is_gpu) <= 0.35 * GIB
    apart = make_plan(long_model(), offers=[node_offer("a", card(0.35, of="two"))], own=own, options=options)
    assert sum(share.total for share in apart.shares if share.device.is_gpu) > 0.35 * GIB


def test_a_card_that_two_lend_has_the_share_of_one() -> None:
    offers = [node_offer("a", card(4)), node_offer("b", card(4)), node_offer("c", card(4, of="two"))]
    plan = make_plan(model(16), offers=offers, options=replace(PLAIN, devices=("none",)))
    layers = {part.node: part.layers for part in split_of(plan)}
    assert layers["a"] + layers["b"] in (7, 8, 9)
    assert layers["a"] and layers["b"]


def test_a_gpu_without_memory_of_its_own_shares_the_machines() -> None:
    tight = [
        node_offer("a", card(0.2, of=SHARED_MEMORY), machine="here"),
        node_offer("b", cpu(0.2), machine="here"),
    ]
    options = replace(PLAIN, machine="here", ctx_size=400_000)
    with pytest.raises(NotEnoughMemory):
        make_plan(long_model(), offers=tight, own=[cpu(0.2)], options=options)


LACKS = Reported("it cannot compute SET_ROWS")


def test_a_device_that_is_not_able_is_left_out_with_the_reason() -> None:
    offers = [node_offer("a", gpu(name="HALF"), gpu(), excluded={"HALF": LACKS}), node_offer("b", gpu())]
    plan = make_plan(model(), offers=offers, options=replace(PLAIN, devices=("none",)))
    assert [(node, name) for node, name, _ in placed(plan)] == [("a", "RPC0"), ("b", "RPC1")]
    assert plan.reasons[-1] == LeftOut("a", "HALF", LACKS)
    (left_out, used), (_,) = reservations(plan, offers)
    assert left_out == 0 < used  # its rpc-server is started without it, so that RPC0 is what the plan says


def test_a_worker_with_no_able_device_is_sent_home_with_the_reason() -> None:
    offers = [node_offer("a", gpu(), excluded={"CUDA0": LACKS}), node_offer("b", gpu())]
    plan = make_plan(model(), offers=offers, options=OPTIONS)
    kept, used = without_idle(plan, offers)
    assert [item.node for item in used] == ["b"]
    assert kept.devices == ("RPC0",)
    assert plan.left_out == (LeftOut("a", "CUDA0", LACKS),)


def test_too_little_memory_names_the_devices_that_are_left_out() -> None:
    offers = [node_offer("a", gpu(), excluded={"CUDA0": LACKS})]
    with pytest.raises(NotEnoughMemory) as caught:
        make_plan(
            model(), offers=offers, own=[cpu(0.6)], options=replace(PLAIN, min_workers=0, devices=("none",))
        )
    shortage, left_out = caught.value.reasons
    assert isinstance(shortage, Shortage) and left_out == LeftOut("a", "CUDA0", LACKS)
    assert caught.value.what == in_words(caught.value.reasons)


def test_too_few_able_workers_are_waited_for() -> None:
    offers = [node_offer("a", gpu(), excluded={"CUDA0": LACKS}), node_offer("b", gpu())]
    with pytest.raises(Refused, match="1 of 2 workers can take part") as caught:
        make_plan(model(), offers=offers, options=replace(PLAIN, min_workers=2))
    assert caught.value.hint == f"a CUDA0: {LACKS.text}"


def test_a_plain_rpc_server_comes_behind_the_workers() -> None:
    server = PlainRpc("10.0.0.9:50052", (OfferedDevice("RPC0", "gpu", "", 4 * GIB, 4 * GIB),))
    offers = [node_offer("a", gpu())]
    plan = make_plan(model(), offers=offers, plain_rpc=[server], options=replace(PLAIN, devices=("none",)))
    assert [part.node for part in split_of(plan) if part.layers] == ["a", "10.0.0.9:50052"]
    assert len(reservations(plan, offers)) == 1


def placed(plan: Plan) -> list[tuple[str, str, int]]:
    return [(share.device.node, share.llama_name, share.layers) for share in plan.shares if share.layers]


def test_workers_without_layers_are_sent_home_and_the_others_move_up() -> None:
    server = PlainRpc("10.0.0.9:50052", (gpu(name="RPC0"),))
    offers = [
        node_offer("full", cpu(0.001), gpu(0.001)),
        node_offer("b", gpu(), gpu(name="CUDA1")),
        node_offer("c", cpu(0.001)),
    ]
    plan = make_plan(model(), offers=offers, plain_rpc=[server], options=OPTIONS)
    kept, used = without_idle(plan, offers)
    assert [item.node for item in used] == ["b"]
    assert [(node, layers) for node, _, layers in placed(kept)] == [
        (node, layers) for node, _, layers in placed(plan)
    ]
    assert [name for _, name, _ in placed(kept)] == ["RPC0", "RPC1", "RPC2"]
    assert kept.devices == ("RPC0", "RPC1", "RPC2")
    full = {one.device: one.why for one in plan.left_out if one.node == "full"}
    assert full.keys() == {"CPU", "CUDA0"} and all(isinstance(why, NoRoom) for why in full.values())


def test_a_plan_in_which_all_take_part_stays_as_it_is() -> None:
    offers = [node_offer("a", gpu(), cpu()), node_offer("b", cpu())]
    for split in ((), (4, 0, 3, 1)):
        plan = make_plan(model(), offers=offers, options=replace(PLAIN, tensor_split=split))
        assert without_idle(plan, offers) == (plan, offers)


def test_a_share_of_nothing_is_a_reason_too() -> None:
    offers = [node_offer("a", cpu()), node_offer("b", cpu())]
    options = replace(PLAIN, tensor_split=(0, 4, 4))
    plan = make_plan(model(), offers=offers, options=options)
    kept, used = without_idle(plan, offers)
    assert [item.node for item in used] == ["b"]
    assert kept.devices == ("RPC0",)
    assert LeftOut("a", "CPU", NoShare(by_user=True)) in plan.left_out


def device(kind: str, free: int, name: str = "") -> OfferedDevice:
    return OfferedDevice(name or {"cpu": "CPU", "gpu": "CUDA0"}[kind], kind, "", free * GIB, free * GIB, "")


def worker(node: str, *devices: OfferedDevice) -> NodeOffer:
    offer = WorkerOffer(devices, has_model=False, machine=node, lease_id=bytes(LEASE_ID_BYTES))
    return NodeOffer(node, offer)


def fit(name: str, own: tuple[OfferedDevice, ...], *offers: NodeOffer) -> tuple[Fit, Fit]:
    """Here, and in the mesh."""
    models = [layers for layers in short_layers({}) if layers.name == name]
    [found] = fits(models, Machines(tuple(offers), own), PLAIN)
    assert found == ModelFit(name, found.here, found.mesh)
    return found.here, found.mesh


OWN = (device("cpu", 16), device("gpu", 12))


@pytest.mark.parametrize(
    ("name", "own", "offers", "expected"),
    [
        ("qwen3-4b", OWN, (), (Fit.GPU, Fit.GPU)),
        ("qwen3-4b", (device("cpu", 16),), (), (Fit.CPU, Fit.CPU)),
        ("qwen3-4b", (device("cpu", 16),), (worker("a", device("gpu", 8)),), (Fit.CPU, Fit.GPU)),
        ("glm", OWN, (), (Fit.PARTLY_CPU, Fit.PARTLY_CPU)),
        ("glm", OWN, (worker("a", device("gpu", 12)),), (Fit.PARTLY_CPU, Fit.GPU)),
        ("glm", OWN, (worker("a", device("cpu", 64)),), (Fit.PARTLY_CPU, Fit.PARTLY_CPU)),
        ("glm", (device("cpu", 8),), (worker("a", device("cpu", 24)),), (Fit.NO, Fit.CPU)),
        ("llama-3.3-70b", OWN, (worker("a", device("gpu", 24)),), (Fit.NO, Fit.PARTLY_CPU)),
        ("llama-3.3-70b", OWN, (worker("a", device("gpu", 48)),), (Fit.NO, Fit.GPU)),
        ("gpt-oss-120b", OWN, (worker("a", device("gpu", 24)),), (Fit.NO, Fit.NO)),
        ("gpt-oss-120b", OWN, tuple(worker(n, device("gpu", 24)) for n in "abc"), (Fit.NO, Fit.GPU)),
    ],
)
def test_where_a_model_fits(
    name: str, own: tuple[OfferedDevice, ...], offers: tuple[NodeOffer, ...], expected: tuple[Fit, Fit]
) -> None:
    assert fit(name, own, *offers) == expected


def test_wishes_for_a_split_do_not_count() -> None:
    models = [layers for layers in short_layers({}) if layers.name == "qwen3-4b"]
    options = replace(PLAIN, tensor_split=(1.0, 1.0, 1.0), min_workers=3, workers=("far",))
    assert fits(models, Machines((), OWN), options) == [ModelFit("qwen3-4b", Fit.GPU, Fit.GPU)]


def test_a_head_that_computes_nothing_needs_workers() -> None:
    models = [layers for layers in short_layers({}) if layers.name == "qwen3-4b"]
    machines = Machines((worker("a", device("gpu", 8)),), (device("cpu", 16),))
    assert fits(models, machines, replace(PLAIN, devices=("none",))) == [
        ModelFit("qwen3-4b", Fit.NO, Fit.GPU)
    ]


def test_a_plan_names_its_nodes_its_last_one_and_what_lies_there() -> None:
    alone = make_plan(model(), offers=[], options=OPTIONS)
    assert (alone.last_node, alone.output_worker) == ("head", None)
    plan = make_plan(
        model(),
        offers=[node_offer("a", cpu()), node_offer("b", cpu())],
        options=replace(PLAIN, devices=("none",), output="worker"),
    )
    assert plan.last_node == plan.taking[-1].device.node != "head"
    assert plan.output_worker == plan.taking[-1].device
    layers = model()
    assert sum(plan.weights_of(node) for node in ("head", "a", "b")) >= layers.weight_bytes
    assert plan.weights_of("nobody") == 0
    on_head = make_plan(
        model(),
        offers=[node_offer("a", cpu())],
        options=replace(PLAIN, devices=("none",), output="head"),
    )
    assert on_head.output_worker is None and on_head.last_node == "a"
