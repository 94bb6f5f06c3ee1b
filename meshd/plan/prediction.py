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

By tensors, workers compute each layer together: see tensor_prediction.py.

Without pushes all hidden states pass the head, so each border between workers is two ways, and the micro
batches of a prompt follow one another. Times of layers are measured (model/device_speed.py); where a device
was not, they follow from the bytes of its weights.

Both sums are there part by part as well: what each device takes, each path between two nodes, and the rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import FAR_CELLS, NEAR_CELLS, LayerWork, unseen_cells
from meshd.model.layers import ModelLayers
from meshd.model.output import CPU_RATE, GPU_RATE, SAMPLED_BYTES, DevicePath
from meshd.model.status import Speeds
from meshd.plan.reasons import ChangedPart
from meshd.plan.split import Plan
from meshd.plan.tensor_prediction import (
    SUMS_A_LAYER,
    VALUE_BYTES,
    PairWay,
    SumMember,
    divided_seconds,
    uneven_growth,
    ways_between,
)

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
    that numbers of tokens cross to it, and no hidden states. `shares`: of each stage in each layer, where all
    compute together, by tensors.
    """

    stages: tuple[PlannedStage, ...]
    output: PlannedStage
    micro_batch: int
    slots: int = 1
    pushed: bool = True
    logits: bool = False
    numbers: bool = False
    paths: Mapping[tuple[str, str], DevicePath] = field(default_factory=dict)
    shares: tuple[float, ...] = ()

    @property
    def pairs(self) -> tuple[PairWay, ...]:
        """Describe the paths of the sums between workers; none by layers."""
        members = [SumMember(stage.node, stage.path, stage.is_gpu) for stage in self.stages]
        return ways_between(members, self.paths, HOP_SECONDS) if self.shares else ()


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
    """All devices were, and by tensors the path between each two."""


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
        making, output = split.stages if split.shares else (split.output,), self._work.output
        is_output_known = all(
            stage.speed is not None and (output is None or output in stage.speed) for stage in making
        )
        is_timed = is_output_known and all(self._is_timed(stage.speed) for stage in split.stages)
        return is_timed and all(pair.is_known for pair in split.pairs)

    def token_parts(self, split: Split, streams: int = 1, cells: int = USUAL_PROMPT) -> list[PredictedPart]:
        """Predict a token in so many streams at once: the seconds of all of them together."""
        if split.shares:
            return self._token_by_tensors(split, streams, cells)
        computing = self._computing(split, streams, cells)
        passing = self._passing(split, streams, computing)
        return [
            *_computed(split.stages, computing),
            *passing,
            *self._back(split, streams),
            self._output_part(split.output, streams),
            PredictedPart(STEP_SECONDS),
        ]

    def prompt_parts(self, split: Split, tokens: int = USUAL_PROMPT) -> list[PredictedPart]:
        """Predict a prompt. All micro batches but one take what takes longest in the pipeline."""
        micro = min(split.micro_batch, tokens)
        batches = -(-tokens // micro)
        if split.shares:
            return self._prompt_by_tensors(split, micro, batches, tokens // 2)
        computing = self._computing(split, micro, tokens // 2)
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
        if split.shares:
            return {part.device: part.seconds for part in self._divided(split, tokens, USUAL_PROMPT)}
        found: dict[str, float] = {}
        for stage, seconds in zip(split.stages, self._computing(split, tokens, USUAL_PROMPT), strict=True):
            found[stage.label] = found.get(stage.label, 0.0) + seconds
        output = split.output.label
        found[output] = found.get(output, 0.0) + self._output(split.output, tokens)
        return found

    def is_timed(self, stage: PlannedStage) -> bool:
        """Tell whether the device has times of such layers."""
        return self._is_timed(stage.speed)

    def layer_seconds(self, stage: PlannedStage) -> float:
        """Predict a token in the mean of the stage's layers."""
        return self._layers(stage, 1, USUAL_PROMPT) / max(1, stage.end - stage.begin)

    # By tensors.

    def _token_by_tensors(self, split: Split, tokens: int, cells: int) -> list[PredictedPart]:
        slowest = max(_side_by_side(split.stages, self._divided(split, tokens, cells)), key=total)
        return [
            *slowest,
            self._added_up(split, tokens),
            *self._to_and_fro(split, tokens),
            PredictedPart(STEP_SECONDS),
        ]

    def _prompt_by_tensors(self, split: Split, micro: int, batches: int, cells: int) -> list[PredictedPart]:
        """Predict micro batches one after the other; only the last token of the prompt makes logits."""
        computing = self._divided(split, micro, cells, is_prompt=True)
        slowest = max(_side_by_side(split.stages, computing), key=total)
        return [
            *(
                replace(part, seconds=batches * part.seconds)
                for part in (*slowest, self._added_up(split, micro))
            ),
            *self._to_and_fro(split, 1),
            PredictedPart(PROMPT_SECONDS),
        ]

    def _divided(
        self, split: Split, tokens: float, cells: int, *, is_prompt: bool = False
    ) -> list[PredictedPart]:
        """Predict each worker's share of all layers, and of the output: a tied one is there whole."""
        growth = uneven_growth(self._model.widths, split.shares)
        found: list[PredictedPart] = []
        for stage, share, seconds in zip(
            split.stages, split.shares, self._computing(split, tokens, cells), strict=True
        ):
            layers = divided_seconds(
                seconds, growth * share, self._model.count, is_gpu=stage.is_gpu, is_prompt=is_prompt
            )
            part = 1.0 if self._model.tied else share
            made = part * self._output(stage, 1 if is_prompt else tokens)
            found.append(PredictedPart(layers + made, stage.label))
        return found

    def _added_up(self, split: Split, tokens: int) -> PredictedPart:
        """Predict all sums of so many tokens: the slowest pair is what the others wait for."""
        count = VALUE_BYTES * tokens * self._model.widths.embedding
        slowest = max(split.pairs, key=lambda pair: pair.seconds(count))
        return PredictedPart(SUMS_A_LAYER * self._model.count * slowest.seconds(count), ends=slowest.ends)

    def _to_and_fro(self, split: Split, tokens: int) -> list[PredictedPart]:
        """Predict the order to the farthest worker, and its way back: all logits cross the head's cable."""
        logits = tokens * VALUE_BYTES * self._model.widths.vocabulary
        ways = [
            (stage.path, round(share * logits), stage)
            for stage, share in zip(split.stages, split.shares, strict=True)
            if stage.path is not None
        ]
        if not ways:
            return []
        carried = sum(path.carrying(count) for path, count, _ in ways)
        path, late, far = max(
            (
                (path, path.rtt + path.seconds(count) - path.carrying(count), stage)
                for path, count, stage in ways
            ),
            key=lambda way: way[1],
        )
        return [_to_head(far, path).part(late + 2 * HOP_SECONDS + carried)]

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
        if split.shares:
            rows = SUMS_A_LAYER * self._model.count * self._model.widths.embedding
            each = len(split.shares) * (len(split.shares) - 1)
            return VALUE_BYTES * (each * rows + self._model.widths.vocabulary)
        carried = zip(self._borders(split), self._carried(split, 1), strict=True)
        last = split.stages[-1]
        return sum(len(ways) * count for ways, count in carried) + (
            0 if last.is_head else self._bytes_back(split)
        )

    def _load(self, split: Split) -> float:
        """Predict a load: all read their own files at once; the head sends what nodes lack, one by one."""
        stages = _with_shares(split)
        read = max(stage.weights - _crossing(stage) for stage in stages)
        far = max((stage.path.rtt for stage in stages if stage.path is not None), default=0.0)
        sent = sum(stage.path.seconds(_crossing(stage)) for stage in stages if stage.path is not None)
        return START_SECONDS + read / LOADED_RATE + START_ROUND_TRIPS * far + sent

    @staticmethod
    def _load_bytes(split: Split) -> int | None:
        if any(not stage.is_head and stage.lacking is None for stage in split.stages):
            return None
        return sum(map(_crossing, _with_shares(split)))


def _with_shares(split: Split) -> Sequence[PlannedStage]:
    """Return the stages with the weights that each has: by tensors of a part of every layer."""
    if not split.shares:
        return split.stages
    return [
        replace(stage, weights=round(share * stage.weights))
        for stage, share in zip(split.stages, split.shares, strict=True)
    ]


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
    """Group what computes side by side, with the layers of each stage."""
    return _side_by_side(stages, _computed(stages, computing))


def _side_by_side(
    stages: Sequence[PlannedStage], parts: Sequence[PredictedPart]
) -> list[list[PredictedPart]]:
    """Group parts of stages: each device, and the processors or the card that several share."""
    shared: dict[tuple[str, str], list[PredictedPart]] = {}
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
