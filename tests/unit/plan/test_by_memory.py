"""Plans: fair, exact in llama.cpp's terms, and refused when they do not fit; cuts of a row of layers."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, UserError
from meshd.model.cache import ContextShape
from meshd.model.layers import compute_bound
from meshd.model.output import DevicePath
from meshd.plan.by_memory import ON_CPU, partition, place, plan_split, share_out
from meshd.plan.reasons import (
    AllOn,
    AsGiven,
    HeadCpu,
    InProportion,
    LeftOut,
    NoRoom,
    NoShare,
    OutputOn,
    TooFewLayers,
    TooManyDevices,
    UnknownArchitecture,
)
from meshd.plan.split import Device, NotEnoughMemory, Plan, SplitOptions
from meshd.plan.wishes import default_shape

from tests.unit.plan.split_scene import GIB, HEAD, cpu, split_model

MIB = 1 << 20


def _gpu(node: str, free: float, *, head: bool = False) -> Device:
    return Device(node, "CUDA0", int(free * GIB), is_gpu=True, is_head=head)


def _unsorted(node: str, free: float) -> Device:
    """A GPU that nobody knows to choose candidates: its logits cross the wire."""
    return replace(_gpu(node, free), name="Vulkan0")


OPTIONS = SplitOptions(ContextShape(8192))


def _counts(plan: Plan) -> dict[str, int]:
    return {share.device.label: share.layers for share in plan.shares}


def _options(plan: Plan) -> str:
    return " ".join(plan.arguments)


def test_one_cpu_worker_and_the_head_take_half_each() -> None:
    plan = plan_split(split_model(), [cpu("a"), HEAD], OPTIONS)
    assert _counts(plan) == {"head CPU": 15, "a CPU": 15}
    assert _options(plan) == ("-fit off -c 8192 -np 1 -ngl 16 -dev RPC0 -ts 16 -ot token_embd.weight=CPU")
    assert plan.reasons == (InProportion(), HeadCpu.AMONG_CPUS, OutputOn("head CPU"))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_equal_cpus_get_equal_shares_and_workers_at_least_a_fifth(workers: int) -> None:
    for pool in ("", "one machine"):
        free = 4.0 if not pool else 1.5
        devices = [cpu(f"w{n}", free, pool=pool) for n in range(workers)]
        plan = plan_split(split_model(), [*devices, cpu("head", free, head=True, pool=pool)], OPTIONS)
        counts = _counts(plan)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert all(count >= 6 for count in counts.values())


def test_without_layers_on_the_head_the_workers_take_all() -> None:
    options = SplitOptions(ContextShape(8192), head_layers=False)
    plan = plan_split(split_model(tied=False), [cpu("a"), cpu("b"), HEAD], options)
    assert _counts(plan) == {"head CPU": 0, "a CPU": 15, "b CPU": 15}
    assert _options(plan) == (
        r"-fit off -c 8192 -np 1 -ngl 31 -dev RPC0,RPC1 -ts 15,16 -ot ^output\.weight=CPU"
    )
    assert HeadCpu.NOT_WANTED in plan.reasons
    # a GPU of the head is left alone too
    with_gpu = plan_split(split_model(), [cpu("a"), HEAD, _gpu("head", 8, head=True)], options)
    assert with_gpu.devices == ("RPC0",)


def _one_worker(device: Device, *, local_output: bool | None = None) -> Plan:
    options = SplitOptions(ContextShape(8192), head_layers=False, local_output=local_output)
    return plan_split(split_model(layers=8, layer_bytes=100 * MIB), [device, HEAD], options)


@pytest.mark.parametrize(
    ("device", "on_head", "milliseconds"),
    [
        (replace(_unsorted("a", 8), path=DevicePath(0.0001, 1e9)), False, (3.0, 0.5)),
        (replace(_unsorted("a", 8), path=DevicePath(0.0003)), True, (3.0, 2.6)),  # hardly
        (replace(_unsorted("a", 8), path=DevicePath(0.02)), True, (3.5, 71.2)),
        (replace(_gpu("a", 8), path=DevicePath(0.02)), False, (3.5, 0.2)),
        (replace(cpu("a", 8), path=DevicePath(0.0001, 1e9)), True, (3.0, 3.0)),
        (_gpu("a", 8), True, None),  # nothing is known of the way
    ],
)
def test_the_output_lies_where_a_token_takes_less_time(
    device: Device, on_head: bool, milliseconds: tuple[float, float] | None
) -> None:
    plan = _one_worker(device)
    assert (plan.override_tensor != "") is on_head
    (output,) = (one for one in plan.reasons if isinstance(one, OutputOn))
    assert output.device == ("head CPU" if on_head else device.label)
    if milliseconds is None:
        assert output == OutputOn("head CPU")
    else:
        assert output.on_head is not None and output.on_worker is not None
        found = (output.on_head * 1000, output.on_worker * 1000)
        assert found == pytest.approx(milliseconds, abs=0.05)


def test_a_user_who_says_where_the_output_lies_is_obeyed() -> None:
    fast, slow = (
        replace(_gpu("a", 8), path=DevicePath(0.0001, 1e9)),
        replace(_gpu("a", 8), path=DevicePath(0.1)),
    )
    assert _one_worker(fast, local_output=True).override_tensor
    assert not _one_worker(slow, local_output=False).override_tensor


def test_a_worker_without_room_for_the_output_leaves_it_to_the_head() -> None:
    def plan(free: int) -> Plan | None:
        try:
            return _one_worker(Device("a", "CUDA0", free, is_gpu=True, path=DevicePath(0.0001, 1e9)))
        except NotEnoughMemory:
            return None

    plans = [plan(free) for free in range(GIB, 3 * GIB, 8 * MIB)]
    where = [plan.override_tensor != "" for plan in plans if plan is not None]
    assert where[0]
    assert not where[-1]
    assert where == sorted(where, reverse=True)


def test_the_output_may_stay_with_the_last_worker() -> None:
    options = SplitOptions(ContextShape(8192), head_layers=False, local_output=False)
    plan = plan_split(split_model(), [cpu("a"), cpu("b"), HEAD], options)
    assert plan.override_tensor == ""
    assert "-ot" not in plan.arguments
    last = plan.shares[-1]
    assert last.weights == 15 * 2_216_448 + 2304 + 30_081_024
    # without -ot llama.cpp computes in a pipeline, with four copies of the inputs
    assert plan.shares[1].compute > plan_split(split_model(), [cpu("a"), HEAD], OPTIONS).shares[1].compute


def test_a_gpu_of_the_head_comes_last_and_has_the_output() -> None:
    plan = plan_split(split_model(), [_gpu("a", 8), HEAD, _gpu("head", 8, head=True)], OPTIONS)
    assert plan.devices == ("RPC0", "CUDA0")
    assert plan.override_tensor == ""
    counts = _counts(plan)
    assert counts["head CPU"] == 0
    assert abs(counts["a CUDA0"] - counts["head CUDA0"]) <= 1
    assert HeadCpu.BESIDE_GPUS in plan.reasons


def test_the_heads_cpu_helps_when_gpus_are_not_enough() -> None:
    big = split_model(layer_bytes=200 * MIB)
    plan = plan_split(big, [_gpu("a", 4), cpu("head", 8, head=True)], OPTIONS)
    counts = _counts(plan)
    assert counts["head CPU"] > 0
    assert counts["a CUDA0"] > 0
    assert HeadCpu.GPUS_TOO_SMALL in plan.reasons
    assert all(share.total <= share.device.free for share in plan.shares)


def test_a_head_alone_uses_no_devices() -> None:
    plan = plan_split(split_model(), [HEAD], OPTIONS)
    assert _options(plan) == "-fit off -c 8192 -np 1 -ngl 0 -dev none"
    assert _counts(plan) == {"head CPU": 30}


def test_the_reasons_fit_what_was_planned() -> None:
    alone = plan_split(split_model(), [HEAD], OPTIONS)
    assert alone.reasons == (AllOn("head"), HeadCpu.ALONE, OutputOn("head CPU"))
    both = plan_split(split_model(), [cpu("a"), HEAD], OPTIONS)
    assert both.reasons[0] == InProportion()
    given = replace(OPTIONS, tensor_split=(1.0, 0.0), local_output=True)
    without_layers = plan_split(split_model(), [cpu("a"), HEAD], given)
    assert without_layers.reasons == (AsGiven(by_user=True), OutputOn("head CPU"))
    assert without_layers.left_out == (LeftOut("head", "CPU", NoShare(by_user=True)),), "it has the output"


def test_bytes_are_those_of_llama_servers_log() -> None:
    """-ngl 99 -dev RPC0,RPC1 -ts 15,16 -ot token_embd.weight=CPU -c 8192: model 31.71 MiB, KV 90 MiB each."""
    options = SplitOptions(ContextShape(8192), head_layers=False)
    plan = plan_split(split_model(), [cpu("a"), cpu("b"), HEAD], options)
    for share, weights in zip(plan.shares[1:], (33_246_720, 33_249_024), strict=True):
        assert (share.weights, share.cache) == (weights, 90 * MIB)
    head = plan.shares[0]
    assert head.weights == 30_081_024
    assert head.total == 2 * 30_081_024 + head.compute, "the tied output may be repacked: a second copy"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("local_output", [True, False])
def test_weights_add_up_to_the_model_and_a_second_node_that_needs_the_embedding(
    tied: bool, local_output: bool
) -> None:
    model = split_model(tied=tied)
    for others in ((), (cpu("a"),)):
        plan = plan_split(model, [*others, HEAD], replace(OPTIONS, local_output=local_output))
        is_there_twice = tied and plan.output_worker is not None
        assert sum(share.weights for share in plan.shares) == model.weight_bytes + (
            model.embedding if is_there_twice else 0
        )


@pytest.mark.parametrize(
    ("shape", "logged", "with_layers", "pipelined"),
    [
        (ContextShape(8192), 20.39, True, False),
        (ContextShape(2048, micro_batch=128), 3.60, True, False),
        (ContextShape(8192), 48.92, True, True),
        (ContextShape(8192, flash_attention=False), 166.39, True, False),
        (ContextShape(32_768, parallel=4), 21.51, True, False),
        (ContextShape(32_768, parallel=4, unified=True), 45.51, True, False),
        (ContextShape(32_768, parallel=4, flash_attention=False), 166.38, True, False),
        (ContextShape(300, parallel=2), 8.07, True, False),
        (ContextShape(8192), 10.27, False, False),
    ],
)
def test_the_bound_for_computing_is_above_what_was_logged(
    shape: ContextShape, logged: float, with_layers: bool, pipelined: bool
) -> None:
    bound = compute_bound(
        split_model(), shape, on_gpu=False, with_layers=with_layers, with_output=False, pipelined=pipelined
    )
    assert logged * MIB <= bound - 32 * MIB  # also without the fixed part
    assert bound <= 3.5 * logged * MIB + 32 * MIB  # and not far above


def test_a_worker_without_room_is_left_out_and_keeps_its_number() -> None:
    plan = plan_split(split_model(), [cpu("none", 0.05), cpu("a"), HEAD], OPTIONS)
    assert plan.devices == ("RPC1",)
    (left_out,) = plan.left_out
    assert (left_out.node, left_out.device) == ("none", "CPU") and left_out in plan.reasons
    assert isinstance(left_out.why, NoRoom) and left_out.why.left <= 0 < left_out.why.need


def test_more_workers_than_layers_or_devices() -> None:
    plan = plan_split(split_model(layers=2), [cpu(f"w{n}") for n in range(4)] + [HEAD], OPTIONS)
    assert sum(1 for share in plan.shares if share.layers) == 2
    assert {one.why for one in plan.left_out} == {TooFewLayers(2)}
    many = plan_split(split_model(), [cpu(f"w{n}") for n in range(20)] + [HEAD], OPTIONS)
    assert len(many.devices) == 15
    assert {one.why for one in many.left_out} == {TooManyDevices(15)} and len(many.left_out) == 5


def test_one_memory_is_not_counted_twice() -> None:
    model = split_model(layer_bytes=60 * MIB)
    alone = [cpu("a", 2), cpu("head", 2, head=True)]
    assert _counts(plan_split(model, alone, OPTIONS))
    shared = [cpu("a", 2, pool="m"), cpu("head", 2, head=True, pool="m")]
    with pytest.raises(NotEnoughMemory):
        plan_split(model, shared, OPTIONS)
    fits = plan_split(
        split_model(), [cpu("a", 0.6, pool="m"), cpu("head", 0.6, head=True, pool="m")], OPTIONS
    )
    assert sum(share.total for share in fits.shares) <= 0.6 * GIB


@pytest.mark.parametrize(
    ("own", "words"), [(4.0, "with this node's memory it fits"), (0.15, "keeps all layers off this node")]
)
def test_a_head_that_takes_no_layers_is_named_as_the_cause(own: float, words: str) -> None:
    devices = [cpu("a", 0.15), cpu("head", own, head=True)]
    with pytest.raises(NotEnoughMemory) as caught:
        plan_split(split_model(), devices, SplitOptions(ContextShape(8192), head_layers=False))
    assert caught.value.hint.startswith("omit `--device none`")
    assert words in caught.value.hint
    with pytest.raises(NotEnoughMemory) as caught:
        plan_split(split_model(), [cpu("a", 0.15), cpu("head", 0.15, head=True)], OPTIONS)
    assert "--device none" not in caught.value.hint


def test_too_little_memory_gives_the_numbers_and_a_context_that_fits() -> None:
    devices = [cpu("a", 0.15), cpu("head", 0.15, head=True)]
    with pytest.raises(NotEnoughMemory) as caught:
        plan_split(split_model(), devices, OPTIONS)
    error = caught.value
    for part in (
        "needs 243 MiB for its 30 layers (weights 63 MiB, cache of 8192 tokens 180 MiB)",
        "head CPU has 19 MiB for them (154 MiB free, less 57 MiB for weights beside the layers, up to 77 MiB",
        "a CPU has 77 MiB for them (154 MiB free, less up to 76 MiB for compute buffers)",
    ):
        assert part in error.what
    assert error.largest_context == 2048
    assert "`--ctx-size 2048`" in error.hint
    assert _counts(plan_split(split_model(), devices, SplitOptions(ContextShape(error.largest_context))))
    with pytest.raises(NotEnoughMemory):
        plan_split(split_model(), devices, SplitOptions(ContextShape(error.largest_context + 256)))


def test_a_memory_that_devices_share_is_named_with_all_that_they_need_of_it() -> None:
    devices = [cpu("a", 0.15, pool="m"), cpu("head", 64, head=True, pool="m")]
    with pytest.raises(NotEnoughMemory) as caught:
        plan_split(split_model(), devices, replace(OPTIONS, head_layers=False))
    shared = "154 MiB free, as one of them says, in the memory that they share, less 57 MiB for weights"
    assert f"head CPU and a CPU have nothing for them ({shared}" in caught.value.what


def test_when_no_context_fits_it_says_so() -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        plan_split(split_model(), [cpu("a", 0.01), cpu("head", 0.01, head=True)], OPTIONS)
    assert caught.value.largest_context == 0
    assert "not even the shortest context" in caught.value.hint


def _split(*shares: float, **options: bool) -> SplitOptions:
    return SplitOptions(ContextShape(8192), tensor_split=shares, **options)


def test_a_tensor_split_is_taken_as_it_is() -> None:
    devices = [cpu("a"), cpu("b"), HEAD]
    assert _counts(plan_split(split_model(), devices, _split(1, 1, 1))) == {
        "head CPU": 10, "a CPU": 10, "b CPU": 10,
    }  # fmt: skip
    assert _counts(plan_split(split_model(), devices, _split(3, 1))) == {
        "head CPU": 0,
        "a CPU": 23,
        "b CPU": 7,
    }
    exact = plan_split(split_model(), devices, _split(4, 20, 6))
    assert _options(exact).startswith("-fit off -c 8192 -np 1 -ngl 25 -dev RPC0,RPC1 -ts 4,21")
    with_output = plan_split(split_model(), devices, _split(15, 16))  # llama.cpp's way to write it
    assert with_output.tensor_split == (15, 16)
    none = plan_split(split_model(), devices, _split(0, 1))
    assert none.devices == ("RPC1",)
    assert none.left_out == (LeftOut("a", "CPU", NoShare(by_user=True)),)
    own = plan_split(split_model(), [cpu("a"), HEAD, _gpu("head", 8, head=True)], _split(1, 2))
    assert _counts(own) == {"head CPU": 0, "a CPU": 10, "head CUDA0": 20}


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((1.0,), "has 1 shares, expected 2 or 3"),
        ((1.0, 1.0, 1.0, 1.0), "has 4 shares, expected 2 or 3"),
        ((0.0, 0.0), "not all zero"),
        ((-1.0, 2.0), "at least zero"),
        ((float("nan"), 2.0), "at least zero"),
        ((float("inf"), 2.0), "at least zero"),
    ],
)
def test_bad_tensor_splits_are_refused(shares: tuple[float, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_split(split_model(), [cpu("a"), cpu("b"), HEAD], _split(*shares))


def test_a_tensor_split_over_too_many_devices_is_refused() -> None:
    devices = [cpu(f"w{number}") for number in range(16)]
    with pytest.raises(UserError, match="gives layers to 16 devices"):
        plan_split(split_model(), [*devices, HEAD], _split(*[1.0] * 16))
    plan_split(split_model(), [*devices, HEAD], _split(*[1.0] * 15, 0.0))


def test_a_tensor_split_that_does_not_fit_is_refused() -> None:
    with pytest.raises(NotEnoughMemory):
        plan_split(split_model(), [cpu("a", 0.15), HEAD], _split(29, 1))


def test_options_of_the_context_reach_llama_server() -> None:
    shape = ContextShape(
        4096, parallel=2, unified=True, batch=1024, micro_batch=256, key_type="q8_0", value_type="q4_0",
        full_windows=True, flash_attention=False,
    )  # fmt: skip
    given = _options(plan_split(split_model(), [cpu("a"), HEAD], SplitOptions(shape)))
    for part in (
        "-c 4096 -np 2",
        "-b 1024",
        "-ub 256",
        "-ctk q8_0",
        "-ctv q4_0",
        "-kvu",
        "--swa-full",
        "-fa off",
    ):
        assert part in given


def test_an_upper_bound_is_said_to_be_one() -> None:
    plan = plan_split(split_model(exact=False), [cpu("a"), HEAD], OPTIONS)
    assert not plan.exact_cache
    assert isinstance(plan.reasons[-1], UnknownArchitecture)


def test_the_default_shape_is_small() -> None:
    assert default_shape(split_model()) == ContextShape(8192, parallel=1)
    assert default_shape(split_model(), tokens=100).tokens == 100


def test_faults_of_the_caller_are_found() -> None:
    with pytest.raises(LocalProtocolError, match="head's CPU once, not 0"):
        plan_split(split_model(), [cpu("a")], OPTIONS)
    with pytest.raises(LocalProtocolError, match="same device twice"):
        plan_split(split_model(), [cpu("a"), cpu("a"), HEAD], OPTIONS)


frees = st.floats(0.02, 6)


@given(
    st.lists(st.tuples(frees, st.booleans(), st.sampled_from(["", "p", "q"])), max_size=5),
    frees,
    st.sampled_from(["", "p"]),
    st.booleans(),
    st.sampled_from([True, False, None]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 40),
    st.sampled_from([256, 5000, 8192]),
)
def test_any_plan_fits_and_agrees_with_llama_cpp(
    workers: list[tuple[float, bool, str]],
    head_free: float,
    head_pool: str,
    head_layers: bool,
    local_output: bool | None,
    input_on_worker: bool,
    tied: bool,
    layers: int,
    tokens: int,
) -> None:
    model = split_model(layers=layers, layer_bytes=20 * MIB, tied=tied)
    devices = [
        Device(f"w{n}", "D", int(free * GIB), is_gpu=gpu, pool=pool, path=DevicePath(0.0003 if gpu else 0.02))
        for n, (free, gpu, pool) in enumerate(workers)
    ]
    devices.append(cpu("head", head_free, head=True, pool=head_pool))
    options = SplitOptions(
        ContextShape(tokens),
        head_layers=head_layers,
        local_output=local_output,
        input_on_worker=input_on_worker,
    )
    try:
        plan = plan_split(model, devices, options)
    except NotEnoughMemory as error:
        assert error.largest_context < tokens
        return
    assert sum(share.layers for share in plan.shares) == layers
    placed = place(layers, gpu_layers=plan.gpu_layers, tensor_split=plan.tensor_split)
    for number, share in enumerate(plan.shares, start=ON_CPU):
        assert placed[:-1].count(number) == share.layers
    used: dict[str, int] = {}
    for share in plan.shares:
        pool = share.device.pool or share.device.node
        used[pool] = used.get(pool, 0) + share.total
    for share in plan.shares:
        assert used[share.device.pool or share.device.node] <= share.device.free
    out = {item.node for item in plan.left_out}
    for device in devices[:-1]:
        assert (device.node in out) != any(share.device is device and share.layers for share in plan.shares)
    assert head_layers or plan.shares[0].layers == 0
    assert input_on_worker or not plan.input_device


@pytest.mark.parametrize(
    ("workers", "tied", "local_output", "overrides"),
    [
        (2, False, False, "-ot token_embd.weight=RPC0"),
        (2, False, True, r"-ot ^output\.weight=CPU,token_embd.weight=RPC0"),
        (1, True, False, "-ot token_embd.weight=RPC0"),
        (2, True, False, ""),  # the last one makes logits of them
        (1, True, True, "-ot token_embd.weight=CPU"),
    ],
)
def test_embeddings_lie_with_the_first_layers_unless_they_are_needed_elsewhere(
    workers: int, tied: bool, local_output: bool, overrides: str
) -> None:
    model = split_model(tied=tied)
    devices = [*(cpu(f"w{number}") for number in range(workers)), HEAD]
    options = SplitOptions(ContextShape(8192), head_layers=False, local_output=local_output)
    plain = plan_split(model, devices, options)
    plan = plan_split(model, devices, replace(options, input_on_worker=True))
    given = " ".join(plan.arguments)
    assert (overrides in given) if overrides else ("-ot" not in given)
    moved = model.embedding if plan.input_device else 0
    assert plain.shares[0].weights - plan.shares[0].weights == moved
    assert plan.shares[1].weights - plain.shares[1].weights == (0 if tied else moved)
    assert " ".join(plain.arguments).count("RPC0,") == given.count("RPC0,")


def test_embeddings_stay_with_a_head_that_has_the_first_layers_or_where_there_is_no_room() -> None:
    options = SplitOptions(ContextShape(8192), local_output=True, input_on_worker=True)
    assert plan_split(split_model(tied=False), [cpu("a"), HEAD], options).input_device == ""
    large = replace(split_model(tied=False), input=3 * GIB, embedding=3 * GIB)
    alone = replace(options, head_layers=False)
    assert plan_split(large, [cpu("a", 4.0), HEAD], alone).input_device == "RPC0"
    assert plan_split(large, [cpu("a", 2.0), HEAD], alone).input_device == ""


def test_embeddings_stay_with_a_head_whose_first_worker_is_a_plain_rpc_server() -> None:
    """It claims to have every operation, and not each device has rows of each quantized type."""
    options = SplitOptions(ContextShape(8192), head_layers=False, local_output=True, input_on_worker=True)
    plain, worker = replace(cpu("a"), is_plain=True), cpu("b")
    assert plan_split(split_model(tied=False), [plain, worker, HEAD], options).input_device == ""
    assert plan_split(split_model(tied=False), [worker, plain, HEAD], options).input_device == "RPC0"


def _cuts(layers: int, devices: int) -> list[tuple[int, ...]]:
    result = []
    for borders in combinations(range(1, layers), devices - 1):
        points = [0, *borders, layers]
        result.append(tuple(end - begin for begin, end in pairwise(points)))
    return result


def _keeps(counts: tuple[int, ...], costs: list[list[int]], limits: list[int]) -> bool:
    begin = 0
    for count, row, limit in zip(counts, costs, limits, strict=True):
        if sum(row[begin : begin + count]) > limit:
            return False
        begin += count
    return True


@st.composite
def _problems(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    layers, devices = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    costs = [draw(st.lists(st.integers(1, 9), min_size=layers, max_size=layers)) for _ in range(devices)]
    limits = draw(st.lists(st.integers(-2, 40), min_size=devices, max_size=devices))
    return costs, [max(0, limit) for limit in limits], limits


@given(_problems())
def test_finds_a_cut_exactly_when_there_is_one(problem: tuple[list[list[int]], list[int], list[int]]) -> None:
    costs, weights, limits = problem
    found = partition(costs, weights=weights, limits=limits)
    possible = [cut for cut in _cuts(len(costs[0]), len(costs)) if _keeps(cut, costs, limits)]
    if found is None:
        assert not possible
    else:
        assert found in possible


def test_equal_devices_get_equal_shares() -> None:
    for devices in range(1, 5):
        counts = partition([[10] * 30] * devices, weights=[7] * devices, limits=[1000] * devices)
        assert counts is not None
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == 30


def test_shares_follow_the_weights() -> None:
    assert partition([[1] * 40] * 3, weights=[10, 20, 10], limits=[40] * 3) == (10, 20, 10)


def test_a_limit_moves_layers_on() -> None:
    assert partition([[1] * 10] * 2, weights=[1, 1], limits=[3, 9]) == (3, 7)
    assert partition([[1] * 10] * 2, weights=[1, 1], limits=[9, 3]) == (7, 3)
    assert partition([[1] * 10] * 2, weights=[1, 1], limits=[3, 3]) is None


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=8).filter(lambda shares: sum(shares) > 0.1),
    st.integers(1, 90),
)
def test_share_out_is_whole_and_fair(shares: list[float], layers: int) -> None:
    counts = share_out(shares, layers)
    assert sum(counts) == layers
    assert all(count >= 0 for count in counts)
    given_any = [count for count, share in zip(counts, shares, strict=True) if share > 0]
    if len(given_any) <= layers:
        assert all(given_any)
    assert all(count == 0 for count, share in zip(counts, shares, strict=True) if share == 0)


def test_share_out_keeps_proportions() -> None:
    assert share_out((1, 1), 30) == (15, 15)
    assert share_out((3, 1), 30) == (23, 7)
    assert share_out((1, 0.001), 30) == (29, 1)
    assert share_out((1, 0.001), 2) == (1, 1), "one from the largest, if that has two"
    assert share_out((1, 0.001, 0.001), 2) == (1, 1, 0)
    assert share_out((0, 5, 5), 3) == (0, 2, 1), "of equal remainders the first"


def _upstream(layers: int, gpu_layers: int, shares: list[float]) -> list[int]:
    """`llama_model_base::load_tensors` line by line, in numpy's 32-bit floats."""
    splits = numpy.array(shares, dtype=numpy.float32)
    total = numpy.float32(0)
    for number in range(len(splits)):
        total = numpy.float32(total + splits[number])
        splits[number] = total
    splits = (splits / total).astype(numpy.float32)
    start = max(layers + 1 - gpu_layers, 0)
    active = min(gpu_layers, layers + 1)
    result = []
    for layer in range(layers + 1):
        if layer < start or layer - start >= active:
            result.append(ON_CPU)
            continue
        at = numpy.float32(numpy.float32(layer - start) / numpy.float32(active))
        result.append(int(numpy.searchsorted(splits, at, side="right")))
    return result


