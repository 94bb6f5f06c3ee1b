"""Hold the reasons of a plan as values: a closed set, which words.py words for all that show them.

Sizes are bytes, times seconds.
"""

from dataclasses import dataclass
from enum import Enum, auto

from meshd.model.cache import ContextShape
from meshd.model.status import AnswersAtOnce

# Why a device, or a whole node, takes no part.


@dataclass(frozen=True, slots=True)
class Reported:
    """A reason in the words of the node that gave it, or of the trial that found it."""

    text: str


@dataclass(frozen=True, slots=True)
class NoFreeMemory:
    """Nothing is free on it."""


@dataclass(frozen=True, slots=True)
class SameMemory:
    """`holder` lends the same memory, and has it in this plan."""

    holder: str


@dataclass(frozen=True, slots=True)
class SameCard:
    """`holder` uses the same card."""

    holder: str


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """There are no times of layers like the model's."""


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """The model is faster without it."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """`left` is what it has for layers, `need` what the largest layer takes."""

    left: int
    need: int


@dataclass(frozen=True, slots=True)
class TooManyDevices:
    """llama.cpp supports `most`."""

    most: int


@dataclass(frozen=True, slots=True)
class TooFewLayers:
    """There are more devices than the `layers` of the model."""

    layers: int


@dataclass(frozen=True, slots=True)
class NoShare:
    """The split gives it nothing; `by_user`: it is the user's, not meshd's own."""

    by_user: bool


Unable = Reported | NoFreeMemory | SameMemory | SameCard | NotMeasured
"""It cannot be used, whatever the split."""
Unused = NotNeeded | NoRoom | TooManyDevices | TooFewLayers | NoShare
"""This split does without it."""
Absence = Unable | Unused


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device that takes no part, and why."""

    node: str
    device: str
    why: Absence

    @property
    def is_unable(self) -> bool:
        """Tell whether no split could use it."""
        return isinstance(self.why, Unable)


@dataclass(frozen=True, slots=True)
class Without:
    """A worker that was not compared, and why."""

    node: str
    why: Absence


# How the split was chosen.


@dataclass(frozen=True, slots=True)
class RatedSplit:
    """The nodes that hold layers, in their order, and the predicted seconds of one answer."""

    nodes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class SplitComparison:
    """The chosen split beside the fastest ones of the other kind: one machine, or several.

    `faster`: the fastest of all, where that has fewer workers than `least`, which the user demands.
    """

    chosen: RatedSplit
    other: RatedSplit | None = None
    faster: RatedSplit | None = None
    least: int = 0

    def times(self, split: RatedSplit) -> float:
        """Divide an answer's time with `split` by that with the chosen one."""
        return split.seconds / self.chosen.seconds


@dataclass(frozen=True, slots=True)
class ByMemory:
    """The layers are divided by memory, as splits cannot be compared by speed.

    `unmeasured`: nodes or devices without times, and why; none: the kind of the layers cannot be measured.
    `refused`: why the model cannot be run without these; empty: that was not tried.
    """

    unmeasured: tuple[tuple[str, Absence], ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class ComparisonFailed:
    """The layers are divided by memory, as the comparison of splits failed with the error `what`."""

    what: str


# How the layers are divided.


@dataclass(frozen=True, slots=True)
class AllOn:
    """One node has all layers."""

    node: str


@dataclass(frozen=True, slots=True)
class InProportion:
    """The layers are divided in proportion to usable memory."""


@dataclass(frozen=True, slots=True)
class AsGiven:
    """The numbers of layers were given: by the user, or by meshd's own comparison."""

    by_user: bool


class HeadCpu(Enum):
    """Why the head's CPU gets layers, or none."""

    NOT_WANTED = auto()
    ALONE = auto()
    AMONG_CPUS = auto()
    BESIDE_GPUS = auto()
    GPUS_TOO_SMALL = auto()


@dataclass(frozen=True, slots=True)
class OutputOn:
    """The device with the output matrix.

    `on_head`, `on_worker`: seconds of a token with it here and there, if they were estimated.
    """

    device: str
    on_head: float | None = None
    on_worker: float | None = None


@dataclass(frozen=True, slots=True)
class UnknownArchitecture:
    """The size of the cache is an upper bound."""

    name: str


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens of a prompt that are computed at once; `gpus` and `cpus`: the devices that have layers.

    `for_slots`: there are as many only to compute a round of all slots at once.
    """

    tokens: int
    gpus: int
    cpus: int
    for_slots: bool = False


@dataclass(frozen=True, slots=True)
class FullWindows:
    """Windowed layers keep the whole context, so that llama-server needs no checkpoints."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The number of answers made at once; `lacks_memory`: for as many as were wanted."""

    at_once: AnswersAtOnce
    lacks_memory: bool = False


# Why there is no plan.


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A memory that one device has, or several share; `devices` are their labels.

    `fixed`: weights beside the layers; `compute`: buffers, a bound. `takes_layers`: some may lie there.
    """

    devices: tuple[str, ...]
    free: int
    fixed: int
    compute: int
    takes_layers: bool


@dataclass(frozen=True, slots=True)
class Shortage:
    """The model does not fit: bytes of weights and of the cache of this shape that its layers need."""

    model: str
    layers: int
    weights: int
    cache: int
    shape: ContextShape
    memories: tuple[MemoryUse, ...]


Reason = (
    SplitComparison
    | ByMemory
    | ComparisonFailed
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
# What would be better than the split that runs.
LayerCounts = tuple[tuple[str, int], ...]
"""Nodes, and how many layers each of their devices has."""


@dataclass(frozen=True, slots=True)
class RunOn:
    """Run the model on one node alone; `is_head`: on this one."""

    node: str
    is_head: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """Run it without these nodes."""

    nodes: tuple[str, ...]
    layers: LayerCounts


@dataclass(frozen=True, slots=True)
class Use:
    """Run it on these nodes as well, in place of others perhaps."""

    nodes: tuple[str, ...]
    instead_of: tuple[str, ...]
    layers: LayerCounts


@dataclass(frozen=True, slots=True)
class Reorder:
    """Pass the nodes in another order."""

    nodes: tuple[str, ...]
    layers: LayerCounts


@dataclass(frozen=True, slots=True)
class Divide:
    """Divide the layers otherwise over the same nodes."""

    layers: LayerCounts


SplitChange = RunOn | Drop | Use | Reorder | Divide


@dataclass(frozen=True, slots=True)
class LetHeadCompute:
    """Omit `--device none`."""

    head: str


@dataclass(frozen=True, slots=True)
class OneAtOnce:
    """Make one answer at a time, over this split."""

    change: SplitChange


@dataclass(frozen=True, slots=True)
class HalfFloats:
    """Send activations as half floats."""


Change = SplitChange | LetHeadCompute | OneAtOnce | HalfFloats


@dataclass(frozen=True, slots=True)
class AdviceBasis:
    """The basis of an advice: the comparison of splits (None: no other one fits), and what it leaves out.

    `drafts`: the model runs with some. `estimated`: some devices were never measured. `prompt`, `answer`:
    tokens of the answer by whose time splits are compared.
    """

    comparison: SplitComparison | None
    prompt: int
    answer: int
    drafts: bool
    estimated: bool


@dataclass(frozen=True, slots=True)
class ChangedPart:
    """A device or a path that takes another time of a token now than `before`."""

    name: str
    seconds: float
    before: float
