"""Predict what a split of a model over devices will do: seconds for a token, for a prompt, for a load.

A token of S streams passes all devices in turn:

    token  = sum of devices (layers with S tokens, attention over the cache) + output + ways + waits + STEP
    a way  = half a round trip + S hidden states / rate + HOP       N + 1 of them for N workers in a row
             (numbers of tokens where the first worker has the embeddings, and candidates on the way back)
    a wait = until the order of the head is there: a device far from it, but near to the one before it
    prompt = sum of devices, ways and waits for one micro batch + (micro batches - 1) x the slowest of them
             (a device, or the bytes of a way) + output + PROMPT
    load   = START + what a stage reads most of / LOADED_RATE + START_ROUND_TRIPS x the longest round trip
             + sum of workers (what it lacks / rate)

A card that several nodes use counts once, busy for the sum of its times. The processors of a machine count as
one of these devices, too: busy for the sum of its CPUs' times, each times the share of the processors with
which it computes. Nodes that may use different ones (`taskset`) do not share them.

Without pushes all hidden states pass the head, so each border between workers is two ways, and the micro
batches of a prompt follow one another. Times of layers are measured (model/device_speed.py); where a device
was not, they follow from the bytes of its weights.

Both sums are there part by part as well: what each device takes, each path between two nodes, and the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, permutations

from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import FAR_CELLS, NEAR_CELLS, LayerWork, unseen_cells
from meshd.model.layers import ModelLayers
from meshd.model.output import CPU_RATE, GPU_RATE, LOCAL_RATE, SAMPLED_BYTES, DevicePath
from meshd.model.status import Speeds
from meshd.plan.machines import Machines, card_in
from meshd.plan.reasons import ChangedPart
from meshd.plan.split import Device, Plan
from meshd.plan.wishes import HeadOptions

HOP_SECONDS = 0.0001  # of a message between two daemons, beyond its path (docs/speed.md, bench hop)
STEP_SECONDS = 0.0005  # of llama-server for a token, with all that is not a layer
PROMPT_SECONDS = (
    0.010  # of llama-server for a prompt: its text, and graphs that are made, told and checked anew
)
START_SECONDS = 0.4  # of llama-server's start, without weights
START_ROUND_TRIPS = 6
LOADED_RATE = 1.5e9  # bytes a second from a file that was read before
USUAL_PROMPT = 512  # of the prompt that is predicted, and cells of the cache that a token sees
_CPU_WORK, _GPU_WORK = 4e10, 1.5e13  # bytes of weights times tokens a second (over_offers.py)
_MOST_SEEN = 256  # answers have all lengths, and a prediction lasts as long as a load of the model
_LOCAL_PATH = DevicePath(0.0, LOCAL_RATE)
_VISIBLE = 0.01  # of a token's time
ASSUMED_PROMPT, ASSUMED_ANSWER = USUAL_PROMPT, 256  # tokens of the answer by whose time splits are compared


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Describe a device with the layers `begin` to `end`, in bytes of weights `weights`.

    `path`: to the head; None for the head's own. `speed` None: never measured. `machine`: the same for nodes
    on one machine, empty where it is not known. `card`: the same for devices that are one GPU, else empty.
    `lacking`: the share of its weights that its node has not; None: not known.
    """

    node: str
    device: str
    begin: int
    end: int
    weights: int
    is_gpu: bool = False
    speed: DeviceSpeed | None = None
    path: DevicePath | None = None
    is_head: bool = False
    machine: str = ""
    card: str = ""
    lacking: float | None = None

    @property
    def label(self) -> str:
        return f"{self.node} {self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Describe a split to predict. `stages` in the order of the layers; `output` is where logits are made.

    `paths`: from a node to another one; where none is known, the longer of their paths to the head counts.
    `logits`: they cross to the head, not just candidates. `numbers`: the first worker has the embeddings, so
    that numbers of tokens cross to it, and no hidden states.
    """

    stages: tuple[PlannedStage, ...]
    output: PlannedStage
    micro_batch: int
    slots: int = 1
    pushed: bool = True
    logits: bool = False
    numbers: bool = False
    paths: Mapping[tuple[str, str], DevicePath] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Hold rates in tokens a second, times in seconds; `streams_tok_s` for all slots together."""

    generate_tok_s: float
    prompt_tok_s: float
    streams_tok_s: float
    first_token_s: float
    load_s: float
    load_bytes: int | None
    """Bytes that cross the network in the time of a load; None where nobody knows what nodes have."""
    bytes_per_token: int
    ways_s: float
    """Seconds of a token on the network: ways, and waits for orders."""
    is_measured: bool
    """All devices were."""


