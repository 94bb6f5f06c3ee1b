"""Which machines a model runs on, and how it is split over them: the fastest that is predicted. Pure.

Sets and orders of workers, each with a few ways to divide the layers, are ranked by a rough prediction; the
best of them are planned in full (split_plan.py), with their memory, and predicted once more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from meshd.base.errors import Refused, UserError
from meshd.model.cache import ContextShape
from meshd.model.compute import compute_bound
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.partition import share_out
from meshd.model.prediction import PlannedStage, Prediction, Split
from meshd.model.split_values import Plan
from meshd.role.head.draft_model import beside_draft
from meshd.role.head.plan_prediction import (
    CorrectedPart,
    Machines,
    PlanPredictor,
)
from meshd.role.head.shared_memory import plan_over
from meshd.role.head.speed_corrections import SpeedCorrection
from meshd.role.head.split_plan import HeadOptions, NodeOffer, shape_of, without_idle
from meshd.wire.lease import OfferedDevice

_MOST_NODES = 6  # workers of which all sets are looked at: the fastest
_MOST_ORDERED = 3  # of a set of which all orders are
_MOST_PLANNED = 12  # candidates that are planned in full
_PLACES = ("head", "worker")  # of the output
_CLEARLY = 1.1  # times as fast, as predicted: worth a word to who has ruled it out
_WORTH = 0.97  # of the time on fewer machines: less than that is worth one more, as these are estimates


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """A split that fits, and what it will do."""

    plan: Plan
    offers: tuple[NodeOffer, ...]
    options: HeadOptions
    prediction: Prediction
    seconds: float
    why: str = ""
    correction: SpeedCorrection | None = None
    parts: tuple[CorrectedPart, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that hold layers, in their order."""
        return tuple(dict.fromkeys(share.device.node for share in self.plan.shares if share.layers))


@dataclass(frozen=True, slots=True)
class _Division:
    """`counts`: layers for the devices of these offers in turn, then the head's own; empty: by memory."""

    offers: tuple[NodeOffer, ...]
    counts: tuple[int, ...] = ()


def choose_split(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions, *, least: int = 0
) -> list[SplitChoice]:
    """All that were planned, the chosen one first. At least `least` workers take part.

    Raises NotEnoughMemory, UserError, Refused where nothing fits, with the reason of the plan by memory.
    """
    chooser = _SplitChooser(layers, work, machines, options)
    found: list[SplitChoice] = []
    error: UserError | Refused | None = None
    by_memory = _Division(machines.offers)
    for candidate in [by_memory, *chooser.ranked(least)]:
        for output in _PLACES if options.output == "auto" else (options.output,):
            try:
                found.append(chooser.planned(candidate, output))
            except (UserError, Refused) as refusal:
                if candidate is by_memory or len(candidate.offers) >= least:
                    error = error or refusal
    found = _without_twins(sorted(found, key=_cost))
    allowed = [one for one in found if _workers(one) >= least]
    if not allowed:
        raise error or Refused(f"no split uses {least} workers", code="workers")
    return _explained(allowed, [one for one in found if _workers(one) < least])


def _workers(choice: SplitChoice) -> int:
    return len(
        {share.device.node for share in choice.plan.shares if share.layers and not share.device.is_head}
    )


def _cost(choice: SplitChoice) -> float:
    """Each further machine must be worth it."""
    return choice.seconds / _WORTH ** (len(choice.nodes) - 1)


def _without_twins(choices: Sequence[SplitChoice]) -> list[SplitChoice]:
    """Of each division of the layers the first."""
    seen: dict[tuple[tuple[str, str, int], ...], SplitChoice] = {}
    for one in choices:
        shares = tuple((s.device.node, s.device.name, s.layers) for s in one.plan.shares if s.layers)
        seen.setdefault(shares, one)
    return list(seen.values())


