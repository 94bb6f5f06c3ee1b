"""Choose which workers are looked at, in which orders and with how many layers, by a rough prediction.

Workers are ranked by the time of a layer with its share of the round trip to the head. All sets of the best
five are looked at, in all orders. Where there are more workers, one more set grows by the worker that is best
beside those that it has; each of its sizes is looked at once, from the head to the nearest worker and on to
the nearest of the rest. The best of all these are planned in full (choose_split.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from meshd.model.cache import ContextShape
from meshd.model.layers import ModelLayers, compute_bound
from meshd.plan.by_memory import MAX_SPLIT_DEVICES, share_out
from meshd.plan.machines import Machines, NodeOffer, one_for_each_card
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.prediction import ASSUMED_ANSWER, PlannedStage, Split
from meshd.plan.split import Device
from meshd.plan.wishes import HeadOptions, beside_draft, shape_of
from meshd.wire.lease import OfferedDevice

HEAD_END = ""  # as one end of a path
_MOST_PLANNED = 12  # candidates that are planned in full
_ALL_SETS = 5  # workers of which all sets are looked at, in all orders
RoundTrip = Callable[[str, str], float]
"""Seconds between two nodes, each a worker or HEAD_END."""

_Times = dict[tuple[tuple[str, ...], tuple[int, ...]], float]  # of an answer, by workers and counts


@dataclass(frozen=True, slots=True)
class ConsideredWorker:
    """Rate a worker.

    `room`: layers for which it has memory; `layer`: seconds of an answer in each; `devices`: how many.
    """

    node: str
    room: int
    layer: float
    devices: int = 1


@dataclass(frozen=True, slots=True)
class Division:
    """Divide the layers over these offers.

    `counts`: those of their devices in turn, then of the head's own; empty: by memory.
    """

    offers: tuple[NodeOffer, ...]
    counts: tuple[int, ...] = ()


class RoughSplits:
    """Rank splits of one model over these machines; at least `least` workers are to take part."""

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

    @property
    def by_memory(self) -> Division:
        """Return all workers: from each to the nearest next, unless the user's split is for an order."""
        if self._options.tensor_split:
            return Division(self._machines.offers)
        offers = one_for_each_card(self._machines.offers, self._machines, self._options, least=self._least)
        of_node = {offer.node: offer for offer in offers}
        return Division(tuple(of_node[node] for node in nearest_next(list(of_node), self._round_trip)))

    def ranked(self) -> list[Division]:
        """Return the most promising with enough workers, and of fewer the best to compare with."""
        if self._options.tensor_split:
            return []
        rough, least = _Times(), self._least
        self._add(rough, self._orders())
        ranked = sorted(rough, key=lambda division: rough[division])
        kept = [division for division in ranked if len(division[0]) >= least][: _MOST_PLANNED - 4]
        for size in range(4):  # of each size the best, so that there is something to compare with
            of_size = [division for division in ranked if len(division[0]) == size]
            kept += [division for division in of_size[:1] if division not in kept]
        return [Division(self._of(nodes), counts) for nodes, counts in kept]

    def _add(self, rough: _Times, orders: Iterable[tuple[str, ...]]) -> None:
        for nodes in orders:
            offers = self._of(nodes)
            if not all(offer.devices for offer in offers):
                continue  # another one has its card: it is as if it were not there
            for counts in self._divisions(offers):
                split = self._rough_split(offers, counts) if (nodes, counts) not in rough else None
                if split is not None:
                    rough[nodes, counts] = self._plans.answer_seconds(split)

    def _of(self, nodes: Sequence[str]) -> tuple[NodeOffer, ...]:
        """Return the offers, with each card once unless too few workers take part then."""
        given = [self._able[node] for node in nodes]
        return one_for_each_card(given, self._machines, self._options, least=self._needs_all)

    def _orders(self) -> Iterator[tuple[str, ...]]:
        own_gpus = sum(device.kind == "gpu" for device in self._own())
        return worker_orders(
            [self._considered(offer) for offer in self._able.values()],
            self._round_trip,
            most_devices=min(self._layers.count, MAX_SPLIT_DEVICES) - own_gpus,
        )

    def _round_trip(self, node: str, other: str) -> float:
        """Take the longer path to the head where the path between two workers is unknown."""
        between = self._plans.paths.get((node, other))
        paths = [offer.path for end in (node, other) if (offer := self._able.get(end)) is not None]
        known = [between] if between is not None else [path for path in paths if path is not None]
        return max((path.rtt for path in known), default=0.0)

    def _considered(self, offer: NodeOffer) -> ConsideredWorker:
        found = [self._room_and_speed(offer, device) for device in offer.devices]
        room = sum(layers for layers, _ in found)
        seconds = sum(layers * each for layers, each in found) / max(1, room)
        room = min(room, self._layers.count)
        return ConsideredWorker(offer.node, room, ASSUMED_ANSWER * seconds, len(found))

    def _room_and_speed(self, offer: NodeOffer | None, device: OfferedDevice) -> tuple[int, float]:
        """Return the layers for which there is memory, roughly, and seconds of a token in each."""
        key = (offer.node if offer is not None else "", device.name)
        if key not in self._of_device:
            seconds = self._plans.predictor.layer_seconds(self._stage(offer, device))
            self._of_device[key] = self._room(device), seconds
        return self._of_device[key]

    def _stage(
        self, offer: NodeOffer | None, device: OfferedDevice, begin: int = 0, end: int | None = None
    ) -> PlannedStage:
        """Describe a device with these layers, or all; `offer` None: it is the head's own."""
        node, path = (offer.node, offer.path) if offer is not None else (self._options.node_name, None)
        gpu, is_head = device.kind == "gpu", offer is None
        planned = Device(node, device.name, device.free_bytes, gpu, is_head, path=path)
        return self._plans.stage(planned, begin, self._layers.count if end is None else end)

    def _own(self) -> Sequence[OfferedDevice]:
        own = self._machines.own_taking(self._options)
        return beside_draft(own, self._options.draft, self._shape)

    def _devices(self, offers: Sequence[NodeOffer]) -> list[tuple[NodeOffer | None, OfferedDevice]]:
        """List the devices as `--tensor-split` counts them."""
        remote: list[tuple[NodeOffer | None, OfferedDevice]] = [
            (offer, device) for offer in offers for device in offer.devices
        ]
        return remote + [(None, device) for device in self._own()]

    def _divisions(self, offers: Sequence[NodeOffer]) -> list[tuple[int, ...]]:
        """Divide the layers in some ways: as many as fit on the fastest, and by speed."""
        devices, total = self._devices(offers), self._layers.count
        if not devices or len(devices) > total:
            return []
        room = [self._room_and_speed(*device)[0] for device in devices]
        each = [self._room_and_speed(*device)[1] for device in devices]
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
            cells = self._shape.cells * self._shape.streams
            shape = replace(self._shape, parallel=1, tokens=cells)
            caches = self._layers.cache.layer_bytes(shape)
            self._largest[on_gpu] = max(map(sum, zip(layers, caches, strict=True)))
        return self._largest[on_gpu]

    def _rough_split(self, offers: Sequence[NodeOffer], counts: Sequence[int]) -> Split | None:
        devices = self._devices(offers)
        if sum(counts) != self._layers.count:
            return None
        order = list(zip(devices, counts, strict=True))
        order.sort(
            key=lambda item: not (item[0][0] is None and item[0][1].kind != "gpu")
        )  # the head's CPU first
        stages, begin = [], 0
        for (offer, device), count in order:
            if count:
                stages.append(self._stage(offer, device, begin, begin + count))
                begin += count
        last = stages[-1]
        return Split(
            stages=tuple(stages),
            output=last,
            micro_batch=min(256, self._shape.step_tokens),
            slots=self._shape.parallel,
            pushed=self._options.push,
            numbers=not stages[0].is_head and (not self._layers.tied or last is stages[0]),
            paths=self._plans.paths,
        )


