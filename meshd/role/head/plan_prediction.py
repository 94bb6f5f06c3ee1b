"""From a plan, and what is known of the machines, to what it will do (model/prediction.py). Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from meshd.gateway.interface import AnswerTimings
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.output import DevicePath
from meshd.model.prediction import USUAL_PROMPT, PlannedStage, Prediction, Predictor, Split
from meshd.model.split_values import Plan
from meshd.model.time_parts import PredictedPart, PredictedParts, ends_of, total
from meshd.role.head.measured_speed import LEAST_PROMPT
from meshd.role.head.speed_corrections import (
    LearnedFactors,
    SpeedCorrection,
    SpeedCorrections,
    SpeedLearner,
    device_marks,
    model_key,
    paths_now,
)
from meshd.role.head.split_factors import by_part, part_of
from meshd.role.head.split_plan import HeadOptions, NodeOffer, PlainRpc
from meshd.role.native.devices import card_in
from meshd.wire.lease import OfferedDevice

ASSUMED_PROMPT, ASSUMED_ANSWER = USUAL_PROMPT, 256  # tokens of the answer by whose time splits are compared


@dataclass(frozen=True, slots=True)
class Machines:
    """What there is. `speeds` by node and device, `paths` from node to node.

    `unmeasured`: why a node does not tell the speed of a device.
    `lacking`: the share of the model's layers that a node has not, by node, where that is known.
    """

    offers: tuple[NodeOffer, ...]
    own: tuple[OfferedDevice, ...]
    speeds: Mapping[tuple[str, str], DeviceSpeed] = field(default_factory=dict)
    paths: Mapping[tuple[str, str], DevicePath] = field(default_factory=dict)
    plain_rpc: tuple[PlainRpc, ...] = ()
    own_excluded: Mapping[str, str] = field(default_factory=dict)
    corrections: SpeedCorrections | None = None
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CorrectedPart:
    """A device, a path or the rest: seconds of a token and of a prompt, and the factors of these rates."""

    name: str
    token_s: float
    prompt_s: float
    generate: float = 1.0
    prompt: float = 1.0


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """What a plan will do. `prediction` is corrected by `correction`; None where nothing like it ever ran.

    `answer_s`: of the answer by which splits are compared. `parts`: of a token and a prompt.
    """

    prediction: Prediction
    answer_s: float
    correction: SpeedCorrection | None
    parts: tuple[CorrectedPart, ...]


def on_paths(plan: Plan, path_of: Callable[[str], DevicePath | None]) -> Plan:
    """The plan, with what lies between the head and each worker now."""
    return replace(
        plan,
        shares=tuple(
            share
            if share.device.is_head or (path := path_of(share.device.node)) is None
            else replace(share, device=replace(share.device, path=path))
            for share in plan.shares
        ),
    )


class PlanPredictor:
    """Of one model on these machines."""

    def __init__(
        self, layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
    ) -> None:
        self._layers = layers
        self._machines = machines
        self._options = options
        self._key = model_key(layers, work, [options.activations, *options.llama_args])
        self.predictor = Predictor(layers, work)
        self._machine_of = {offer.node: offer.offer.machine for offer in machines.offers}
        self._machine_of[options.node_name] = options.machine
        self._card_of = {
            (node, one.name): card_in(one, self._machine_of[node])
            for node, devices in (
                (options.node_name, machines.own),
                *((offer.node, offer.offer.devices) for offer in machines.offers),
            )
            for one in devices
        }
        self._learned: LearnedFactors | None = None

    def predict(self, plan: Plan) -> PlanOutcome:
        """Corrected by what was measured of it, or of plans like it."""
        split = self._split_of(plan)
        prediction, found = self.predictor.predict(split), self._correction(split)
        if found is not None:
            prediction = replace(
                prediction,
                generate_tok_s=prediction.generate_tok_s * found.generate,
                streams_tok_s=prediction.streams_tok_s * found.generate,
                prompt_tok_s=prediction.prompt_tok_s * found.prompt,
                first_token_s=prediction.first_token_s / found.prompt,
            )
        answer = prediction.first_token_s + ASSUMED_ANSWER / prediction.generate_tok_s
        return PlanOutcome(prediction, answer, found, tuple(self._corrected_parts(split)))

    def answer_seconds(self, split: Split) -> float:
        """Of the answer by which splits are compared, by what is known of the split's devices and paths."""
        parts, learned = self._parts(split), self._factors()
        token, prompt = total(parts.token), total(parts.prompt)
        if learned:
            token *= learned.generate.ratio(by_part(parts.token))
            prompt *= learned.prompt.ratio(by_part(parts.prompt))
        return prompt + ASSUMED_ANSWER * token

    def round_seconds(self, plan: Plan, tokens: int) -> float:
        """Of one round that computes so many tokens of an answer, corrected as `predict` is."""
        split = self._split_of(plan)
        seconds, found = self.predictor.round_seconds(split, tokens), self._correction(split)
        return seconds / found.generate if found is not None else seconds

    def rounds_of(self, plan: Plan) -> Callable[[int], float] | None:
        """`round_seconds` of a plan; None where devices were not measured."""
        is_measured = self.predictor.is_measured(self._split_of(plan))
        return partial(self.round_seconds, plan) if is_measured else None

    def device_seconds(self, plan: Plan, tokens: float) -> Mapping[str, float]:
        """Of a round that computes so many tokens, by device; empty where devices were not measured."""
        split = self._split_of(plan)
        if not self.predictor.is_measured(split):
            return {}
        return self.predictor.device_seconds(split, tokens)

    def learn(self, plan: Plan, learner: SpeedLearner, timings: AnswerTimings) -> None:
        """From an answer that was made alone; nothing where devices were not measured."""
        split, known = self._split_of(plan), self._machines.corrections
        prompt, generated = timings.prompt_tokens, timings.generated_tokens - 1
        if known is None or not self.predictor.is_measured(split):
            return
        if generated > 0:
            sized = self.predictor.predict(split, cells=prompt + generated // 2)
            learner.answered(
                generated, generated / sized.generate_tok_s, timings.generated_seconds, is_prompt=False
            )
        if prompt >= LEAST_PROMPT:
            sized = self.predictor.predict(split, prompt_tokens=prompt)
            learner.answered(prompt, sized.first_token_s, timings.prompt_seconds, is_prompt=True)
        known.learn(self._key, split, self._parts(split), *learner.factors)
        self._learned = None

    def _correction(self, split: Split) -> SpeedCorrection | None:
        known, learned = self._machines.corrections, self._factors()
        if known is None or learned is None:
            return None
        return known.of(self._key, split, self._parts(split), learned)

    def _factors(self) -> LearnedFactors | None:
        """As they are when they are first needed, and after an answer."""
        machines = self._machines
        if self._learned is None and machines.corrections is not None:
            own = [(ends_of(one.node), one.path) for one in machines.offers if one.path is not None]
            between = [(ends_of(*ends), path) for ends, path in machines.paths.items()]
            marks = device_marks(machines.speeds)
            self._learned = machines.corrections.learned(self._key, marks, paths_now([*own, *between]))
        return self._learned

    def _corrected_parts(self, split: Split) -> Iterator[CorrectedPart]:
        parts, learned = self._parts(split), self._factors()
        token, prompt = by_part(parts.token), by_part(parts.prompt)
        for part, name in {part_of(one): self._name(one) for one in (*parts.token, *parts.prompt)}.items():
            found = CorrectedPart(name, token.get(part, 0.0), prompt.get(part, 0.0))
            if learned is not None:
                found = replace(
                    found, generate=1 / learned.generate.of(part), prompt=1 / learned.prompt.of(part)
                )
            yield found

    def _name(self, part: PredictedPart) -> str:
        if part.path is not None:
            return " ↔ ".join(node or self._options.node_name for node in part.ends)
        return part.device or "rest"

    def _parts(self, split: Split) -> PredictedParts:
        return PredictedParts(self.predictor.token_parts(split), self.predictor.prompt_parts(split))

    def _split_of(self, plan: Plan) -> Split:
        stages: list[PlannedStage] = []
        begin = 0
        for share in plan.shares:
            if share.layers:
                weights = sum(self._layers.layers[begin : begin + share.layers])
                device = share.device
                stages.append(
                    self.stage(
                        device.node,
                        device.name,
                        begin,
                        begin + share.layers,
                        weights,
                        device.is_gpu,
                        device.path,
                        is_head=device.is_head,
                    )
                )
                begin += share.layers
        worker = plan.output_worker
        last = stages[-1]
        on_head_gpu = worker is None and last.is_head and last.is_gpu
        output = last if worker is not None or on_head_gpu else self.own_cpu()
        return Split(
            stages=tuple(stages),
            output=output,
            micro_batch=plan.shape.step_tokens,
            slots=plan.shape.parallel,
            pushed=self._options.push,
            logits=worker is not None and not (worker.has_top_k and self._options.sample_on_worker),
            numbers=bool(plan.input_device),
            paths=self._machines.paths,
        )

    def own_cpu(self) -> PlannedStage:
        return self.stage(self._options.node_name, "CPU", 0, 0, 0, False, None, is_head=True)

    def stage(
        self,
        node: str,
        device: str,
        begin: int,
        end: int,
        weights: int,
        is_gpu: bool,
        path: DevicePath | None,
        *,
        is_head: bool,
    ) -> PlannedStage:
        speed = self._machines.speeds.get((node, device))
        machine = self._machine_of.get(node, "")
        card = self._card_of.get((node, device), "")
        lacking = self._machines.lacking.get(node)
        return PlannedStage(
            node, device, begin, end, weights, is_gpu, speed, path, is_head, machine, card, lacking
        )