def _explained(choices: Sequence[SplitChoice], ruled_out: Sequence[SplitChoice]) -> list[SplitChoice]:
    """`ruled_out`: with fewer workers than the user wants."""
    best = choices[0]
    others = [one for one in choices[1:] if (len(one.nodes) > 1) != (len(best.nodes) > 1)]
    if len(best.nodes) == 1:
        why = f"not split: it fits on `{best.nodes[0]}`"
        if others:
            cost = round(100 * (1 - best.seconds / others[0].seconds))
            why += f", a split costs {cost} %" if cost > 0 else ", and a split gains next to nothing"
    else:
        why = f"split over {' → '.join(f'`{node}`' for node in best.nodes)}"
        if others:
            slower = others[0].seconds / best.seconds
            why += f": {slower:.2f} times as fast as `{others[0].nodes[0]}` alone"
        elif len(choices) > 1 and not any(len(one.nodes) == 1 for one in ruled_out):
            why += ": it fits on no single machine"
    if ruled_out and (times := best.seconds / ruled_out[0].seconds) >= _CLEARLY:
        nodes = " → ".join(f"`{node}`" for node in ruled_out[0].nodes)
        alone = " alone" if len(ruled_out[0].nodes) == 1 else ""
        option = f"`--min-workers {_workers(ruled_out[0])}`"
        why += f"; {nodes}{alone} would be {times:.2f} times as fast: {option}"
    return [replace(best, why=why), *choices[1:]]


