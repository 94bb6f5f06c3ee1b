"""Hold the reasons of a plan as values: a closed set, each with its words for all that show it.

Status, log, page, `meshd plan` and `meshd why` show the same words: `str` of a reason. Sizes are bytes, times
seconds.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshd.base.units import MIB, in_memory
from meshd.model.cache import ContextShape
from meshd.model.status import AnswersAtOnce

# Why a device, or a whole node, takes no part.


@dataclass(frozen=True, slots=True)
class Reported:
    """Repeat a reason in the words of the node that gave it, or of the trial that found it."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class NoFreeMemory:
    """Say that nothing is free on it."""

    def __str__(self) -> str:
        return "it has no free memory"


@dataclass(frozen=True, slots=True)
class SameMemory:
    """Say that `holder` lends the same memory, and has it in this plan."""

    holder: str

    def __str__(self) -> str:
        return f"{self.holder} has the same memory, as both report"


@dataclass(frozen=True, slots=True)
class SameCard:
    """Say that `holder` uses the same card."""

    holder: str

    def __str__(self) -> str:
        return f"{self.holder} uses the same card, as both report"


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Say that there are no times of layers like the model's."""

    def __str__(self) -> str:
        return "it was not measured with layers like this model's"


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """Say that the model is faster without it."""

    def __str__(self) -> str:
        return "the model is faster without it"


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Say that `left` is what it has for layers, and `need` what the largest layer takes."""

    left: int
    need: int

    def __str__(self) -> str:
        left, need = in_memory(max(0, self.left)), in_memory(self.need)
        return f"{left} are left for layers; one layer needs {need}"


@dataclass(frozen=True, slots=True)
class TooManyDevices:
    """Say that llama.cpp supports `most`."""

    most: int

    def __str__(self) -> str:
        return f"llama.cpp supports at most {self.most} devices"


@dataclass(frozen=True, slots=True)
class TooFewLayers:
    """Say that there are more devices than the `layers` of the model."""

    layers: int

    def __str__(self) -> str:
        return f"the model has only {self.layers} layers"


@dataclass(frozen=True, slots=True)
class NoShare:
    """Say that the split gives it nothing; `by_user`: it is the user's, not meshd's own."""

    by_user: bool

    def __str__(self) -> str:
        return f"it has no share in the {_source(by_user=self.by_user)}"


Unable = Reported | NoFreeMemory | SameMemory | SameCard | NotMeasured
"""It cannot be used, whatever the split."""
Unused = NotNeeded | NoRoom | TooManyDevices | TooFewLayers | NoShare
"""This split does without it."""
Absence = Unable | Unused


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Name a device that takes no part, and say why."""

    node: str
    device: str
    why: Absence

    @property
    def is_unable(self) -> bool:
        """Tell whether no split could use it."""
        return isinstance(self.why, Unable)

    def __str__(self) -> str:
        return f"{self.node} {self.device} left out: {self.why}"


@dataclass(frozen=True, slots=True)
class Without:
    """Name a worker that was not compared, and say why."""

    node: str
    why: Absence

    def __str__(self) -> str:
        return f"without `{self.node}`: {self.why}"


# How the split was chosen.


@dataclass(frozen=True, slots=True)
class RatedSplit:
    """Name the nodes that hold layers, in their order, and the predicted seconds of one answer."""

    nodes: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        return f"`{self.nodes[0]}` alone" if len(self.nodes) == 1 else _in_order(self.nodes)