def worker_orders(
    workers: Sequence[ConsideredWorker], round_trip: RoundTrip, *, most_devices: int
) -> Iterator[tuple[str, ...]]:
    """Yield the sets of workers that are looked at, by node, each in its orders; none of them twice.

    The growing set has at most `most_devices`.
    """

    def cost(worker: ConsideredWorker, near: Sequence[str] = (HEAD_END,)) -> float:
        """Return the seconds of an answer for each layer on a worker beside one of the nodes `near`."""
        path = min(round_trip(node, worker.node) for node in near)
        return worker.layer + ASSUMED_ANSWER * path / worker.room

    rest = sorted((worker for worker in workers if worker.room), key=cost)
    best = [worker.node for worker in rest[:_ALL_SETS]]
    for count in range(len(best) + 1):
        yield from permutations(best, count)
    grown, spare = list[str](), most_devices
    while rest := [worker for worker in rest if worker.devices <= spare]:
        chosen = min(rest, key=lambda worker: cost(worker, (HEAD_END, *grown)))
        rest.remove(chosen)
        grown.append(chosen.node)
        spare -= chosen.devices
        if not set(grown) <= set(best):
            yield nearest_next(grown, round_trip)


def nearest_next(nodes: Sequence[str], round_trip: RoundTrip) -> tuple[str, ...]:
    """Order nodes from the head to the nearest, and from each to the nearest of the rest."""
    rest, found, at = list(nodes), list[str](), HEAD_END
    while rest:
        at = min(rest, key=lambda node: round_trip(at, node))
        rest.remove(at)
        found.append(at)
    return tuple(found)


def _filled(room: Sequence[int], each: Sequence[float], least: Sequence[int], total: int) -> tuple[int, ...]:
    """Give as many layers as fit to the fastest device, then to the next."""
    counts = [min(have, want) for have, want in zip(room, least, strict=True)]
    for at in sorted(range(len(room)), key=lambda at: each[at]):
        counts[at] += max(0, min(room[at] - counts[at], total - sum(counts)))
    return tuple(counts)
