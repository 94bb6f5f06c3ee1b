"""Decide which layers of a model go to which device by their memory, and refuse models that do not fit.

The order is llama.cpp's: the head's CPU (the first layers, by `-ngl`), the workers as given, then the head's
own GPUs. The embeddings are on the head, or with the first layers on a worker: then a token's number crosses
in place of its row of some kB. The plan holds the options for llama-server that lead to exactly this split,
the bytes of every device, and why.

`place` is llama.cpp's own rule, in its own arithmetic, and each plan is checked against it:
`llama_model_base::load_tensors` of the pinned commit sums and divides the split in 32-bit floats, the first
`n_layer + 1 - ngl` layers stay on the CPU, and layer i of the rest goes to the first device whose cumulated
share is greater than i / rest. The output counts as one more layer behind the last.
"""

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from meshd.base.errors import LocalProtocolError, UserError
from meshd.model.cache import CELL_PADDING
from meshd.model.layers import ModelLayers, compute_bound
from meshd.model.output import OutputChoice, choose_output, output_on_cpu
from meshd.plan.reasons import (
    Absence,
    AllOn,
    AsGiven,
    HeadCpu,
    InProportion,
    LeftOut,
    MemoryUse,
    NoRoom,
    NoShare,
    OutputOn,
    Reason,
    Reasons,
    Shortage,
    TooFewLayers,
    TooManyDevices,
    UnknownArchitecture,
)
from meshd.plan.split import Device, DeviceShare, NoSplit, NotEnoughMemory, Plan, SplitOptions

ON_CPU = -1
MAX_SPLIT_DEVICES = 15  # llama_max_devices() is 16, and -ts wants fewer values than that
_F32 = struct.Struct("<f")


def plan_split(model: ModelLayers, devices: Sequence[Device], options: SplitOptions) -> Plan:
    """Split `model` over the workers' and the head's devices.

    Exactly one device must be the head's CPU. Each device gets layers in proportion to its usable memory,
    every worker at least one; the head's CPU takes layers only beside CPU workers or when needed to fit, and
    none with `head_layers` False. A worker that cannot hold one layer is left out, with the reason in the
    plan. Raises NotEnoughMemory with the numbers, UserError for a bad tensor split.
    """
    planner = _Planner(model, devices, options)
    plan = planner.plan()
    if plan is not None:
        return plan
    largest = planner.largest_context()
    if largest:
        answers = options.shape.parallel
        fewer = f" for {answers} requests at once, ask for fewer (`-- -np N`)" if answers > 1 else ""
        hint = f"use `--ctx-size {largest}`, the longest context that fits{fewer}, or add a worker"
    else:
        hint = "not even the shortest context fits: add a worker, free memory or use a smaller quantisation"
    if not options.head_layers:
        hint = f"{_without_the_head(model, devices, options)}; otherwise {hint}"
    raise NotEnoughMemory((planner.shortage(),), hint=hint, largest_context=largest)


def _without_the_head(model: ModelLayers, devices: Sequence[Device], options: SplitOptions) -> str:
    """Tell what `--device none` has to do with a refusal."""
    if _Planner(model, devices, replace(options, head_layers=True, tensor_split=())).plan() is not None:
        return "omit `--device none` or `--header-only`: with this node's memory it fits"
    return "omit `--device none` or `--header-only`, which keeps all layers off this node"