@given(
    st.integers(1, 200),
    st.integers(0, 260),
    st.lists(st.floats(0.0009765625, 1024, width=32), min_size=1, max_size=15),
)
def test_same_as_upstream_for_any_split(layers: int, gpu_layers: int, shares: list[float]) -> None:
    placed = place(layers, gpu_layers=gpu_layers, tensor_split=shares)
    assert list(placed) == _upstream(layers, gpu_layers, shares)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=15), st.integers(0, 60))
def test_whole_numbers_that_sum_up_are_exact(counts: list[int], on_cpu: int) -> None:
    """The form meshd always uses: shares are layers, the last has the output besides."""
    layers = sum(counts) + on_cpu
    shares = [*counts[:-1], counts[-1] + 1]
    placed = place(layers, gpu_layers=layers + 1 - on_cpu, tensor_split=shares)
    expected = [ON_CPU] * on_cpu
    for number, count in enumerate(counts):
        expected += [number] * count
    assert list(placed) == [*expected, len(counts) - 1]


def test_examples_seen_in_llama_servers_log() -> None:
    # SmolLM2, 30 layers: `assigned to device` lines of the pinned build
    def counts(gpu_layers: int, *shares: float) -> list[int]:
        placed = place(30, gpu_layers=gpu_layers, tensor_split=shares)[:-1]
        return [placed.count(number) for number in (ON_CPU, *range(len(shares)))]

    assert counts(99, 15, 16) == [0, 15, 15]
    assert counts(21, 10, 11) == [10, 10, 10]
    assert counts(99, 1, 1) == [0, 16, 14]


def test_no_devices_means_the_cpu() -> None:
    assert place(3, gpu_layers=0, tensor_split=()) == (ON_CPU,) * 4


def test_a_share_of_zero_gets_nothing() -> None:
    assert set(place(10, gpu_layers=11, tensor_split=(0, 1, 0))) == {1}


def test_thirds_are_rounded_as_floats_not_as_fractions() -> None:
    placed = place(29, gpu_layers=30, tensor_split=(1, 1, 1))
    assert [placed.count(number) for number in range(3)] == [10, 10, 10]
    assert Fraction(10, 30) == Fraction(1, 3)  # equal as fractions: the layer at the border goes on
    assert placed[10] == 1
