"""Sum up where the tensors of one load came from, and what llama-server lacked. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from meshd.base.units import in_memory
from meshd.devices.report_line import count_of
from meshd.gateway.interface import Readiness
from meshd.model.status import NetworkTensor, WorkerWeights

MAX_KEPT = 4096  # tensors from the network that are kept by name; the bytes of all are counted


@dataclass(slots=True)
class NodeWeights:
    """Count what one node read from its own files, and what it lacks; in bytes."""

    local_bytes: int = 0
    network_bytes: int = 0


@dataclass(slots=True)
class WeightsReport:
    """Sum up one load; `names` maps an endpoint to the node behind it."""

    names: dict[str, str]
    local_bytes: int = 0
    network_bytes: int = 0
    fetched_bytes: int = 0
    """What workers took from members before the load; what they needed of it counts as local."""
    from_network: tuple[NetworkTensor, ...] = ()
    exceeded: str = ""
    """What llama-server asked of a worker beyond its reservation, as far as it said: no worker's fault."""
    by_node: dict[str, NodeWeights] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Take one line in; what is not understood is a later version's and is left alone."""
        match text.split(" "):
            case ["exceeded", endpoint, _device, needed, lent] if (
                count_of(needed) is not None and count_of(lent) is not None
            ):
                node = self.names.get(endpoint, endpoint)
                self.exceeded = (
                    f"llama-server needs {in_memory(int(needed))} on a device of {node}, "
                    f"{in_memory(int(lent))} are reserved there; use a smaller `--ctx-size` or batch"
                )

    def placed(self, endpoint: str, name: str, size: int, why: str) -> None:
        """Count a tensor in a worker's memory, as its tunnel tells; `why` it was sent, or empty."""
        weights = self._of(endpoint)
        if not why:
            self.local_bytes += size
            weights.local_bytes += size
            return
        self.network_bytes += size
        weights.network_bytes += size
        if len(self.from_network) < MAX_KEPT:
            node = self.names.get(endpoint, endpoint)
            self.from_network = (*self.from_network, NetworkTensor(name, size, node, why.replace("_", " ")))

    def load_of(self, node: str, total: int, passed: int) -> WorkerWeights:
        """Return how far a node is with `total` bytes; at most `passed` of them went through its tunnel."""
        weights = self.by_node.get(node, NodeWeights())
        missing = weights.network_bytes
        return WorkerWeights(node, total, weights.local_bytes, missing, min(passed, missing))

    def _of(self, endpoint: str) -> NodeWeights:
        return self.by_node.setdefault(self.names.get(endpoint, endpoint), NodeWeights())


def with_loads(now: Readiness, loads: Sequence[WorkerWeights]) -> Readiness:
    """Add how far the weights of all workers are."""
    reason = "; ".join([now.reason, *(load.text for load in loads)])
    done = sum(load.share * load.total_bytes for load in loads)
    done /= max(1, sum(load.total_bytes for load in loads))
    return replace(now, reason=reason, progress=done, workers=tuple(loads))