class _Planner:
    """Try the splits of one model that its devices and options allow."""

    def __init__(self, model: ModelLayers, devices: Sequence[Device], options: SplitOptions) -> None:
        cpus = [device for device in devices if device.is_head and not device.is_gpu]
        if len(cpus) != 1:
            raise LocalProtocolError(f"a split needs the head's CPU once, not {len(cpus)} times")
        if len({(device.node, device.name) for device in devices}) != len(devices):
            raise LocalProtocolError("a split got the same device twice")
        self._model = model
        self._options = options
        self._cpu = cpus[0]
        self._workers = [device for device in devices if not device.is_head]
        self._gpus = [device for device in devices if device.is_head and device.is_gpu]
        self._places = {id(device): number for number, device in enumerate(self._workers)}

    def plan(self) -> Plan | None:
        """Return the first plan that fits, or None."""
        plan = self._by_user() if self._options.tensor_split else self._by_memory()
        if plan is None and self._options.input_on_worker:
            plan = self._with(replace(self._options, input_on_worker=False)).plan()
        elif plan is None and self._options.local_output is None:  # if a worker had no room for the output
            plan = self._with(replace(self._options, local_output=True)).plan()
        return plan

    def _with(self, options: SplitOptions) -> "_Planner":
        return _Planner(self._model, [*self._workers, *self._gpus, self._cpu], options)

    def _by_memory(self) -> Plan | None:
        for cpu_layers, why in self._cpu_choices():
            plan = self._proportional(cpu_layers, why)
            if plan is not None:
                return plan
        return None

    def largest_context(self) -> int:
        """Find the longest context of an answer, below the asked one, for which there is a plan; 0: none."""
        asked = self._options.shape
        low, high = 0, max(0, asked.cells - 1) // CELL_PADDING
        while low < high:
            middle = (low + high + 1) // 2
            shape = asked.of(asked.parallel, middle * CELL_PADDING)
            if self._with(replace(self._options, shape=shape)).plan() is not None:
                low = middle
            else:
                high = middle - 1
        return low * CELL_PADDING

    def shortage(self) -> Shortage:
        """Add up what is needed and what is there, memory by memory."""
        order = self._order(self._options.head_layers, self._workers)
        used = order if self._cpu in order else [self._cpu, *order]
        memories = [
            MemoryUse(
                tuple(device.label for device in members),
                min(device.free for device in members),
                sum(self._fixed(device, order) for device in members),
                sum(self._compute(device, order) for device in members),
                any(device in order for device in members),
            )
            for members in self._members(used).values()
        ]
        model, shape = self._model, self._options.shape
        weights, cache = sum(model.layers), sum(model.cache.layer_bytes(shape))
        return Shortage(model.name, model.count, weights, cache, shape, tuple(memories))

    def _cpu_choices(self) -> list[tuple[bool, HeadCpu]]:
        """List whether the head's CPU takes layers, in the order in which that is tried, and why."""
        if not self._options.head_layers:
            return [(False, HeadCpu.NOT_WANTED)]
        others = [*self._workers, *self._gpus]
        if not others:
            return [(True, HeadCpu.ALONE)]
        if not any(device.is_gpu for device in others):
            return [(True, HeadCpu.AMONG_CPUS)]
        return [(False, HeadCpu.BESIDE_GPUS), (True, HeadCpu.GPUS_TOO_SMALL)]

    def _order(self, cpu_layers: bool, workers: Sequence[Device]) -> list[Device]:
        """List the devices that take layers, in the order of the layers."""
        gpus = self._gpus if self._options.head_layers else []
        return [*([self._cpu] if cpu_layers else []), *workers, *gpus]

    def _proportional(self, cpu_layers: bool, why: HeadCpu) -> Plan | None:
        """Divide the layers in proportion to usable memory; None where that does not fit."""
        # Leave out workers until each of the rest can take a layer.
        workers = list(self._workers)
        left_out: list[LeftOut] = []
        while True:
            order = self._order(cpu_layers, workers)
            if not order:
                return None
            dropped = self._one_too_many(order, workers)
            if dropped is None:
                break
            device, reason = dropped
            left_out.append(LeftOut(device.node, device.name, reason))
            workers.remove(device)
        # Divide within what each memory holds; a shared one has limits in sum.
        room = self._room(order)
        costs = [self._costs(device) for device in order]
        largest = max(max(row) for row in costs)
        shared_pools = self._members(order)
        limits = [
            # in a shared pool one device may take a layer of the other's half; the sum is checked below
            room[id(device)] + (largest if len(shared_pools[device.memory]) > 1 else 0)
            for device in order
        ]
        counts = partition(costs, weights=[max(0, room[id(d)]) for d in order], limits=limits)
        if counts is None:
            return None
        how = how_divided([device.node for device in order], counts)
        plan = self._build(order, counts, left_out, (how, why))
        return plan if _fits(plan) else None

    def _one_too_many(
        self, order: Sequence[Device], workers: Sequence[Device]
    ) -> tuple[Device, Absence] | None:
        """Find a worker that cannot take part, and why; None: all can."""
        if not workers:
            return None
        on_dev = [device for device in order if device is not self._cpu]
        if len(on_dev) > MAX_SPLIT_DEVICES:
            return one_to_spare(workers), TooManyDevices(MAX_SPLIT_DEVICES)
        if len(order) > self._model.count:
            return one_to_spare(workers), TooFewLayers(self._model.count)
        room = self._room(order)
        lacking = [device for device in workers if room[id(device)] < max(self._costs(device))]
        if not lacking:
            return None
        device = min(lacking, key=lambda device: device.free)  # of a pool the one that gives least
        return device, NoRoom(room[id(device)], max(self._costs(device)))

    def _by_user(self) -> Plan | None:
        own = (self._gpus or [self._cpu]) if self._options.head_layers else []
        order, counts = user_counts(self._options.tensor_split, self._workers, own, layers=self._model.count)
        kept = [(device, count) for device, count in zip(order, counts, strict=True) if count]
        kept.sort(key=lambda item: item[0] is not self._cpu)  # stable: the CPU's layers come first
        chosen = [device for device, _ in kept]
        check_split(sum(device is not self._cpu for device in chosen))
        by_user = not self._options.counts_chosen
        left_out = [
            LeftOut(device.node, device.name, NoShare(by_user))
            for device, count in zip(order, counts, strict=True)
            if not count
        ]
        plan = self._build(chosen, [count for _, count in kept], left_out, (AsGiven(by_user),))
        return plan if _fits(plan) else None

    def _members(self, order: Sequence[Device]) -> dict[str, list[Device]]:
        members: dict[str, list[Device]] = {}
        for device in order:
            members.setdefault(device.memory, []).append(device)
        return members

    def _room(self, order: Sequence[Device]) -> dict[int, int]:
        """Count the bytes that each device has for layers, beside all else; a pool is divided evenly."""
        present = order if self._cpu in order else [self._cpu, *order]
        taking = self._members(order)
        room: dict[int, int] = {}
        for pool, members in self._members(present).items():
            free = min(device.free for device in members)
            free -= sum(self._fixed(device, order) + self._compute(device, order) for device in members)
            for device in members:
                room[id(device)] = free // max(1, len(taking.get(pool, ())))
        return room

    def _output_on(self, order: Sequence[Device]) -> Device:
        """Return the device of the matrix that makes logits."""
        if not order or order[-1] is self._cpu:
            return self._cpu
        last = order[-1]
        return last if last.is_head or not self._output_choice(last).on_head else self._cpu

    def _input_on(self, order: Sequence[Device]) -> Device:
        """Return the device of the embeddings; those of a tied model make the logits, too, in one place."""
        first = order[0] if order else self._cpu
        movable = not first.is_plain and (not self._model.tied or self._output_on(order) is first)
        return first if self._options.input_on_worker and not first.is_head and movable else self._cpu

    def _output_choice(self, last: Device) -> OutputChoice:
        options = self._options
        return choose_output(
            self._model,
            last.path,
            slots=options.shape.parallel,
            worker_is_gpu=last.is_gpu,
            sampled=last.has_top_k,
            wanted=options.local_output,
        )

    def _fixed(self, device: Device, order: Sequence[Device]) -> int:
        """Add up the bytes of weights beside the layers."""
        model = self._model
        total = model.shared
        input_on = self._input_on(order)
        if device is self._cpu:
            total += model.input if device is input_on else model.input - model.embedding
        elif device is input_on and not model.tied:
            total += model.embedding
        if device is (order[-1] if order else self._cpu):
            total += model.output_rest
        if device is self._output_on(order):
            total += model.output
        return total

    def _copies(self, device: Device, order: Sequence[Device]) -> int:
        """Count the bytes of `_fixed` that are a second copy: a tied embedding, repacked to make logits."""
        both = device is self._input_on(order) is self._output_on(order)
        return self._model.output if both and self._model.tied and device is self._cpu else 0

    def _compute(self, device: Device, order: Sequence[Device]) -> int:
        on_dev = [item for item in order if item is not self._cpu]
        return compute_bound(
            self._model,
            self._options.shape,
            on_gpu=device.is_gpu,
            with_layers=any(item is device for item in order),
            with_output=device is self._output_on(order),
            pipelined=1 < len(on_dev) == len(order)
            and not (self._override(order) or self._input_on(order) is not self._cpu),
        )

    def _override(self, order: Sequence[Device]) -> str:
        moved = bool(order) and order[-1] is not self._cpu and self._output_on(order) is self._cpu
        return output_on_cpu(self._model) if moved else ""

    def _costs(self, device: Device) -> list[int]:
        layers = self._model.padded_layers if device.is_gpu else self._model.layers
        cache = self._model.cache.layer_bytes(self._options.shape)
        return [weights + kept for weights, kept in zip(layers, cache, strict=True)]

    def _build(
        self, order: Sequence[Device], counts: Sequence[int], left_out: Sequence[LeftOut], reasons: Reasons
    ) -> Plan:
        """Make the plan of these numbers of layers. Raises LocalProtocolError where llama.cpp differs."""
        # The share of each device, the head's CPU first.
        model, shape = self._model, self._options.shape
        cache = model.cache.layer_bytes(shape)
        shares: list[DeviceShare] = []
        if not any(device is self._cpu for device in order):
            order, counts = [self._cpu, *order], [0, *counts]
        taking = [device for device, count in zip(order, counts, strict=True) if count]
        begin = 0
        for device, count in zip(order, counts, strict=True):
            weights = model.padded_layers if device.is_gpu else model.layers
            end = begin + count
            copies = self._copies(device, taking)
            shares.append(
                DeviceShare(
                    device=device,
                    place=self._places.get(id(device)),
                    layers=count,
                    weights=sum(weights[begin:end]) + self._fixed(device, taking) - copies,
                    copies=copies,
                    cache=sum(cache[begin:end]),
                    compute=self._compute(device, taking),
                )
            )
            begin = end
        # llama.cpp's options for them.
        on_dev = [share for share in shares if share.device is not self._cpu]
        split = [share.layers for share in on_dev]
        if split:
            split[-1] += 1  # the output counts as a layer of the last device
        gpu_layers = model.count + 1 - shares[0].layers if split else 0
        plan = Plan(
            shares=tuple(shares),
            gpu_layers=gpu_layers,
            tensor_split=tuple(split),
            override_tensor=self._override(taking),
            shape=shape,
            exact_cache=model.cache.exact,
            left_out=tuple(left_out),
            reasons=(*reasons, *self._reasons(taking, left_out)),
            input_on_worker=self._input_on(taking) is not self._cpu,
        )
        check_placed(plan)
        return plan

    def _reasons(self, taking: Sequence[Device], left_out: Sequence[LeftOut]) -> Reasons:
        """Tell where the output is, who has no layers, and how exact the cache is known."""
        output = self._output_on(taking)
        estimate = OutputChoice(on_head=True)
        if taking and not taking[-1].is_head:
            estimate = self._output_choice(taking[-1])
        found: list[Reason] = [OutputOn(output.label, estimate.head_seconds, estimate.worker_seconds)]
        found += [left for left in left_out if (left.node, left.device) != (output.node, output.name)]
        if not self._model.cache.exact:
            found.append(UnknownArchitecture(self._model.architecture))
        return tuple(found)