@dataclass(frozen=True, slots=True)
class PredictedPart:
    """Hold the seconds that a device takes, or the path between two nodes; the rest where neither is given.

    `device`: its label; `ends`: of the path, as `ends_of` has them. Several parts of a sum may be of one
    device or path.
    """

    seconds: float
    device: str = ""
    ends: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PassedPath:
    """Describe a path that hidden states pass, between two nodes."""

    ends: tuple[str, str]
    path: DevicePath

    def part(self, seconds: float) -> PredictedPart:
        """Return the part of a sum that this path takes."""
        return PredictedPart(seconds, ends=self.ends)


@dataclass(frozen=True, slots=True)
class PartSeconds:
    """Name a device, a path or the rest, and the seconds of a token and of a prompt that it takes."""

    name: str
    token_s: float
    prompt_s: float


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """Hold the prediction for a plan.

    `answer_s`: seconds of the answer by which splits are compared. `parts`: add up to a token and a prompt.
    """

    prediction: Prediction
    answer_s: float
    parts: tuple[PartSeconds, ...]

    @property
    def speeds(self) -> Speeds:
        """Return the predicted rates, as status shows them."""
        prompt, generate = self.prediction.prompt_tok_s, self.prediction.generate_tok_s
        return Speeds(round(prompt, 2), round(generate, 2))

    def changes_since(self, before: "PlanOutcome") -> tuple[ChangedPart, ...]:
        """Return the devices and paths that make a token take another time than `before`."""
        earlier = {part.name: part.token_s for part in before.parts}
        least = _VISIBLE / before.prediction.generate_tok_s
        parts = (ChangedPart(part.name, part.token_s, earlier.get(part.name, 0.0)) for part in self.parts)
        return tuple(part for part in parts if abs(part.seconds - part.before) >= least)