@dataclass(frozen=True, slots=True)
class SplitComparison:
    """Show the chosen split beside the fastest ones of the other kind: one machine, or several.

    `faster`: the fastest of all, where that has fewer workers than `least`, which the user demands.
    """

    chosen: RatedSplit
    other: RatedSplit | None = None
    faster: RatedSplit | None = None
    least: int = 0

    def __str__(self) -> str:
        return f"{'split over' if self._is_split else 'not split: it runs on'} {self.chosen}{self._others}"

    @property
    def not_running(self) -> str:
        """Word it while another split runs, which the user wished."""
        return f"meshd would {'split it over' if self._is_split else 'run it on'} {self.chosen}{self._others}"

    @property
    def _is_split(self) -> bool:
        return len(self.chosen.nodes) > 1

    @property
    def _others(self) -> str:
        other, faster = self.other, self.faster
        slower = []
        if other is not None and other != faster:
            gains = "" if other.seconds >= self.chosen.seconds else " (too little gain for one more)"
            slower.append(f"{self._takes(other)}{gains}")
        if faster is not None:
            slower.append(f"{self._takes(faster)}, but `--min-workers {self.least}` rules it out")
        if slower:
            return f", while {', and '.join(slower)}"
        return ": it fits on no single machine" if self._is_split else ""

    def times(self, split: RatedSplit) -> float:
        """Divide an answer's time with `split` by that with the chosen one."""
        return split.seconds / self.chosen.seconds

    def _takes(self, split: RatedSplit) -> str:
        return f"{split} takes {self.times(split):.2f} times as long"


@dataclass(frozen=True, slots=True)
class ByMemory:
    """Say that the layers are divided by memory, as splits cannot be compared by speed.

    `unmeasured`: nodes or devices without times, and why; none: the kind of the layers cannot be measured.
    `refused`: why the model cannot be run without these; empty: that was not tried.
    """

    unmeasured: tuple[tuple[str, Absence], ...] = ()
    refused: str = ""

    def __str__(self) -> str:
        why = "; ".join(f"`{name}`: {why}" for name, why in self.unmeasured)
        why = why or "layers of this kind cannot be measured"
        refused = f"; and without that: {self.refused}" if self.unmeasured and self.refused else ""
        return f"layers by memory, not by speed: {why}{refused}"


@dataclass(frozen=True, slots=True)
class ComparisonFailed:
    """Say that the layers are divided by memory: comparing splits failed with the error `what`."""

    what: str

    def __str__(self) -> str:
        return f"layers by memory, as splits could not be compared ({self.what})"


@dataclass(frozen=True, slots=True)
class ByTensors:
    """Say that these nodes compute each layer together, as the user wants it."""

    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"each layer on {names_of(self.nodes)}, as `--split tensor` says"


@dataclass(frozen=True, slots=True)
class NotByTensors:
    """Say that the user wants a split by tensors, and why there is none."""

    why: str

    def __str__(self) -> str:
        return f"by layers: {self.why}"


@dataclass(frozen=True, slots=True)
class TogetherByChoice:
    """Say that meshd chose this; predicted seconds of a conversation, `of_prompt` those of its prompt."""

    nodes: tuple[str, ...]
    prompt: int
    answer: int
    seconds: float
    of_prompt: float
    by_layers: float

    def __str__(self) -> str:
        return (
            f"each layer on {names_of(self.nodes)}: a prompt of {self.prompt} tokens and an answer of "
            f"{self.answer} are predicted to take {self.seconds:.1f} s, instead of {self.by_layers:.1f} s by "
            "layers"
        )


@dataclass(frozen=True, slots=True)
class NotTogether:
    """Say why `auto` chose no split by tensors."""

    why: str

    def __str__(self) -> str:
        return f"not by tensors: {self.why}"


@dataclass(frozen=True, slots=True)
class OtherWay:
    """Say that the run before was split the other way: `by_tensors`, or by layers."""

    by_tensors: bool

    def __str__(self) -> str:
        way = "tensors" if self.by_tensors else "layers"
        return (
            f"the previous run was split by {way}; the arithmetic differs, so texts may continue differently"
        )


# How the layers are divided.


@dataclass(frozen=True, slots=True)
class AllOn:
    """Say that one node has all layers."""

    node: str

    def __str__(self) -> str:
        return f"all layers on `{self.node}`"