class _SplitChooser:
    def __init__(
        self, layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
    ) -> None:
        self._layers = layers
        self._machines = machines
        self._options = options
        self._shape: ContextShape = shape_of(layers, options)
        self._plans = PlanPredictor(layers, work, machines, options)
        self._predictor = self._plans.predictor
        self._largest: dict[bool, int] = {}  # bytes of a layer with its cache, on a GPU and elsewhere
        self._of_device: dict[tuple[str, str], tuple[int, float]] = {}  # as _room_and_speed gives them

    # In full.

    def planned(self, candidate: _Division, output: str) -> SplitChoice:
        """Raises NotEnoughMemory, UserError, Refused."""
        split = tuple(map(float, candidate.counts)) or self._options.tensor_split
        options = replace(
            self._options, tensor_split=split, counts_chosen=bool(candidate.counts), output=output
        )
        machines = self._machines
        plan, offers = plan_over(
            self._layers,
            offers=candidate.offers,
            plain_rpc=machines.plain_rpc,
            own=machines.own,
            options=replace(options, min_workers=0),
            own_excluded=machines.own_excluded,
        )
        plan, used = without_idle(plan, offers)
        found = self._plans.predict(plan)
        return SplitChoice(
            plan,
            tuple(used),
            options,
            found.prediction,
            found.answer_s,
            correction=found.correction,
            parts=found.parts,
        )

    # Roughly.

    def ranked(self, least: int) -> list[_Division]:
        """The most promising with so many workers or more; of fewer the best, to compare with."""
        if self._options.tensor_split:
            return []
        rough = []
        for offers in self._orders():
            for counts in self._divisions(offers):
                split = self._rough_split(offers, counts)
                if split is not None:
                    rough.append((self._plans.answer_seconds(split), offers, counts))
        rough.sort(key=lambda one: one[0])
        kept = [one for one in rough if len(one[1]) >= least][: _MOST_PLANNED - 4]
        for size in range(4):  # of each size the best, so that there is something to compare with
            of_size = [one for one in rough if len(one[1]) == size]
            kept += [one for one in of_size[:1] if one not in kept]
        return [_Division(offers, counts) for _, offers, counts in kept]

    def _orders(self) -> Iterator[tuple[NodeOffer, ...]]:
        able = [offer for offer in self._machines.offers if offer.devices]
        able.sort(key=lambda offer: min(self._room_and_speed(offer, one)[1] for one in offer.devices))
        able = able[:_MOST_NODES]
        for count in range(len(able) + 1):
            for chosen in combinations(able, count):
                if count <= _MOST_ORDERED:
                    yield from permutations(chosen)
                else:
                    yield self._nearest_first(chosen)

    def _nearest_first(self, offers: Sequence[NodeOffer]) -> tuple[NodeOffer, ...]:
        left = list(offers)
        ordered: list[NodeOffer] = []
        while left:
            before = ordered[-1].node if ordered else ""
            nearest = min(left, key=lambda one: self._between(before, one))
            ordered.append(nearest)
            left.remove(nearest)
        return tuple(ordered)

    def _between(self, before: str, offer: NodeOffer) -> float:
        path = self._machines.paths.get((before, offer.node)) or offer.path
        return path.rtt if path is not None else 0.0

    def _room_and_speed(self, offer: NodeOffer | None, device: OfferedDevice) -> tuple[int, float]:
        """Layers for which there is memory, roughly, and seconds of a token in one of them."""
        key = (offer.node if offer is not None else "", device.name)
        if key not in self._of_device:
            seconds = self._predictor.layer_seconds(self._whole(offer, device))
            self._of_device[key] = self._room(device), seconds
        return self._of_device[key]

    def _whole(self, offer: NodeOffer | None, device: OfferedDevice) -> PlannedStage:
        node = offer.node if offer is not None else self._options.node_name
        path = offer.path if offer is not None else None
        weights, gpu = sum(self._layers.layers), device.kind == "gpu"
        return self._plans.stage(
            node, device.name, 0, self._layers.count, weights, gpu, path, is_head=offer is None
        )

    def _own(self) -> list[OfferedDevice]:
        if self._options.devices == ("none",):
            return []
        own = beside_draft(self._machines.own, self._options.draft_model, self._shape)
        able = [device for device in own if device.name not in self._machines.own_excluded]
        gpus = [device for device in able if device.kind == "gpu"]
        return gpus or able[:1]

    def _devices(self, offers: Sequence[NodeOffer]) -> list[tuple[NodeOffer | None, OfferedDevice]]:
        """As `--tensor-split` counts them."""
        remote: list[tuple[NodeOffer | None, OfferedDevice]] = [
            (offer, device) for offer in offers for device in offer.devices
        ]
        return remote + [(None, device) for device in self._own()]

    def _divisions(self, offers: Sequence[NodeOffer]) -> list[tuple[int, ...]]:
        """Ways to divide the layers: as many as fit on the fastest, and by speed."""
        devices, total = self._devices(offers), self._layers.count
        if not devices or len(devices) > total:
            return []
        room = [self._room_and_speed(*one)[0] for one in devices]
        each = [self._room_and_speed(*one)[1] for one in devices]
        least = [1 if offer is not None else 0 for offer, _ in devices]
        if sum(room) < total or any(have < want for have, want in zip(room, least, strict=True)):
            return []
        filled = _filled(room, each, least, total)
        balanced = share_out([1 / max(1e-9, seconds) for seconds in each], total)
        found = [filled]
        if all(count <= have for count, have in zip(balanced, room, strict=True)):
            found.append(balanced)
        if devices[-1][0] is None and offers:  # all of it on the workers
            without = _filled([*room[: -len(self._own())], *[0] * len(self._own())], each, least, total)
            found += [without] if sum(without) == total else []
        return list(dict.fromkeys(found))

    def _room(self, device: OfferedDevice) -> int:
        on_gpu = device.kind == "gpu"
        beside = compute_bound(
            self._layers, self._shape, on_gpu=on_gpu, with_layers=True, with_output=True, pipelined=False
        )
        free = device.free_bytes - beside - self._layers.output
        return max(0, min(self._layers.count, free // max(1, self._largest_layer(on_gpu=on_gpu))))

    def _largest_layer(self, *, on_gpu: bool) -> int:
        if on_gpu not in self._largest:
            layers = self._layers.padded_layers if on_gpu else self._layers.layers
            shape = replace(self._shape, parallel=1, tokens=self._shape.cells)
            caches = self._layers.cache.layer_bytes(shape)
            self._largest[on_gpu] = max(map(sum, zip(layers, caches, strict=True)))
        return self._largest[on_gpu]

    def _rough_split(self, offers: Sequence[NodeOffer], counts: Sequence[int]) -> Split | None:
        devices = self._devices(offers)
        if sum(counts) != self._layers.count:
            return None
        order = list(zip(devices, counts, strict=True))
        order.sort(
            key=lambda one: not (one[0][0] is None and one[0][1].kind != "gpu")
        )  # the head's CPU first
        stages, begin = [], 0
        for (offer, device), count in order:
            if count:
                whole = self._whole(offer, device)
                weights = sum(self._layers.layers[begin : begin + count])
                stages.append(replace(whole, begin=begin, end=begin + count, weights=weights))
                begin += count
        last = stages[-1]
        sampled = self._options.sample_on_worker
        output = last if sampled or last.is_head else self._plans.own_cpu()
        return Split(
            stages=tuple(stages),
            output=output,
            micro_batch=min(256, self._shape.step_tokens),
            slots=self._shape.parallel,
            pushed=self._options.push,
            numbers=not stages[0].is_head and (not self._layers.tied or output is stages[0]),
            paths=self._machines.paths,
        )


def _filled(room: Sequence[int], each: Sequence[float], least: Sequence[int], total: int) -> tuple[int, ...]:
    """As many layers as fit on the fastest device, then on the next."""
    counts = [min(have, want) for have, want in zip(room, least, strict=True)]
    for at in sorted(range(len(room)), key=lambda at: each[at]):
        counts[at] += max(0, min(room[at] - counts[at], total - sum(counts)))
    return tuple(counts)
