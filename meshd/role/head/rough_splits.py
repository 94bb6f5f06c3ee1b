"""Sets and orders of workers, each with a few ways to divide the layers, by a rough prediction. Pure.

The best of them are planned in full (split_choice.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshd.model.cache import ContextShape
from meshd.model.compute import compute_bound
from meshd.model.layers import ModelLayers
from meshd.model.llama_placement import MAX_SPLIT_DEVICES
from meshd.model.partition import share_out
from meshd.model.prediction import PlannedStage, Split
from meshd.role.head.answer_ways import AnswerWays
from meshd.role.head.draft_model import beside_draft
from meshd.role.head.plan_prediction import ASSUMED_ANSWER, Machines, PlanPredictor
from meshd.role.head.shared_cards import one_for_each_card
from meshd.role.head.split_plan import HeadOptions, NodeOffer, shape_of
from meshd.role.head.worker_orders import ConsideredWorker, WorkerOrders, short_way
from meshd.wire.lease import OfferedDevice

_MOST_PLANNED = 12  # candidates that are planned in full
_MOST_BETTERED = 4  # times that the best of many workers is looked at with another one

_Times = dict[tuple[tuple[str, ...], tuple[int, ...]], float]  # of an answer, by workers and counts


@dataclass(frozen=True, slots=True)
class Division:
    """`counts`: layers for the devices of these offers in turn, then the head's own; empty: by memory."""

    offers: tuple[NodeOffer, ...]
    counts: tuple[int, ...] = ()


class RoughSplits:
    """Of one model over these machines; at least `least` workers are to take part."""

    def __init__(
        self,
        layers: ModelLayers,
        machines: Machines,
        options: HeadOptions,
        plans: PlanPredictor,
        least: int,
    ) -> None:
        self._layers = layers
        self._machines = machines
        self._options = options
        self._plans = plans
        self._least = least
        self._shape: ContextShape = shape_of(layers, options)
        self._able = {offer.node: offer for offer in machines.offers if offer.devices}
        apart = one_for_each_card(machines.offers, machines, options, least=0)
        too_few = sum(bool(offer.devices) for offer in apart) < least
        self._needs_all = least if too_few else 0  # cards that several nodes lend are shared
        self._largest: dict[bool, int] = {}  # bytes of a layer with its cache, on a GPU and elsewhere
        self._of_device: dict[tuple[str, str], tuple[int, float]] = {}  # as _room_and_speed gives them
        tokens, wide = self._shape.step_tokens, layers.widths.embedding
        self._ways = AnswerWays(machines, wide, tokens, pushed=options.push, numbers=not layers.tied)

    @property
    def by_memory(self) -> Division:
        """Over all workers: from each to one that is near to it, unless the user's split is for an order."""
        if self._options.tensor_split:
            return Division(self._machines.offers)
        offers = one_for_each_card(self._machines.offers, self._machines, self._options, least=self._least)
        considered = [self._considered(offer) for offer in offers]
        of_node = {offer.node: offer for offer in offers}
        return Division(tuple(of_node[one.node] for one in short_way(considered, self._ways)))

    def ranked(self) -> list[Division]:
        """The most promising with enough workers; of fewer the best, to compare with."""
        if self._options.tensor_split:
            return []
        orders, rough, least = self._worker_orders(), _Times(), self._least
        self._add(rough, orders.all())
        for _ in range(_MOST_BETTERED):
            best = next((nodes for nodes, _ in _sorted(rough) if len(nodes) >= least), None)
            before = len(rough)
            self._add(rough, orders.beside(best) if best is not None else ())
            if len(rough) == before or next(n for n, _ in _sorted(rough) if len(n) >= least) == best:
                break
        ranked = _sorted(rough)
        kept = [one for one in ranked if len(one[0]) >= least][: _MOST_PLANNED - 4]
        for size in range(4):  # of each size the best, so that there is something to compare with
            of_size = [one for one in ranked if len(one[0]) == size]
            kept += [one for one in of_size[:1] if one not in kept]
        return [Division(self._of(nodes), counts) for nodes, counts in kept]

    def _add(self, rough: _Times, orders: Iterable[Sequence[ConsideredWorker]]) -> None:
        for order in orders:
            nodes = tuple(one.node for one in order)
            offers = self._of(nodes)
            if not all(offer.devices for offer in offers):
                continue  # another one has its card: it is as if it were not there
            for counts in self._divisions(offers):
                split = self._rough_split(offers, counts) if (nodes, counts) not in rough else None
                if split is not None:
                    rough[nodes, counts] = self._plans.answer_seconds(split)

    def _of(self, nodes: Sequence[str]) -> tuple[NodeOffer, ...]:
        """Each card once, unless too few workers take part then."""
        given = [self._able[node] for node in nodes]
        return one_for_each_card(given, self._machines, self._options, least=self._needs_all)

    def _worker_orders(self) -> WorkerOrders:
        own, layers = self._own(), self._layers.count
        return WorkerOrders(
            [self._considered(offer) for offer in self._able.values()],
            self._ways,
            needed=layers - sum(self._room_and_speed(None, one)[0] for one in own),
            layers=layers,
            least=self._least,
            most_devices=min(layers, MAX_SPLIT_DEVICES) - sum(one.kind == "gpu" for one in own),
        )

    def _considered(self, offer: NodeOffer) -> ConsideredWorker:
        found = [self._room_and_speed(offer, device) for device in offer.devices]
        room = sum(layers for layers, _ in found)
        seconds = sum(layers * each for layers, each in found) / max(1, room)
        room = min(room, self._layers.count)
        return ConsideredWorker(offer.node, room, ASSUMED_ANSWER * seconds, len(found))

    def _room_and_speed(self, offer: NodeOffer | None, device: OfferedDevice) -> tuple[int, float]:
        """Layers for which there is memory, roughly, and seconds of a token in one of them."""
        key = (offer.node if offer is not None else "", device.name)
        if key not in self._of_device:
            seconds = self._plans.predictor.layer_seconds(self._whole(offer, device))
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
        least = [
            1 if offer is not None and have else 0 for (offer, _), have in zip(devices, room, strict=True)
        ]
        if sum(room) < total or sum(least) > total:
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


def _sorted(rough: _Times) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    return sorted(rough, key=lambda one: rough[one])


def _filled(room: Sequence[int], each: Sequence[float], least: Sequence[int], total: int) -> tuple[int, ...]:
    """As many layers as fit on the fastest device, then on the next."""
    counts = [min(have, want) for have, want in zip(room, least, strict=True)]
    for at in sorted(range(len(room)), key=lambda at: each[at]):
        counts[at] += max(0, min(room[at] - counts[at], total - sum(counts)))
    return tuple(counts)
