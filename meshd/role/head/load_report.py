"""What llama-server reports of a load (docs/native.md): where tensors came from, who lacks what. Pure."""

from dataclasses import dataclass, field

from meshd.base.byte_format import in_memory
from meshd.model.status import NetworkTensor, WorkerWeights

MAX_UNSUPPORTED = 8
MAX_UNROUNDED = 64  # more than workers can be
MAX_KEPT = 4096  # tensors from the network that are kept by name; the bytes of all are counted


def count_of(text: str) -> int | None:
    """Bytes as a child reports them; None for what is no such number (`isdigit` alone takes `²`)."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


@dataclass(slots=True)
class NodeWeights:
    """Of one node: what it read from its own files, and what it lacks; in bytes."""

    local_bytes: int = 0
    network_bytes: int = 0


@dataclass(slots=True)
class WeightsReport:
    """Sums of one load; `names` maps an endpoint to the node behind it."""

    names: dict[str, str]
    local_bytes: int = 0
    network_bytes: int = 0
    from_network: tuple[NetworkTensor, ...] = ()
    unsupported: tuple[tuple[str, int, str], ...] = ()
    """Endpoint, number of the device there, and an operation that it was to compute and cannot."""
    exceeded: str = ""
    """What llama-server asked of a worker beyond its reservation, as far as it said: no worker's fault."""
    unrounded: tuple[str, ...] = ()
    """Nodes that get hidden states in f32 although f16 was asked for: they do not know how."""
    done: bool = False
    by_node: dict[str, NodeWeights] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Take one line in; what is not understood is a later version's and is left alone."""
        match text.split(" ", 5):
            case ["tensor", endpoint, "local", _reason, size, _name] if (count := count_of(size)) is not None:
                self.local_bytes += count
                self._of(endpoint).local_bytes += count
            case ["tensor", endpoint, "network", reason, size, name] if (count := count_of(size)) is not None:
                self.network_bytes += count
                self._of(endpoint).network_bytes += count
                if len(self.from_network) < MAX_KEPT:
                    node = self.names.get(endpoint, endpoint)
                    weight = NetworkTensor(name, count, node, reason.replace("_", " "))
                    self.from_network = (*self.from_network, weight)
            case ["unsupported", endpoint, device, operation, *_name] if (
                number := count_of(device)
            ) is not None and len(self.unsupported) < MAX_UNSUPPORTED:
                self.unsupported = (*self.unsupported, (endpoint, number, operation[:64]))
            case ["exceeded", endpoint, _device, needed, lent] if (
                count_of(needed) is not None and count_of(lent) is not None
            ):
                node = self.names.get(endpoint, endpoint)
                self.exceeded = (
                    f"llama-server needs {in_memory(int(needed))} on a device of {node}, "
                    f"{in_memory(int(lent))} are reserved there; use a smaller `--ctx-size` or batch"
                )
            case ["activations", endpoint, "f32"] if len(self.unrounded) < MAX_UNROUNDED:
                self.unrounded = (*self.unrounded, self.names.get(endpoint, endpoint))
            case ["done"]:
                self.done = True

    def placed(self, endpoint: str, name: str, count: int, why: str) -> None:
        """As a tunnel tells it, for a llama-server that does not; `why` it was sent, empty if it was not."""
        origin = f"network {why}" if why else "local loaded"
        self.line(f"tensor {endpoint} {origin} {count} {name}")

    def load_of(self, node: str, total: int, passed: int) -> WorkerWeights:
        """How far a node is with its `total` bytes, of which `passed` at most went through its tunnel."""
        weights = self.by_node.get(node, NodeWeights())
        missing = weights.network_bytes
        return WorkerWeights(node, total, weights.local_bytes, missing, min(passed, missing))

    def _of(self, endpoint: str) -> NodeWeights:
        return self.by_node.setdefault(self.names.get(endpoint, endpoint), NodeWeights())