class Predictor:
    """Predict splits of one model. Layers of a kind are added up once, so any run costs no more than one."""

    def __init__(self, model: ModelLayers, work: LayerWork) -> None:
        self._model = model
        self._work = work
        self._sums = {
            kind: _sums(
                scale if timed == kind else 0.0 for timed, scale in zip(work.kinds, work.scales, strict=True)
            )
            for kind in set(work.kinds)
        }
        self._seen: dict[tuple[int, float], Sequence[float]] = {}

    def predict(self, split: Split) -> Prediction:
        """Predict a prompt of USUAL_PROMPT tokens, and tokens that see as many cells of the cache."""
        token, streams = self.token_parts(split), self.token_parts(split, split.slots)
        prompt = total(self.prompt_parts(split))
        return Prediction(
            generate_tok_s=1 / total(token),
            prompt_tok_s=USUAL_PROMPT / prompt,
            streams_tok_s=split.slots / total(streams),
            first_token_s=prompt,
            load_s=self._load(split),
            load_bytes=self._load_bytes(split),
            bytes_per_token=self._bytes(split),
            ways_s=total(part for part in token if part.ends is not None),
            is_measured=self.is_measured(split),
        )

    def is_measured(self, split: Split) -> bool:
        """Tell whether all devices have times of what they compute."""
        speed, output = split.output.speed, self._work.output
        is_output_known = speed is not None and (output is None or output in speed)
        return is_output_known and all(self._is_timed(stage.speed) for stage in split.stages)

    def token_parts(self, split: Split, streams: int = 1) -> list[PredictedPart]:
        """Predict a token in so many streams at once: the seconds of all of them together."""
        computing = self._computing(split, streams, USUAL_PROMPT)
        passing = self._passing(split, streams, computing)
        return [
            *_computed(split.stages, computing),
            *passing,
            *self._back(split, streams),
            self._output_part(split.output, streams),
            PredictedPart(STEP_SECONDS),
        ]

    def prompt_parts(self, split: Split) -> list[PredictedPart]:
        """Predict a prompt. All micro batches but one take what takes longest in the pipeline."""
        micro = min(split.micro_batch, USUAL_PROMPT)
        batches = -(-USUAL_PROMPT // micro)
        computing = self._computing(split, micro, USUAL_PROMPT // 2)
        once = [*_computed(split.stages, computing), *self._passing(split, micro, computing)]
        if split.pushed:
            carried = zip(self._borders(split), self._carried(split, micro), strict=True)
            carrying = [
                [way.part(way.path.carrying(count) + HOP_SECONDS)] for ways, count in carried for way in ways
            ]
            again = max([*_in_turn(split.stages, computing), *carrying], key=total)
        else:
            again = once
        return [
            *once,
            *(replace(part, seconds=(batches - 1) * part.seconds) for part in again),
            *self._back(split, 1),
            self._output_part(split.output, 1),
            PredictedPart(PROMPT_SECONDS),
        ]

    def round_seconds(self, split: Split, tokens: int) -> float:
        """Predict the time in which so many tokens pass all devices at once, and come back."""
        return total(self.token_parts(split, tokens))

    def device_seconds(self, split: Split, tokens: float) -> dict[str, float]:
        """Predict a round by device: its layers, and the output where it has that."""
        found: dict[str, float] = {}
        for stage, seconds in zip(split.stages, self._computing(split, tokens, USUAL_PROMPT), strict=True):
            found[stage.label] = found.get(stage.label, 0.0) + seconds
        output = split.output.label
        found[output] = found.get(output, 0.0) + self._output(split.output, tokens)
        return found

    def layer_seconds(self, stage: PlannedStage) -> float:
        """Predict a token in the mean of the stage's layers."""
        return self._layers(stage, 1, USUAL_PROMPT) / max(1, stage.end - stage.begin)

    # Parts.

    def _computing(self, split: Split, tokens: float, cells: int) -> list[float]:
        """Predict the layers of each stage."""
        return [self._layers(stage, tokens, cells) for stage in split.stages]

    def _layers(self, stage: PlannedStage, tokens: float, cells: int) -> float:
        if stage.begin == stage.end:
            return 0.0
        speed = stage.speed
        if speed is None or not self._is_timed(speed):
            rate, fast = (GPU_RATE, _GPU_WORK) if stage.is_gpu else (CPU_RATE, _CPU_WORK)
            return max(stage.weights / rate, stage.weights * tokens / fast)
        seconds = sum(
            speed.seconds(kind, tokens) * (sums[stage.end] - sums[stage.begin])
            for kind, sums in self._sums.items()
        )
        return seconds + self._attention(stage, speed, tokens, cells)

    def _is_timed(self, speed: DeviceSpeed | None) -> bool:
        return speed is not None and bool(self._sums) and all(kind in speed for kind in self._sums)

    def _attention(self, stage: PlannedStage, speed: DeviceSpeed, tokens: float, cells: int) -> float:
        """Predict attention beyond the short cache over which layers were timed. A window ends it."""
        near, far = self._work.near, self._work.far
        seen = self._cells_seen(cells, unseen_cells(tokens))
        beyond = seen[stage.end] - seen[stage.begin]
        if not beyond or near is None or far is None or near not in speed or far not in speed:
            return 0.0
        more = speed.seconds(far, tokens) - speed.seconds(near, tokens)
        a_cell = max(0.0, more / (FAR_CELLS - NEAR_CELLS))
        return a_cell * beyond

    def _cells_seen(self, cells: int, unseen: float) -> Sequence[float]:
        """Count cells beyond those of the short cache, by the layers before each one."""
        key = cells, unseen
        if key not in self._seen:
            layers, timed = self._model.cache.layers, NEAR_CELLS - unseen
            seen = (min(cells, layer.window or cells) if layer.key else 0 for layer in layers)
            kept = self._seen if len(self._seen) < _MOST_SEEN else {}
            self._seen = {**kept, key: _sums(max(0.0, count - timed) for count in seen)}
        return self._seen[key]

    def _output(self, stage: PlannedStage, tokens: float) -> float:
        speed, kind = stage.speed, self._work.output
        if speed is not None and kind is not None and kind in speed:
            return speed.seconds(kind, tokens)
        return self._model.output / (GPU_RATE if stage.is_gpu else CPU_RATE)

    def _output_part(self, stage: PlannedStage, tokens: float) -> PredictedPart:
        return PredictedPart(self._output(stage, tokens), stage.label)

    def _passing(self, split: Split, tokens: int, computing: Sequence[float]) -> list[PredictedPart]:
        """Predict the time in which nothing computes while so many tokens pass all stages."""
        found: list[PredictedPart] = []
        done = 0.0
        carried = self._carried(split, tokens)
        for ways, stage, count, seconds in zip(
            self._borders(split), split.stages, carried, computing, strict=True
        ):
            passing = [way.part(way.path.rtt / 2 + way.path.seconds(count) + HOP_SECONDS) for way in ways]
            if stage.path is not None and split.pushed:
                waiting = stage.path.rtt / 2 + HOP_SECONDS - done - total(passing)
                if waiting > 0:
                    passing.append(_to_head(stage, stage.path).part(waiting))
            found += passing
            done += total(passing) + seconds
        return found

    def _carried(self, split: Split, tokens: int) -> list[int]:
        """Count the bytes that go to each stage."""
        states = 4 * tokens * self._model.widths.embedding
        return [4 * tokens if split.numbers else states, *[states] * (len(split.stages) - 1)]

    def _back(self, split: Split, tokens: int) -> list[PredictedPart]:
        """Predict the way from the last stage to the head, with what so many tokens made."""
        last = split.stages[-1]
        if last.is_head or last.path is None:
            return []
        carrying = last.path.seconds(tokens * self._bytes_back(split))
        return [_to_head(last, last.path).part(last.path.rtt / 2 + carrying + HOP_SECONDS)]

    def _borders(self, split: Split) -> list[list[PassedPath]]:
        """List the paths that hidden states pass before each stage."""
        found: list[list[PassedPath]] = []
        before: PlannedStage | None = None
        for stage in split.stages:
            if before is None or before.is_head or stage.is_head:
                far = stage if not stage.is_head else before
                found.append([_to_head(far, far.path)] if far is not None and far.path is not None else [])
            else:
                found.append(self._between(split, before, stage) if before.node != stage.node else [])
            before = stage
        return found

    @staticmethod
    def _between(split: Split, before: PlannedStage, stage: PlannedStage) -> list[PassedPath]:
        ways = [_to_head(end, end.path) for end in (before, stage) if end.path is not None]
        if not split.pushed:
            return ways
        known = split.paths.get((before.node, stage.node))
        paths = (
            [known]
            if known is not None
            else sorted((way.path for way in ways), key=lambda path: path.rtt)[-1:]
        )
        return [PassedPath(ends_of(before.node, stage.node), path) for path in paths]

    def _bytes_back(self, split: Split) -> int:
        if split.output.is_head:
            return 4 * self._model.widths.embedding
        return 4 * self._model.widths.vocabulary if split.logits else SAMPLED_BYTES

    def _bytes(self, split: Split) -> int:
        carried = zip(self._borders(split), self._carried(split, 1), strict=True)
        last = split.stages[-1]
        return sum(len(ways) * count for ways, count in carried) + (
            0 if last.is_head else self._bytes_back(split)
        )

    def _load(self, split: Split) -> float:
        """Predict a load: all read their own files at once; the head sends what nodes lack, one by one."""
        read = max(stage.weights - _crossing(stage) for stage in split.stages)
        far = max((stage.path.rtt for stage in split.stages if stage.path is not None), default=0.0)
        sent = sum(stage.path.seconds(_crossing(stage)) for stage in split.stages if stage.path is not None)
        return START_SECONDS + read / LOADED_RATE + START_ROUND_TRIPS * far + sent

    @staticmethod
    def _load_bytes(split: Split) -> int | None:
        if any(not stage.is_head and stage.lacking is None for stage in split.stages):
            return None
        return sum(map(_crossing, split.stages))


def _crossing(stage: PlannedStage) -> int:
    """Return the bytes of its weights that its node lacks, as far as that is known."""
    return 0 if stage.is_head else round(stage.weights * (stage.lacking or 0.0))


def _sums(numbers: Iterable[float]) -> Sequence[float]:
    """Add up the numbers before each place."""
    return tuple(accumulate(numbers, initial=0.0))


def _to_head(stage: PlannedStage, path: DevicePath) -> PassedPath:
    return PassedPath(ends_of(stage.node), path)


def _computed(stages: Sequence[PlannedStage], computing: Sequence[float]) -> list[PredictedPart]:
    return [PredictedPart(seconds, stage.label) for stage, seconds in zip(stages, computing, strict=True)]


def _in_turn(stages: Sequence[PlannedStage], computing: Sequence[float]) -> list[list[PredictedPart]]:
    """Group what computes side by side: each device, and the processors or the card that several share."""
    shared: dict[tuple[str, str], list[PredictedPart]] = {}
    parts = _computed(stages, computing)
    for stage, part in zip(stages, parts, strict=True):
        if stage.card:
            shared.setdefault((stage.card, "card"), []).append(part)
        elif stage.machine and not stage.is_gpu:
            share, cores = (stage.speed.share, stage.speed.cores) if stage.speed is not None else (1.0, "")
            scaled = replace(part, seconds=part.seconds * share)
            shared.setdefault((stage.machine, cores), []).append(scaled)
    return [*([part] for part in parts), *shared.values()]


def total(parts: Iterable[PredictedPart]) -> float:
    """Add up the seconds of parts."""
    return sum(part.seconds for part in parts)


def ends_of(node: str, other: str = "") -> tuple[str, str]:
    """Name the path between two nodes, in either direction; the head's name is empty."""
    return (node, other) if node < other else (other, node)


def on_paths(plan: Plan, path_of: Callable[[str], DevicePath | None]) -> Plan:
    """Return the plan with the paths that are between the head and each worker now."""
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
        self.paths = {**machines.paths, **dict.fromkeys(local, _LOCAL_PATH)}
        """From node to node; those on the head's machine do not use their link."""

    def predict(self, plan: Plan) -> PlanOutcome:
        """Predict rates and times of a plan, and what they are the sums of."""
        split = self._split_of(plan)
        prediction = self.predictor.predict(split)
        answer = prediction.first_token_s + ASSUMED_ANSWER / prediction.generate_tok_s
        return PlanOutcome(prediction, answer, tuple(self._parts(split)))

    def answer_seconds(self, split: Split) -> float:
        """Predict the answer by which splits are compared."""
        token, prompt = self.predictor.token_parts(split), self.predictor.prompt_parts(split)
        return total(prompt) + ASSUMED_ANSWER * total(token)

    def round_seconds(self, plan: Plan, tokens: int) -> float:
        """Predict one round that computes so many tokens of an answer."""
        return self.predictor.round_seconds(self._split_of(plan), tokens)

    def rounds_of(self, plan: Plan) -> Callable[[int], float] | None:
        """Return `round_seconds` of a plan; None where devices were not measured."""
        is_measured = self.predictor.is_measured(self._split_of(plan))
        return partial(self.round_seconds, plan) if is_measured else None

    def device_seconds(self, plan: Plan, tokens: float) -> Mapping[str, float]:
        """Predict a round of so many tokens by device, in seconds; empty where devices were not measured."""
        split = self._split_of(plan)
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

    def _split_of(self, plan: Plan) -> Split:
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

    def stage(self, device: Device, begin: int, end: int) -> PlannedStage:
        """Describe a device with the layers `begin` to `end`."""
        node, path = device.node, device.path
        if path is not None and path.is_loopback and self._options.is_local:
            path = _LOCAL_PATH
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
