"""The state of the model that a head serves or fetches, and of the weights that a worker keeps.

The roles, the API and `meshd status` report it. `meshd status --json` shows the fields unchanged: fields may
be added, never renamed or dropped. Times are in seconds, sizes in bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshd.base.units import in_bytes, in_number, in_time


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
    layers: int
    bytes: int  # of weights
    push: bool | None = None  # activations come directly from the previous worker; null: there is none
    why_no_push: str = ""  # why activations go through the head


def of_each_layer(layers: Sequence[int]) -> list[str]:
    """Word the share of every layer that each device has by tensors, if it is worth so many layers."""
    return [f"{count / max(1, sum(layers)):.0%}" for count in layers]


NOT_HELD = "no such hash"
"""The reason for a tensor of which the worker has no copy: this is no fault."""


@dataclass(frozen=True, slots=True)
class NetworkTensor:
    """A tensor that came over the network, and why."""

    name: str
    bytes: int
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerWeights:
    """One worker's weights, in bytes."""

    node: str
    total_bytes: int
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
    """The slots, and the context of each."""

    slots: int
    tokens: int  # per slot, or of all slots if they share the context
    shared: bool = False  # llama-server ends all requests when the shared context is full
    note: str = ""  # why this is less than configured

    @property
    def text(self) -> str:
        """The limits for people."""
        if self.slots == 1:
            return f"1 request at once, {self.tokens} tokens"
        if self.shared:
            return f"{self.slots} requests at once that share {self.tokens} tokens"
        return f"{self.slots} requests at once, {self.tokens} tokens each"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second of one request at a time."""

    prompt_tok_s: float | None
    generate_tok_s: float | None


@dataclass(frozen=True, slots=True)
class SpeculationStatus:
    """llama-server's drafts, and their gain in requests that ran alone."""

    free: int  # most tokens per round drafted from repeated text; 0: none
    model: int  # the same, by the draft model
    drafted: int  # tokens since the load
    accepted: int  # of these
    gain: float | None  # speed relative to no drafts (1.00 = the same)
    why: str
    why_no_model: str = ""  # why the draft model is not used


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """A worker that holds weights for the loss of another one."""

    node: str
    ready: bool
    held_bytes: int  # in its memory
    wanted_bytes: int
    why: str  # losses that it covers, or why it is not ready


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """Workers are paused: the model is reloaded without them once its answers have ended."""

    workers: tuple[str, ...]
    answers: int  # answers that are still running

    @property
    def text(self) -> str:
        """Say what happens, for people."""
        names = " and ".join(self.workers)
        running = f"{in_number(self.answers, 'answer')} still run{'s' if self.answers == 1 else ''}"
        return f"draining: {running}, then the model is loaded again without {names}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """The model of a head."""

    name: str
    fingerprint: str
    state: ModelState
    reason: str
    load_seconds: float | None
    weights_local_bytes: int  # read from workers' files, with what they fetched
    weights_network_bytes: int  # sent with the load
    tensors_from_network: tuple[NetworkTensor, ...]
    bytes_per_token: float | None  # on all links of the head, both ways
    split: tuple[SplitPart, ...]
    progress: float | None = None  # 0 to 1 while loading
    too_few_workers: bool = False  # it waits for as many as demanded
    workers: tuple[WorkerWeights, ...] = ()
    answers: AnswersAtOnce | None = None
    predicted: Speeds | None = None  # at load; null if a device was never measured
    measured: Speeds | None = None  # of requests that ran alone
    aliases: tuple[str, ...] = ()  # further names in requests
    group: str = ""  # models of one group stay loaded together
    ttl_s: int = 0  # time without requests until it is unloaded; 0: never
    running: int = 0  # requests, if several models are served
    waiting: int = 0  # requests
    speculation: SpeculationStatus | None = None
    standby: tuple[StandbyStatus, ...] = ()
    fallbacks: tuple[str, ...] = ()  # files of `fallback_models`
    measuring_seconds: float = 0.0  # measuring devices after that load
    estimated: tuple[str, ...] = ()  # nodes whose speed was not measured yet
    split_why: str = ""  # all reasons for the split
    fallback: str = ""  # the fallback file in use
    weights_fetched_bytes: int = 0  # fetched by workers before this load
    by_tensors: bool = False  # each device has its share of every layer, as large as so many `layers`
    draining: DrainStatus | None = None  # it is reloaded without paused workers once its answers have ended


@dataclass(frozen=True, slots=True)
class FetchSource:
    """A member that has the model."""

    node: str
    bytes: int  # from this member
    problem: str = ""  # why it gives no more


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStatus:
    """A model that this node copies or downloads before its role begins."""

    name: str  # as the user gave it
    step: str  # asking, looking (for data of an earlier fetch), fetching, checking or done
    activity: str  # the step, for people
    source: str = ""  # members or download; empty until known
    done_bytes: int = 0
    total_bytes: int = 0  # 0 until known
    bytes_s: float = 0.0  # mean rate; 0 until known
    sources: tuple[FetchSource, ...] = ()

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
    """Memory of this worker that a head uses."""

    head: str  # id of the head
    model: str  # the head's name for the model
    bytes: int  # of buffers; until there are any, reserved
    state: LentState
    head_name: str = ""
    computed_s: float = 0.0  # for this head, since its use began


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Downloaded weights that this worker keeps for later loads."""

    path: str
    bytes: int  # kept
    limit: int  # maximum
    tensors: int
    problem: str = ""  # why the last tensors could not be kept
