"""The state of the model that a head serves or fetches, and of the weights that a worker keeps.

Reported by the roles, the API and `meshd status`.

`meshd status --json` shows them as they are: fields may be added, never renamed or dropped. Times are
seconds, sizes bytes.
"""

from dataclasses import dataclass
from enum import StrEnum

from meshd.base.byte_format import in_bytes
from meshd.base.time_format import in_time

COUNTED = "waiting for workers"  # begins the reason while so many workers are demanded as are not there


class ModelState(StrEnum):
    """The state of a head's model, from fetching its file to serving; one of several may be unloaded."""

    FETCHING = "fetching"
    WAITING = "waiting"
    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    UNLOADED = "unloaded"


@dataclass(frozen=True, slots=True)
class SplitPart:
    """The part of the model on one device."""

    node: str
    device: str
    layers: int  # number of layers
    bytes: int  # of weights
    push: bool | None = None  # straight from the previous worker, not through the head; null: there is none
    why_no_push: str = ""  # why activations go through the head


NOT_HELD = "no such hash"
"""The reason of a tensor of which the worker has no copy: nothing is wrong then."""


@dataclass(frozen=True, slots=True)
class NetworkTensor:
    """A tensor that had to come over the network, and why."""

    name: str
    bytes: int
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerWeights:
    """One worker's weights, in bytes."""

    node: str
    total_bytes: int  # all weights of its layers
    local_bytes: int  # read from its own files
    missing_bytes: int  # not in its files
    sent_bytes: int  # sent so far, of the missing ones

    @property
    def share(self) -> float:
        """The share of weights that has arrived, from 0 to 1."""
        return min(1.0, (self.local_bytes + self.sent_bytes) / max(1, self.total_bytes))

    @property
    def text(self) -> str:
        """For people."""
        there, total = in_bytes(self.local_bytes + self.sent_bytes), in_bytes(self.total_bytes)
        network = f" ({in_bytes(self.sent_bytes)} over the network)" if self.missing_bytes else ""
        return f"{self.node} {there} of {total}{network}"


@dataclass(frozen=True, slots=True)
class AnswersAtOnce:
    """How many answers are made at the same time, and how long one may be; further requests wait."""

    slots: int
    tokens: int  # of each, with its prompt; of all together if they share the context
    shared: bool = False  # llama-server ends all of them when it is full
    note: str = ""  # why they are shorter than asked for; empty: they are not

    @property
    def text(self) -> str:
        """For people."""
        if self.slots == 1:
            return f"1 answer at once, {self.tokens} tokens"
        if self.shared:
            return f"{self.slots} answers at once that share {self.tokens} tokens"
        return f"{self.slots} answers at once, {self.tokens} tokens each"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens a second of one answer at a time."""

    prompt_tok_s: float | None
    generate_tok_s: float | None


@dataclass(frozen=True, slots=True)
class SpeculationStatus:
    """What llama-server guesses ahead, and what that has gained in answers that were made alone."""

    free: int  # tokens that it drafts at most in a round, from what the text repeats; 0: none
    model: int  # the same by the draft model
    drafted: int  # tokens, since the model was loaded
    accepted: int  # those of them that are in answers
    gain: float | None  # times as fast as without; null until it is known
    why: str
    why_no_model: str = ""  # the draft model is not used; empty: it is, or there is none


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """A worker that holds weights ready for the loss of another one."""

    node: str
    ready: bool  # it holds all that it was asked for
    held_bytes: int  # of weights, in its memory
    wanted_bytes: int  # that it was asked for
    why: str  # for which losses, or why it is not ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """The model of a head."""

    name: str
    fingerprint: str  # hash of its content
    state: ModelState
    reason: str
    load_seconds: float | None
    weights_local_bytes: int  # read by workers from their own files
    weights_network_bytes: int  # sent over the network
    tensors_from_network: tuple[NetworkTensor, ...]
    bytes_per_token: float | None  # both directions, all links of the head; null until measured
    split: tuple[SplitPart, ...]
    progress: float | None = None  # 0 to 1 while loading
    workers: tuple[WorkerWeights, ...] = ()  # while the model is loading, and afterwards
    answers: AnswersAtOnce | None = None  # null until it is loaded
    predicted: Speeds | None = None  # of the split in use, at load; null where a device was never measured
    measured: Speeds | None = None  # of answers that were made alone; null before the first
    aliases: tuple[str, ...] = ()  # other names in requests, where several models are served
    group: str = ""  # models of one group may be loaded together
    ttl_s: int = 0  # time without a request after which it is unloaded; 0: never
    running: int = 0  # requests under way, where several models are served
    waiting: int = 0  # requests that wait for it
    speculation: SpeculationStatus | None = None  # null while no model is loaded
    standby: tuple[StandbyStatus, ...] = ()  # the workers of `--standby`
    fallbacks: tuple[str, ...] = ()  # the files of `fallback_models`, in the order in which they are tried
    measuring_seconds: float = 0.0  # of the devices, after that load: once for each kind of model
    estimated: tuple[str, ...] = ()  # nodes whose speed was estimated for the split, and is measured later
    split_why: str = ""  # all that decided the split; `reason` of a ready model begins with it, in short
    fallback: str = ""  # the file in place of the model's own, which does not fit any more; empty: its own


@dataclass(frozen=True, slots=True)
class FetchSource:
    """A member that has a model that is fetched."""

    node: str
    bytes: int  # that it gave
    problem: str = ""  # why it gives no more; empty while it does


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStatus:
    """A model that this node was given by name and lacks; its role begins when all of them are here."""

    name: str  # as the user gave it
    step: str  # asking, looking (at what is there from before), fetching, checking or done
    activity: str  # the step in words
    source: str = ""  # members or download; empty until that is known
    done_bytes: int = 0
    total_bytes: int = 0  # 0 until it is known
    bytes_s: float = 0.0  # the mean rate; 0 until it is known
    sources: tuple[FetchSource, ...] = ()  # the members that have it

    @property
    def share(self) -> float | None:
        """Return how much is done, from 0 to 1; None until the size is known."""
        return self.done_bytes / self.total_bytes if self.total_bytes else None

    @property
    def seconds_left(self) -> float | None:
        """Return how long it will take at this rate; None if that is unknown."""
        left = self.total_bytes - self.done_bytes
        return left / self.bytes_s if self.bytes_s > 0 and left > 0 else None

    @property
    def text(self) -> str:
        """Say for people how far it is."""
        if not self.total_bytes:
            return self.activity
        text = f"{self.activity}: {in_bytes(self.done_bytes)} of {in_bytes(self.total_bytes)}"
        if (left := self.seconds_left) is not None:
            text += f", {in_bytes(self.bytes_s)}/s, {in_time(left)} left"
        return text


class LentState(StrEnum):
    """What a worker's memory is used for."""

    STANDBY = "standby"
    LOADING = "loading"
    LOADED = "loaded"


@dataclass(frozen=True, slots=True)
class LentMemory:
    """Memory of this worker that a head has. `standby`: it holds weights for the loss of another worker."""

    head: str  # id
    model: str  # as its head calls it
    bytes: int  # of its buffers; what is reserved, until there are some
    state: LentState
    head_name: str = ""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Weights that came over the network to this worker and are kept for the next load."""

    path: str
    bytes: int  # kept now
    limit: int  # maximum
    tensors: int  # complete ones
    problem: str = ""  # why the last that came could not be kept; empty if they were