def _fits(plan: Plan) -> bool:
    return all(left >= 0 for left in plan.left.values())


def user_counts(
    shares: Sequence[float], workers: Sequence[Device], own: Sequence[Device], *, layers: int
) -> tuple[list[Device], tuple[int, ...]]:
    """Count the layers of each device: workers, then the head's `own` if there are shares for them.

    Whole numbers that sum up to `layers` are taken as they are, and those of one more as llama.cpp does, for
    the output on the last device but a CPU of the head. Raises UserError; NoSplit where there are more or
    fewer devices than shares.
    """
    given = ",".join(f"{share:g}" for share in shares)
    order = [*workers, *own]
    if len(shares) not in (len(workers), len(order)):
        expected = " or ".join(str(n) for n in sorted({len(workers), len(order)}))
        names = ", ".join(device.label for device in order)
        raise NoSplit(
            f"the tensor split `{given}` has {len(shares)} shares, expected {expected}",
            hint=f"give one share for each worker, then for the head's own devices: {names}",
        )
    order = order[: len(shares)]
    if not all(0 <= share < float("inf") for share in shares) or not 0 < sum(shares) < float("inf"):
        raise UserError(f"the tensor split `{given}` needs shares of at least zero, not all zero")
    whole = tuple(int(share) for share in shares)
    if list(whole) == list(shares) and sum(whole) == layers:
        return order, whole
    on_dev = [
        number
        for number, device in enumerate(order)
        if whole[number] and (device.is_gpu or not device.is_head)
    ]
    if list(whole) == list(shares) and sum(whole) == layers + 1 and on_dev and whole[on_dev[-1]] > 1:
        last = on_dev[-1]
        return order, (*whole[:last], whole[last] - 1, *whole[last + 1 :])
    return order, share_out(shares, layers)