@dataclass(frozen=True, slots=True)
class InProportion:
    """Say that the layers are divided in proportion to usable memory."""

    def __str__(self) -> str:
        return "layers in proportion to usable memory"


@dataclass(frozen=True, slots=True)
class AsGiven:
    """Say that the numbers of layers were given: by the user, or by meshd's own comparison."""

    by_user: bool

    def __str__(self) -> str:
        return f"according to the {_source(by_user=self.by_user)}"


class HeadCpu(StrEnum):
    """Say why the head's CPU gets layers, or none."""

    NOT_WANTED = "the head gets no layers (`--device none`)"
    ALONE = "there is no other device"
    AMONG_CPUS = "the head gets layers because all devices are CPUs"
    BESIDE_GPUS = "the head's CPU gets no layers because there are GPUs"
    GPUS_TOO_SMALL = "the head's CPU gets layers because the GPUs alone lack the memory"


@dataclass(frozen=True, slots=True)
class OutputOn:
    """Name the device with the output matrix.

    `on_head`, `on_worker`: seconds of a token with it here and there, if they were estimated.
    """

    device: str
    on_head: float | None = None
    on_worker: float | None = None

    def __str__(self) -> str:
        text = f"output on {self.device}"
        if self.on_head is None or self.on_worker is None:
            return text
        head, worker = f"{self.on_head * 1000:.1f} ms", f"{self.on_worker * 1000:.1f} ms"
        return f"{text} ({head} per token on the head, {worker} on the worker, estimated)"


@dataclass(frozen=True, slots=True)
class UnknownArchitecture:
    """Say that the size of the cache is an upper bound."""

    name: str

    def __str__(self) -> str:
        return f"architecture `{self.name}` is unknown: its cache size is an upper bound"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Count the tokens of a prompt that are computed at once.

    `gpus` and `cpus`: the devices that have layers. `for_slots`: there are as many only to compute a round of
    all slots at once. `at_once`: these compute each micro batch together.
    """

    tokens: int
    gpus: int
    cpus: int
    for_slots: bool = False
    at_once: bool = False

    def __str__(self) -> str:
        text, stages = f"micro batches of {self.tokens} tokens", self.gpus + self.cpus
        if self.for_slots:
            return f"{text}: one for each slot"
        if self.at_once:
            return f"{text}: all workers compute each together"
        if stages < 2:
            return f"{text}: one device computes"
        kinds = "GPUs" if not self.cpus else "CPUs" if not self.gpus else "CPUs and GPUs"
        return f"{text}: fastest for {stages} {kinds} in turn, estimated"


@dataclass(frozen=True, slots=True)
class FullWindows:
    """Say that windowed layers keep the whole context, so that llama-server needs no checkpoints."""

    def __str__(self) -> str:
        return "windows keep the whole context, so no checkpoints"


@dataclass(frozen=True, slots=True)
class Answers:
    """Count the answers made at once; `lacks_memory`: for as many as were wanted."""

    at_once: AnswersAtOnce
    lacks_memory: bool = False

    def __str__(self) -> str:
        return f"{self.at_once.text}{', limited by memory' * self.lacks_memory}"


# Why there is no plan.


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Describe a memory that one device has, or several share; `devices` are their labels.

    `fixed`: weights beside the layers; `compute`: buffers, a bound. `takes_layers`: some may lie there.
    """

    devices: tuple[str, ...]
    free: int
    fixed: int
    compute: int
    takes_layers: bool

    def __str__(self) -> str:
        """Word what it has for layers; empty for one without layers that has enough for the rest."""
        left = self.free - self.fixed - self.compute
        if left >= 0 and not self.takes_layers:
            return ""
        names, shared = " and ".join(self.devices), len(self.devices) > 1
        has = f"{'have' if shared else 'has'} {in_memory(left) if left > 0 else 'nothing'} for them"
        if not self.takes_layers:
            has = f"lacks {in_memory(-left)} even without them"
        once = ", as one of them says, in the memory that they share" if shared else ""
        beside = f"{in_memory(self.fixed)} for weights beside the layers, " if self.fixed >= MIB else ""
        return (
            f"{names} {has} ({in_memory(self.free)} free{once}, less {beside}"
            f"up to {in_memory(self.compute)} for compute buffers)"
        )


