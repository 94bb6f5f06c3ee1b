"""Decides which layers of a model go to which device, and refuses models that do not fit.

The order is llama.cpp's: the head's CPU (the first layers, by `-ngl`), the workers as given, then the head's
own GPUs. The embeddings are on the head, or with the first layers on a worker: then a token's number crosses
in place of its row of some kB. The answer holds the options for llama-server that lead to exactly this split
(checked against `placement.place`), the bytes of every device, and why.
"""

from collections.abc import Sequence
from dataclasses import replace

from meshd.base.byte_format import in_memory
from meshd.base.errors import LocalProtocolError
from meshd.model.cache import CELL_PADDING
from meshd.model.compute import compute_bound
from meshd.model.layers import ModelLayers
from meshd.model.llama_placement import MAX_SPLIT_DEVICES, check_placed, check_split, one_to_spare
from meshd.model.output import OutputChoice, choose_output, output_on_cpu
from meshd.model.partition import how_divided, partition
from meshd.model.shortage import MemoryUse, shortage_text
from meshd.model.split_values import Device, DeviceShare, LeftOut, NotEnoughMemory, Plan, SplitOptions
from meshd.model.user_split import user_counts


def plan_split(model: ModelLayers, devices: Sequence[Device], options: SplitOptions) -> Plan:
    """The split of `model` over the workers' and the head's devices.

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
        fewer = f" for {answers} answers at once, ask for fewer (`-- -np N`)" if answers > 1 else ""
        hint = f"use `--ctx-size {largest}`, the longest context that fits{fewer}, or add a worker"
    else:
        hint = "not even the shortest context fits: add a worker, free memory or use a smaller quantisation"
    if not options.head_layers:
        hint = f"{_without_the_head(model, devices, options)}; otherwise {hint}"
    raise NotEnoughMemory(planner.shortage(), hint=hint, largest_context=largest)


def _without_the_head(model: ModelLayers, devices: Sequence[Device], options: SplitOptions) -> str:
    """What `--device none` has to do with it."""
    if _Planner(model, devices, replace(options, head_layers=True, tensor_split=())).plan() is not None:
        return "omit `--device none` or `--header-only`: with this node's memory it fits"
    return "omit `--device none` or `--header-only`, which keeps all layers off this node"


class _Planner:
    """One model, devices and options; tries the splits that they allow."""

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
        self._names = {id(device): f"RPC{number}" for number, device in enumerate(self._workers)}
        self._names |= {id(device): device.name for device in self._gpus}
        self._names[id(self._cpu)] = "CPU"

    def plan(self) -> Plan | None:
        """The first that fits, or None."""
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
        """The longest context of an answer, below the asked one, for which there is a plan; 0 when none."""
        asked = self._options.shape
        low, high = 0, max(0, asked.answer_tokens - 1) // CELL_PADDING
        while low < high:
            middle = (low + high + 1) // 2
            shape = asked.of(asked.parallel, middle * CELL_PADDING)
            if self._with(replace(self._options, shape=shape)).plan() is not None:
                low = middle
            else:
                high = middle - 1
        return low * CELL_PADDING

    def shortage(self) -> str:
        """What is needed and what is there, device by device."""
        order = self._order(self._options.head_layers, self._workers)
        used = order if self._cpu in order else [self._cpu, *order]
        memories = [
            MemoryUse(
                [device.label for device in members],
                min(device.free for device in members),
                sum(self._fixed(device, order) for device in members),
                sum(self._compute(device, order) for device in members),
                any(device in order for device in members),
            )
            for members in self._members(used).values()
        ]
        return shortage_text(self._model, self._options.shape, memories)

    def _cpu_choices(self) -> list[tuple[bool, str]]:
        if not self._options.head_layers:
            return [(False, "the head gets no layers (`--device none`)")]
        others = [*self._workers, *self._gpus]
        if not others:
            return [(True, "there is no other device")]
        if not any(device.is_gpu for device in others):
            return [(True, "the head gets layers because all devices are CPUs")]
        return [
            (False, "the head's CPU gets no layers because there are GPUs"),
            (True, "the head's CPU gets layers because the GPUs alone lack the memory"),
        ]

    def _order(self, cpu_layers: bool, workers: Sequence[Device]) -> list[Device]:
        """The devices that take layers, in the order of the layers."""
        gpus = self._gpus if self._options.head_layers else []
        return [*([self._cpu] if cpu_layers else []), *workers, *gpus]

    def _proportional(self, cpu_layers: bool, why: str) -> Plan | None:
        workers = list(self._workers)
        left_out: list[LeftOut] = []
        while True:
            order = self._order(cpu_layers, workers)
            if not order:
                return None
            dropped = self._one_too_many(order, workers)
            if dropped is None:
                break
            left_out.append(dropped)
            workers.remove(dropped.device)
        room = self._room(order)
        costs = [self._costs(device) for device in order]
        largest = max(max(row) for row in costs)
        shared_pools = self._members(order)
        limits = [
            # in a shared pool one device may take a layer of the other's half; the sum is checked below
            room[id(device)] + (largest if len(shared_pools[self._pool(device)]) > 1 else 0)
            for device in order
        ]
        counts = partition(costs, weights=[max(0, room[id(d)]) for d in order], limits=limits)
        if counts is None:
            return None
        how = how_divided([device.node for device in order], counts)
        plan = self._build(order, counts, left_out, f"{how}; {why}")
        return plan if self._fits(plan) else None

    def _one_too_many(self, order: Sequence[Device], workers: Sequence[Device]) -> LeftOut | None:
        """A worker that cannot take part, if there is one."""
        if not workers:
            return None
        on_dev = [device for device in order if device is not self._cpu]
        if len(on_dev) > MAX_SPLIT_DEVICES:
            return LeftOut(one_to_spare(workers), f"llama.cpp supports at most {MAX_SPLIT_DEVICES} devices")
        if len(order) > self._model.count:
            return LeftOut(one_to_spare(workers), f"the model has only {self._model.count} layers")
        room = self._room(order)
        lacking = [device for device in workers if room[id(device)] < max(self._costs(device))]
        if not lacking:
            return None
        device = min(lacking, key=lambda device: device.free)  # of a pool the one that gives least
        usable, need = in_memory(max(0, room[id(device)])), in_memory(max(self._costs(device)))
        return LeftOut(device, f"{usable} are left for layers; one layer needs {need}")

    def _by_user(self) -> Plan | None:
        own = (self._gpus or [self._cpu]) if self._options.head_layers else []
        order, counts = user_counts(self._options.tensor_split, self._workers, own, layers=self._model.count)
        kept = [(device, count) for device, count in zip(order, counts, strict=True) if count]
        kept.sort(key=lambda item: item[0] is not self._cpu)  # stable: the CPU's layers come first
        chosen = [device for device, _ in kept]
        check_split(sum(device is not self._cpu for device in chosen))
        source = "plan" if self._options.counts_chosen else "tensor split"
        left_out = [
            LeftOut(device, f"it has no share in the {source}")
            for device, count in zip(order, counts, strict=True)
            if not count
        ]
        plan = self._build(chosen, [count for _, count in kept], left_out, f"according to the {source}")
        return plan if self._fits(plan) else None

    def _pool(self, device: Device) -> str:
        return device.pool or f"own {id(device)}"

    def _members(self, order: Sequence[Device]) -> dict[str, list[Device]]:
        members: dict[str, list[Device]] = {}
        for device in order:
            members.setdefault(self._pool(device), []).append(device)
        return members

    def _room(self, order: Sequence[Device]) -> dict[int, int]:
        """Bytes each device has for layers, after what it needs in any case; a pool is divided evenly."""
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
        """Where the matrix that makes logits lies."""
        if not order or order[-1] is self._cpu:
            return self._cpu
        last = order[-1]
        return last if last.is_head or not self._output_choice(last).on_head else self._cpu

    def _input_on(self, order: Sequence[Device]) -> Device:
        """Where the embeddings lie; those of a tied model make the logits, too, and are in one place."""
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
            sampled=options.sampled_with_output and last.has_top_k,
            wanted=options.local_output,
        )

    def _fixed(self, device: Device, order: Sequence[Device]) -> int:
        """Bytes of weights beside the layers."""
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
            total += model.output  # also when tied: a repacked copy may lie beside the embedding
        return total

    def _compute(self, device: Device, order: Sequence[Device]) -> int:
        on_dev = [item for item in order if item is not self._cpu]
        return compute_bound(
            self._model,
            self._options.shape,
            on_gpu=device.is_gpu,
            with_layers=any(item is device for item in order),
            with_output=device is self._output_on(order),
            pipelined=1 < len(on_dev) == len(order)
            and not (self._override(order) or self._moved_input(order)),
        )

    def _override(self, order: Sequence[Device]) -> str:
        moved = bool(order) and order[-1] is not self._cpu and self._output_on(order) is self._cpu
        return output_on_cpu(self._model) if moved else ""

    def _moved_input(self, order: Sequence[Device]) -> str:
        device = self._input_on(order)
        return "" if device is self._cpu else self._names[id(device)]

    def _costs(self, device: Device) -> list[int]:
        layers = self._model.padded_layers if device.is_gpu else self._model.layers
        cache = self._model.cache.layer_bytes(self._options.shape)
        return [weights + kept for weights, kept in zip(layers, cache, strict=True)]

    def _build(
        self, order: Sequence[Device], counts: Sequence[int], left_out: Sequence[LeftOut], why: str
    ) -> Plan:
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
            shares.append(
                DeviceShare(
                    device=device,
                    llama_name=self._names[id(device)],
                    layers=count,
                    weights=sum(weights[begin:end]) + self._fixed(device, taking),
                    cache=sum(cache[begin:end]),
                    compute=self._compute(device, taking),
                )
            )
            begin = end
        on_dev = [share for share in shares if share.device is not self._cpu]
        split = [share.layers for share in on_dev]
        if split:
            split[-1] += 1  # the output counts as a layer of the last device
        gpu_layers = model.count + 1 - shares[0].layers if split else 0
        plan = Plan(
            shares=tuple(shares),
            devices=tuple(share.llama_name for share in on_dev),
            gpu_layers=gpu_layers,
            tensor_split=tuple(split),
            override_tensor=self._override(taking),
            shape=shape,
            exact_cache=model.cache.exact,
            left_out=tuple(left_out),
            why=self._why(why, taking, left_out),
            short=why.partition("; ")[0],
            input_device=self._moved_input(taking),
        )
        check_placed(plan)
        return plan

    def _why(self, why: str, taking: Sequence[Device], left_out: Sequence[LeftOut]) -> str:
        there = "" if not taking or taking[-1].is_head else self._output_choice(taking[-1]).why
        output = self._output_on(taking)
        parts = [why, f"output on {output.label}" + (f" ({there})" if there else "")]
        parts += [f"{x.device.label} left out: {x.why}" for x in left_out if x.device is not output]
        if not self._model.cache.exact:
            name = self._model.architecture
            parts.append(f"architecture `{name}` is unknown: its cache size is an upper bound")
        return "; ".join(parts)

    def _fits(self, plan: Plan) -> bool:
        totals: dict[str, int] = {}
        free: dict[str, int] = {}
        for share in plan.shares:
            pool = self._pool(share.device)
            totals[pool] = totals.get(pool, 0) + share.total
            free[pool] = min(free.get(pool, share.device.free), share.device.free)
        return all(totals[pool] <= free[pool] for pool in totals)