def partition(
    costs: Sequence[Sequence[int]], *, weights: Sequence[int], limits: Sequence[int]
) -> tuple[int, ...] | None:
    """Count the layers of each device, at least one each; None when no cut keeps every limit.

    `costs[d][i]`: bytes of layer i on device d; `weights`: what the shares follow; `limits`: bytes that
    device d can hold. Exact: a cut is found whenever there is one. The cut is the feasible one nearest to
    proportion, looked for from the first device on.
    """
    devices, layers = len(costs), len(costs[0])
    sums = [[0, *accumulate(row)] for row in costs]
    # holds[d][b]: devices d, d+1, … can take exactly the layers from b on
    holds = [[False] * (layers + 1) for _ in range(devices)] + [[False] * layers + [True]]
    for device in reversed(range(devices)):
        for begin in range(layers):
            last = _last_end(sums[device], begin, limits[device])
            holds[device][begin] = any(holds[device + 1][begin + 1 : last + 1])
    if not holds[0][0]:
        return None
    total_weight = sum(weights)
    begin, counts = 0, []
    for device in range(devices):
        last = _last_end(sums[device], begin, limits[device])
        share = sum(weights[: device + 1]) / total_weight if total_weight else (device + 1) / devices
        target = share * sums[device][-1]
        ends = [end for end in range(begin + 1, last + 1) if holds[device + 1][end]]
        end = min(ends, key=lambda end: (abs(sums[device][end] - target), -end))
        counts.append(end - begin)
        begin = end
    return tuple(counts)