@dataclass(frozen=True, slots=True)
class Shortage:
    """Say that the model does not fit: its layers need these weights and this cache, in bytes."""

    model: str
    layers: int
    weights: int
    cache: int
    shape: ContextShape
    memories: tuple[MemoryUse, ...]

    def __str__(self) -> str:
        """Word what is needed and what is there, in figures that add up."""
        needed = (
            f"`{self.model}` does not fit: it needs {in_memory(self.weights + self.cache)} for its "
            f"{self.layers} layers (weights {in_memory(self.weights)}, "
            f"cache of {self.shape.text} {in_memory(self.cache)})"
        )
        return "; ".join([needed, *filter(None, map(str, self.memories))])


Reason = (
    SplitComparison
    | ByMemory
    | ComparisonFailed
    | ByTensors
    | NotByTensors
    | TogetherByChoice
    | NotTogether
    | OtherWay
    | Without
    | AllOn
    | InProportion
    | AsGiven
    | HeadCpu
    | OutputOn
    | LeftOut
    | UnknownArchitecture
    | MicroBatch
    | FullWindows
    | Answers
    | Shortage
)
Reasons = tuple[Reason, ...]


def in_words(reasons: Iterable[Reason]) -> str:
    """Word all reasons of a plan, or of its refusal, in their order."""
    return "; ".join(map(str, reasons))


def brief(reasons: Sequence[Reason], *, estimated: Collection[str] = ()) -> str:
    """Word what decided the split, and what no split could use.

    `estimated`: nodes whose speed was estimated for it.
    """
    says_enough = isinstance(reasons[0], ByMemory | ComparisonFailed)
    shown = [reasons[0]]
    shown += [
        reason
        for reason in reasons[1:]
        if isinstance(reason, OtherWay) or (_is_left_for_good(reason) and not says_enough)
    ]
    by_estimates = f" (by estimates of {', '.join(sorted(estimated))})" if estimated else ""
    return f"{in_words(shown)}{by_estimates}"


def _is_left_for_good(reason: Reason) -> bool:
    return isinstance(reason, Without) or (isinstance(reason, LeftOut) and reason.is_unable)


def why_idle(left_out: Iterable[LeftOut], node: str) -> str:
    """Word why a worker got no layer."""
    return (
        each_left_out(device for device in left_out if device.node == node)
        or f"{node}: no layer was left for it"
    )


def each_left_out(left_out: Iterable[LeftOut]) -> str:
    """Word why each of these devices takes no part; empty without any."""
    return "; ".join(f"{device.node} {device.device}: {device.why}" for device in left_out)


# What would be better than the split that runs.


LayerCounts = tuple[tuple[str, int], ...]
"""Nodes, and how many layers each of their devices has."""


@dataclass(frozen=True, slots=True)
class RunOn:
    """Run the model on one node alone; `is_head`: on this one."""

    node: str
    is_head: bool

    def __str__(self) -> str:
        return f"do not split: run it on {'this node' if self.is_head else f'`{self.node}`'} alone"


@dataclass(frozen=True, slots=True)
class Drop:
    """Run it without these nodes."""

    nodes: tuple[str, ...]
    layers: LayerCounts

    def __str__(self) -> str:
        return f"drop {names_of(self.nodes)} (layers: {_layers(self.layers)})"


@dataclass(frozen=True, slots=True)
class Use:
    """Run it on these nodes as well, instead of others perhaps."""

    nodes: tuple[str, ...]
    instead_of: tuple[str, ...]
    layers: LayerCounts

    def __str__(self) -> str:
        instead = f" instead of {names_of(self.instead_of)}" if self.instead_of else ""
        return f"use {names_of(self.nodes)}{instead} (layers: {_layers(self.layers)})"


