"""What is measured, and on what: cells, the rig that all share, a llama-server that is ready."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from meshd.bench.interface import WITHOUT
from meshd.build.interface import NativeInfo
from meshd.config import MESH
from meshd.fleet.rpc_count import RpcCounts

LOAD_SECONDS = 600.0
DECODES = 3  # of TOKENS each, of which the median counts, where a cell has fewer runs than that


@dataclass(frozen=True, slots=True)
class Cell:
    """`workers` at a round trip of `rtt_ms`; with `compute_only` that long for each request for computing.

    `without`: what meshd does without (interface.WITHOUT), empty for nothing. `ends`: one node alone has the
    ends of the model where meshd's head has them, on its processor. `defaults`: as upstream ships it.
    """

    workers: int
    rtt_ms: float
    compute_only: bool = False
    without: str = ""
    ends: bool = False
    defaults: bool = False

    @property
    def head_options(self) -> tuple[str, ...]:
        """Of the serving node, for this cell alone.

        A request for computing is held back from when it is said. With push, all are said at once, and would
        wait side by side: a worker that takes longer does not.
        """
        left_out = self.without or ("push" if self.compute_only else "")
        return (WITHOUT[left_out],) if left_out else ()


@dataclass(frozen=True, slots=True)
class Rig:
    """What all measurements of one call share.

    `devices`: GPUs that the workers have, in turns; one node alone has the first. None: processors only.
    """

    model: Path
    cache: Path
    patched: NativeInfo
    stock: NativeInfo
    speed: bool  # prompt and tokens too, not the load alone
    devices: tuple[str, ...] = ()
    protocol: str = MESH  # what meshd's programs speak: `patched` has those, or the programs of native/mesh
    decodes: int = DECODES
    prompts: bool = True  # of `prompt_tokens`, too
    prompt_tokens: int = 512

    def device(self, number: int) -> tuple[str, ...]:
        """Options of the worker of this number, for meshd's and upstream's programs."""
        return ("--device", self.devices[number % len(self.devices)]) if self.devices else ()

    @property
    def head_options(self) -> tuple[str, ...]:
        """Of a head that computes nothing but what is always its own."""
        return ("--device", "none", *self.node_options)

    @property
    def node_options(self) -> tuple[str, ...]:
        """Of each node."""
        return ("--native-protocol", self.protocol)


Count = Callable[[], Awaitable[RpcCounts]]


@dataclass(frozen=True, slots=True)
class LoadedCell:
    """A llama-server that is ready."""

    place: Path
    argv: list[str]
    seconds: float
    count: Count
    counted: RpcCounts  # when it was ready
    sent: int = 0  # bytes between nodes until then