def _last_end(row: Sequence[int], begin: int, limit: int) -> int:
    """Find the layer before which a device that starts at `begin` must stop; `row` is cumulated."""
    return bisect_right(row, row[begin] + limit) - 1


def share_out(shares: Sequence[float], layers: int) -> tuple[int, ...]:
    """Divide `layers` in whole numbers, in proportion to `shares` (largest remainder).

    A share above zero gets at least one layer as long as there are enough. Shares are not all zero.
    """
    total = sum(shares)
    exact = [share / total * layers for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for index in by_remainder[: layers - sum(counts)]:
        counts[index] += 1
    for index, share in enumerate(shares):
        if share > 0 and counts[index] == 0 and max(counts) > 1:
            counts[counts.index(max(counts))] -= 1
            counts[index] = 1
    return tuple(counts)


def how_divided(nodes: Sequence[str], counts: Sequence[int]) -> AllOn | InProportion:
    """Tell how devices of these nodes share the layers, by their memory."""
    taking = [node for node, count in zip(nodes, counts, strict=True) if count]
    return AllOn(taking[0]) if len(taking) == 1 else InProportion()


def _f32(value: float) -> float:
    return float(_F32.unpack(_F32.pack(value))[0])


def place(layers: int, *, gpu_layers: int, tensor_split: Sequence[float]) -> tuple[int, ...]:
    """Return the index into `-dev` of each of the `layers` blocks and, last, of the output; or ON_CPU.

    `tensor_split` has one positive or zero share for each device, not all zero; empty means no device.
    """
    start = max(layers + 1 - gpu_layers, 0)
    active = min(gpu_layers, layers + 1) if tensor_split else 0
    cumulated: list[float] = []
    total = 0.0
    for share in tensor_split:
        total = _f32(total + _f32(share))
        cumulated.append(total)
    points = [_f32(point / total) for point in cumulated]
    placed: list[int] = []
    for layer in range(layers + 1):
        if layer < start or layer - start >= active:
            placed.append(ON_CPU)
        else:
            placed.append(bisect_right(points, _f32(_f32(layer - start) / active)))
    return tuple(placed)


def check_placed(plan: Plan) -> None:
    """Check that the options lead llama.cpp to this very plan. Raises LocalProtocolError when not."""
    layers = sum(share.layers for share in plan.shares)
    placed = place(layers, gpu_layers=plan.gpu_layers, tensor_split=plan.tensor_split)
    expected: list[int] = []
    for number, share in enumerate(plan.shares, start=ON_CPU):
        expected += [number] * share.layers
    expected.append(len(plan.devices) - 1 if plan.devices else ON_CPU)
    if list(placed) != expected:
        raise LocalProtocolError(f"planned {expected}, llama.cpp would place {placed}")


def check_split(devices: int) -> None:
    """Check the number of devices of a split by hand. Raises UserError."""
    if devices > MAX_SPLIT_DEVICES:
        raise UserError(
            f"`--tensor-split` gives layers to {devices} devices, llama.cpp supports {MAX_SPLIT_DEVICES}",
            hint="give some of them 0",
        )


def one_to_spare(devices: Sequence[Device]) -> Device:
    """Return the device to leave out of too many: the last one of the node that has most.

    The order is by names, which nodes give themselves: none can push the others out with many devices.
    """
    of_node = Counter(device.node for device in devices)
    most = max(of_node.values())
    return next(device for device in reversed(devices) if of_node[device.node] == most)