@dataclass(frozen=True, slots=True)
class Reorder:
    """Pass the nodes in another order."""

    nodes: tuple[str, ...]
    layers: LayerCounts

    def __str__(self) -> str:
        return f"another order: {_in_order(self.nodes)} (layers: {_layers(self.layers)})"


@dataclass(frozen=True, slots=True)
class Divide:
    """Divide the layers differently over the same nodes."""

    layers: LayerCounts

    def __str__(self) -> str:
        return f"divide the layers differently: {_layers(self.layers)}"


SplitChange = RunOn | Drop | Use | Reorder | Divide


@dataclass(frozen=True, slots=True)
class LetHeadCompute:
    """Omit `--device none`."""

    head: str

    def __str__(self) -> str:
        return f"omit `--device none`, so that `{self.head}` also computes"


@dataclass(frozen=True, slots=True)
class OneAtOnce:
    """Make one answer at a time, over this split."""

    change: SplitChange

    def __str__(self) -> str:
        return f"one request at a time (`-- -np 1`): {self.change}"


@dataclass(frozen=True, slots=True)
class HalfFloats:
    """Send activations as half floats."""

    def __str__(self) -> str:
        return "send activations as half floats (`--set serve.activations=f16`)"


@dataclass(frozen=True, slots=True)
class ComputeTogether:
    """Split by tensors over these nodes; `all_workers`: there are no others."""

    nodes: tuple[str, ...]
    all_workers: bool

    def __str__(self) -> str:
        named = "" if self.all_workers else f" --workers {','.join(self.nodes)}"
        return f"each layer on {names_of(self.nodes)} (`--split tensor{named}`)"


Change = SplitChange | ComputeTogether | LetHeadCompute | OneAtOnce | HalfFloats


@dataclass(frozen=True, slots=True)
class AdviceBasis:
    """Hold the basis of an advice: the comparison of splits (None: no other one fits), and its limits.

    `runs`: the chosen one is on the nodes that the model runs on. `drafts`: the model runs with some.
    `estimated`: some devices were never measured. `prompt`, `answer`: tokens of the answer by whose time
    splits are compared.
    """

    comparison: SplitComparison | None
    runs: bool
    prompt: int
    answer: int
    drafts: bool
    estimated: bool

    def __str__(self) -> str:
        drafts = "without drafts " if self.drafts else ""
        answer = f"a prompt of {self.prompt} tokens and {self.answer} generated ones, with the best layers"
        chosen = "no split is faster"
        if self.comparison is not None:
            chosen = str(self.comparison) if self.runs else self.comparison.not_running
        text = f"{chosen}; predicted {drafts}for {answer}"
        if self.estimated:
            text += "; some devices were never measured (`meshd capacity` does that while nothing is served)"
        return text


@dataclass(frozen=True, slots=True)
class ChangedPart:
    """Name a device or a path that takes another time of a token now than `before`."""

    name: str
    seconds: float
    before: float

    def __str__(self) -> str:
        now, before = self.seconds * 1000, self.before * 1000
        return f"`{self.name}` takes {now:.1f} ms of a token ({before:.1f} ms then)"


def faster_in_words(split: RatedSplit, times: float) -> str:
    """Word that measurements show a split to be so many times as fast as the one that runs."""
    return f"as measured, requests are {times:.1f} times as fast over {split}"


def _source(*, by_user: bool) -> str:
    return "tensor split" if by_user else "plan"


def names_of(nodes: Sequence[str]) -> str:
    """List the names of nodes as texts have them."""
    names = [f"`{node}`" for node in nodes]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _in_order(nodes: Sequence[str]) -> str:
    return " → ".join(f"`{node}`" for node in nodes)


def _layers(held: LayerCounts) -> str:
    return ", ".join(f"`{node}` {layers}" for node, layers in held)
