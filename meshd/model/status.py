"""The state of the model that a head serves or fetches, and of the weights that a worker keeps.

The roles, the API and `meshd status` report it. `meshd status --json` shows the fields unchanged: fields may
be added, never renamed or dropped. Times are in seconds, sizes in bytes.
"""

from dataclasses import dataclass
from enum import StrEnum

from meshd.base.units import in_bytes, in_time

COUNTED = "waiting for workers"  # begins the reason while workers of the demanded number are missing


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
    push: bool | None = None  # straight from the previous worker, not through the head; null: no previous one
    why_no_push: str = ""  # why activations go through the head


NOT_HELD = "no such hash"
"""The reason for a tensor of which the worker has no copy: this is no fault."""


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
        """The progress for people."""
        there, total = in_bytes(self.local_bytes + self.sent_bytes), in_bytes(self.total_bytes)
        network = f" ({in_bytes(self.sent_bytes)} over the network)" if self.missing_bytes else ""
        return f"{self.node} {there} of {total}{network}"


@dataclass(frozen=True, slots=True)
class AnswersAtOnce:
    """The number of simultaneous answers, and the length limit of each; further requests wait."""

    slots: int
    tokens: int  # per answer, with its prompt; of all answers together if they share the context
    shared: bool = False  # llama-server ends all answers when the shared context is full
    note: str = ""  # why answers are shorter than requested; empty if they are not

    @property
    def text(self) -> str:
        """The limits for people."""
        if self.slots == 1:
            return f"1 answer at once, {self.tokens} tokens"
        if self.shared:
            return f"{self.slots} answers at once that share {self.tokens} tokens"
        return f"{self.slots} answers at once, {self.tokens} tokens each"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second of one answer at a time."""

    prompt_tok_s: float | None
    generate_tok_s: float | None


@dataclass(frozen=True, slots=True)
class SpeculationStatus:
    """The drafts of llama-server, and their gain in answers that were made alone."""

    free: int  # most tokens drafted in a round from repeated text; 0: none
    model: int  # most tokens drafted in a round by the draft model; 0: none
    drafted: int  # tokens drafted since the model was loaded
    accepted: int  # drafted tokens that were accepted
    gain: float | None  # speed relative to no drafts (1.00 = the same); null until it is known
    why: str
    why_no_model: str = ""  # why the draft model is not used; empty: it is used, or there is none


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """A worker that holds weights ready for the loss of another one."""

    node: str
    ready: bool  # it holds all requested weights
    held_bytes: int  # weights in its memory
    wanted_bytes: int  # requested weights
    why: str  # the losses that it covers, or why it is not ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """The model of a head."""

    name: str
    fingerprint: str  # hash of the model's content
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
    predicted: Speeds | None = None  # of the split in use, at load; null if a device was never measured
    measured: Speeds | None = None  # of answers made alone; null before the first
    aliases: tuple[str, ...] = ()  # other names in requests, if several models are served
    group: str = ""  # models of one group may be loaded together
    ttl_s: int = 0  # time without requests until the model is unloaded; 0: never
    running: int = 0  # requests under way, if several models are served
    waiting: int = 0  # requests waiting for the model
    speculation: SpeculationStatus | None = None  # null while no model is loaded
    standby: tuple[StandbyStatus, ...] = ()  # the workers of `--standby`
    fallbacks: tuple[str, ...] = ()  # the files of `fallback_models`, in the order of their use
    measuring_seconds: float = 0.0  # time spent measuring devices after that load: once per kind of model
    estimated: tuple[str, ...] = ()  # nodes whose speed was estimated for the split, to be measured later
    split_why: str = ""  # all reasons for the split; `reason` of a ready model begins with a short form
    fallback: str = ""  # the fallback file in use, because the model's own no longer fits; empty: its own


@dataclass(frozen=True, slots=True)
class FetchSource:
    """A member that has a model that is fetched."""

    node: str
    bytes: int  # bytes from this member
    problem: str = ""  # why it gives no more; empty while it gives


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStatus:
    """A model that this node was given by name and lacks; its role begins when all of them are here."""

    name: str  # as the user gave it
    step: str  # asking, looking (for data from an earlier fetch), fetching, checking or done
    activity: str  # the step in words
    source: str = ""  # members or download; empty until known
    done_bytes: int = 0
    total_bytes: int = 0  # 0 until known
    bytes_s: float = 0.0  # mean rate; 0 until known
    sources: tuple[FetchSource, ...] = ()  # the members that have the model

    @property
    def share(self) -> float | None:
        """The share that is done, from 0 to 1; None until the size is known."""
        return self.done_bytes / self.total_bytes if self.total_bytes else None

    @property
    def seconds_left(self) -> float | None:
        """The time left at this rate, in seconds; None if that is unknown."""
        left = self.total_bytes - self.done_bytes
        return left / self.bytes_s if self.bytes_s > 0 and left > 0 else None

    @property
    def text(self) -> str:
        """The progress for people."""
        if not self.total_bytes:
            return self.activity
        text = f"{self.activity}: {in_bytes(self.done_bytes)} of {in_bytes(self.total_bytes)}"
        if (left := self.seconds_left) is not None:
            text += f", {in_bytes(self.bytes_s)}/s, {in_time(left)} left"
        return text


class LentState(StrEnum):
    """The use of a worker's memory."""

    STANDBY = "standby"
    LOADING = "loading"
    LOADED = "loaded"


@dataclass(frozen=True, slots=True)
class LentMemory:
    """Memory of this worker that a head has. `standby`: it holds weights for the loss of another worker."""

    head: str  # id of the head
    model: str  # the head's name for the model
    bytes: int  # of the lease's buffers; reserved bytes until there are buffers
    state: LentState
    head_name: str = ""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Weights that this worker received over the network and keeps for the next load."""

    path: str
    bytes: int  # kept now
    limit: int  # maximum
    tensors: int  # complete tensors
    problem: str = ""  # why the last received tensors could not be kept; empty if they were
