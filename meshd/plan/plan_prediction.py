"""Predict plans of one model on the machines that are there: a plan as a split, with what is known of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, permutations

from meshd.model.device_speed import TRIALS_DIFFER
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.output import NEAR_SECONDS
from meshd.plan.machines import Machines, NodeOffer, card_in
from meshd.plan.prediction import (
    ASSUMED_ANSWER,
    HOP_SECONDS,
    PartSeconds,
    PlannedStage,
    PlanOutcome,
    PredictedPart,
    Predictor,
    Split,
    total,
)
from meshd.plan.split import Device, Plan
from meshd.plan.tensor_prediction import LOCAL_PATH, PairWay, SumMember, ways_between
from meshd.plan.wishes import HeadOptions
from meshd.wire.lease import OfferedDevice

CONVERSATION_PROMPT, CONVERSATION_ANSWER = 2000, 500
_LEAST_SECONDS = 1e-9
LEAST_SHARE = 1 / 3  # of the largest


class PlanPredictor:
    """Predict plans of one model on these machines."""

    def __init__(
        self, layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
    ) -> None:
        self._layers = layers
        self._machines = machines
        self._options = options
        self.predictor = Predictor(layers, work)
        self._machine_of = {offer.node: offer.offer.machine for offer in machines.offers}
        self._machine_of[options.node_name] = options.machine
        self._card_of = {
            (node, device.name): card_in(device, self._machine_of[node])
            for node, devices in (
                (options.node_name, machines.own),
                *((offer.node, offer.offer.devices) for offer in machines.offers),
            )
            for device in devices
        }
        here = [offer.node for offer in machines.offers if offer.path is not None and offer.path.is_loopback]
        local = permutations(here, 2) if options.is_local else ()
        self.paths = {**machines.paths, **dict.fromkeys(local, LOCAL_PATH)}
        """From node to node; those on the head's machine do not use their link."""
        of_machine = _on_one_machine(machines) if options.is_local else ()
        self._paths_of_sums = {**self.paths, **dict.fromkeys(of_machine, LOCAL_PATH)}

    def predict(self, plan: Plan) -> PlanOutcome:
        """Predict rates and times of a plan, and what they are the sums of."""
        split = self.split_of(plan)
        prediction = self.predictor.predict(split)
        answer = prediction.first_token_s + ASSUMED_ANSWER / prediction.generate_tok_s
        return PlanOutcome(prediction, answer, tuple(self._parts(split)))

    def answer_seconds(self, split: Split) -> float:
        """Predict the answer by which splits are compared."""
        token, prompt = self.predictor.token_parts(split), self.predictor.prompt_parts(split)
        return total(prompt) + ASSUMED_ANSWER * total(token)

    def conversation_seconds(self, plan: Plan) -> float:
        """Predict the conversation by which the two ways to divide a model are compared."""
        split = self.split_of(plan)
        prompt = self.predictor.prompt_parts(split, CONVERSATION_PROMPT)
        token = self.predictor.token_parts(split, 1, CONVERSATION_PROMPT + CONVERSATION_ANSWER // 2)
        return total(prompt) + CONVERSATION_ANSWER * total(token)

    def prompt_seconds(self, plan: Plan) -> float:
        """Predict the prompt of that conversation."""
        return total(self.predictor.prompt_parts(self.split_of(plan), CONVERSATION_PROMPT))

    def round_seconds(self, plan: Plan, tokens: int) -> float:
        """Predict one round that computes so many tokens of an answer."""
        return self.predictor.round_seconds(self.split_of(plan), tokens)

    def rounds_of(self, plan: Plan) -> Callable[[int], float] | None:
        """Return `round_seconds` of a plan; None where devices were not measured."""
        is_measured = self.predictor.is_measured(self.split_of(plan))
        return partial(self.round_seconds, plan) if is_measured else None

    def seconds_of(self, node: str, offered: OfferedDevice) -> float:
        """Predict a token in the mean of all layers on a worker's device."""
        device = Device(node, offered.name, offered.free_bytes, offered.kind == "gpu")
        return self.predictor.layer_seconds(self.stage(device, 0, self._layers.count))

    def way_between(self, first: NodeOffer, second: NodeOffer) -> PairWay:
        """Describe how sums cross between two workers with one device each."""
        members = [
            SumMember(offer.node, offer.path, is_gpu=offer.devices[0].kind == "gpu")
            for offer in (first, second)
        ]
        return ways_between(members, self._paths_of_sums, HOP_SECONDS)[0]

    def tensor_shares(self, plan: Plan) -> tuple[float, ...]:
        """Weigh the plan's devices by their measured speed, for a split by tensors; empty: all alike.

        Devices that differ no more than trials of one device do are alike, so that shares stay as they are.
        None has less than a third of the largest share, which is as uneven as was tried.
        """
        stages = [self.stage(share.device, 0, self._layers.count) for share in plan.taking]
        if not all(self.predictor.is_timed(stage) for stage in stages):
            return ()
        each = [max(_LEAST_SECONDS, self.predictor.layer_seconds(stage)) for stage in stages]
        if max(each) <= TRIALS_DIFFER * min(each):
            return ()
        return tuple(max(LEAST_SHARE, min(each) / seconds) for seconds in each)

    def device_seconds(self, plan: Plan, tokens: float) -> Mapping[str, float]:
        """Predict a round of so many tokens by device, in seconds; empty where devices were not measured."""
        split = self.split_of(plan)
        if not self.predictor.is_measured(split):
            return {}
        return self.predictor.device_seconds(split, tokens)

    def _parts(self, split: Split) -> Iterator[PartSeconds]:
        token = self._by_name(self.predictor.token_parts(split))
        prompt = self._by_name(self.predictor.prompt_parts(split))
        for name in {**token, **prompt}:
            yield PartSeconds(name, token.get(name, 0.0), prompt.get(name, 0.0))

    def _by_name(self, parts: Sequence[PredictedPart]) -> dict[str, float]:
        """Add up the seconds of each device and path."""
        found: dict[str, float] = {}
        for part in parts:
            name = self._name(part)
            found[name] = found.get(name, 0.0) + part.seconds
        return found

    def _name(self, part: PredictedPart) -> str:
        if part.ends is not None:
            return " ↔ ".join(node or self._options.node_name for node in part.ends)
        return part.device or "rest"

    def split_of(self, plan: Plan) -> Split:
        """Return the plan with what is known of its devices and paths."""
        if plan.by_tensors:
            return self._tensor_split_of(plan)
        stages: list[PlannedStage] = []
        begin = 0
        for share in plan.taking:
            stages.append(self.stage(share.device, begin, begin + share.layers))
            begin += share.layers
        worker = plan.output_worker
        last = stages[-1]
        on_head_gpu = worker is None and last.is_head and last.is_gpu
        own_cpu = Device(self._options.node_name, "CPU", 0, is_head=True)
        output = last if worker is not None or on_head_gpu else self.stage(own_cpu, 0, 0)
        return Split(
            stages=tuple(stages),
            output=output,
            micro_batch=plan.shape.step_tokens,
            slots=plan.shape.parallel,
            pushed=self._options.push,
            logits=worker is not None and not worker.has_top_k,
            numbers=plan.input_on_worker,
            paths=self.paths,
        )

    def _tensor_split_of(self, plan: Plan) -> Split:
        """Describe workers of which each has a part of every layer, and of the output."""
        count = self._layers.count
        stages = tuple(self.stage(share.device, 0, count) for share in plan.taking)
        return Split(
            stages=stages,
            output=stages[0],
            micro_batch=plan.shape.step_tokens,
            slots=plan.shape.parallel,
            logits=True,
            paths=self._paths_of_sums,
            shares=tuple(share.layers / count for share in plan.taking),
        )

    def stage(self, device: Device, begin: int, end: int) -> PlannedStage:
        """Describe a device with the layers `begin` to `end`."""
        node, path = device.node, device.path
        if path is not None and path.is_loopback and self._options.is_local:
            path = LOCAL_PATH
        return PlannedStage(
            node,
            device.name,
            begin,
            end,
            sum(self._layers.layers[begin:end]),
            device.is_gpu,
            self._machines.speeds.get((node, device.name)),
            path,
            device.is_head,
            self._machine_of.get(node, ""),
            self._card_of.get((node, device.name), ""),
            self._machines.lacking.get(node),
        )


def _on_one_machine(machines: Machines) -> Iterator[tuple[str, str]]:
    """Yield pairs of workers, either way round, that name one machine, where what was measured is like it."""
    of_machine: dict[str, list[NodeOffer]] = {}
    for offer in machines.offers:
        if offer.offer.machine:
            of_machine.setdefault(offer.offer.machine, []).append(offer)
    for there in of_machine.values():
        for first, second in combinations(there, 2):
            if _are_near(first, second, machines):
                yield from permutations((first.node, second.node), 2)


def _are_near(first: NodeOffer, second: NodeOffer, machines: Machines) -> bool:
    """Tell whether two may be on one machine: either may lie, so all that measured a path has to agree."""
    between = [machines.paths.get(ends) for ends in permutations((first.node, second.node), 2)]
    to_head = [offer.path.rtt for offer in (first, second) if offer.path is not None]
    return (
        all(path is not None and path.rtt < NEAR_SECONDS for path in between)
        and max(to_head, default=0.0) - min(to_head, default=0.0) < NEAR_SECONDS
    )
