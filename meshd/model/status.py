"""What becomes of a model that a head serves, as the role, the API and `meshd status` say it.

`meshd status --json` shows them as they are: fields may be added, never renamed or dropped. Times are
seconds, sizes bytes.
"""

from dataclasses import dataclass
from enum import StrEnum

from meshd.base.amounts import in_bytes


class ModelState(StrEnum):
    WAITING = "waiting"
    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SplitPart:
    """What lies on one device: a count of layers and bytes of weights.

    `push`: activations come straight from the worker before; false: through the head, `why_no_push` says why;
    null: no other worker comes before.
    """

    node: str
    device: str
    layers: int  # how many
    bytes: int  # of weights
    push: bool | None = None  # straight from the worker before; null: there is none before
    why_no_push: str = ""  # why through the head


@dataclass(frozen=True, slots=True)
class NetworkTensor:
    """A tensor that had to come over the network, and why."""

    name: str
    bytes: int
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerWeights:
    """One worker's weights in bytes: all, read from its own files, lacking, and of these sent."""

    node: str
    total_bytes: int  # all that it computes with
    local_bytes: int  # read from its own files
    missing_bytes: int  # that it lacks
    sent_bytes: int  # of these, sent

    @property
    def share(self) -> float:
        """What is there, from 0 to 1."""
        return min(1.0, (self.local_bytes + self.sent_bytes) / max(1, self.total_bytes))

    @property
    def text(self) -> str:
        """For people."""
        there, total = in_bytes(self.local_bytes + self.sent_bytes), in_bytes(self.total_bytes)
        network = f" ({in_bytes(self.sent_bytes)} over the network)" if self.missing_bytes else ""
        return f"{self.node} {there} of {total}{network}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """The model of a head. `bytes_per_token` counts both directions on all links."""

    name: str
    fingerprint: str  # the hash of its content
    state: ModelState
    reason: str
    load_seconds: float | None
    weights_local_bytes: int  # that workers read from their own files
    weights_network_bytes: int  # that were sent
    tensors_from_network: tuple[NetworkTensor, ...]
    bytes_per_token: float | None  # both ways, on the head's links; null until an answer was alone
    split: tuple[SplitPart, ...]
    progress: float | None = None  # 0 to 1 while loading
    workers: tuple[WorkerWeights, ...] = ()  # while it is loaded, and afterwards
