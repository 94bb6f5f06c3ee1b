"""Measurements on real daemons and binaries. What the verb tells them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


class BenchOutput(Protocol):
    """Where results, remarks and progress go (`meshd.cli.output.Output`)."""

    def line(self, text: str = "") -> None: ...
    def json(self, value: Mapping[str, Json], *, compact: bool = False) -> None: ...
    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None: ...
    def note(self, text: str) -> None: ...
    def progress(self, step: str, share: float | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcBenchArgs:
    """`model` None: SmolLM2, fetched into `cache`. `pairs`: runs with and without meshd, in turn."""

    model: Path | None
    cache: Path
    pairs: int = 3
    as_json: bool = False


BENCH_TRANSPORTS = ("udp", "tcp", "quic", "webrtc", "tls", "aioquic", "aiortc", "iroh")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportBenchArgs:
    """`loopback`: no line between; `lines`: 100 Mbit/s at distances; `beside`: with a TCP flow there."""

    transports: tuple[str, ...] = BENCH_TRANSPORTS
    loopback: bool = True
    lines: bool = True
    beside: bool = True
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyArgs:
    """`milliseconds` are added to each round trip, half of them each way.

    With `compute_only` all of them before each request for computing, and to nothing else.
    """

    listen: tuple[str, int]
    target: tuple[str, int]
    milliseconds: float
    compute_only: bool = False
    count_rpc: bool = False
    as_json: bool = False


DISTANCES = ("load", "nodes", "latency")
WITHOUT = {"push": "--no-push"}  # what meshd can be measured without, and the option of `meshd serve` for it


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceArgs:
    """`what` of DISTANCES; cells are `workers` by `round_trips` (ms), each measured `pairs` times.

    `model` None: SmolLM2.
    """

    what: str
    model: Path | None
    cache: Path
    workers: tuple[int, ...]
    round_trips: tuple[float, ...]
    pairs: int = 1
    without: tuple[str, ...] = ()  # of WITHOUT: meshd is measured without each, too
    defaults: int = 0  # with so many workers stock is measured as upstream ships it, too
    prompts: bool = True  # of 512 tokens, too
    svg: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyArgs:
    """Cells are `workers` by `round_trips` (ms), each measured `runs` times. `model` None: SmolLM2."""

    model: Path | None
    cache: Path
    workers: tuple[int, ...] = (1, 2, 4)
    round_trips: tuple[float, ...] = (0.0, 20.0, 50.0)
    runs: int = 3
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceArgs:
    """One prompt of `prompt` tokens, answered with `tokens`, over `workers` at `rtt_ms`.

    `model` None: SmolLM2. `svg`: where a picture is written.
    """

    model: Path | None
    cache: Path
    workers: int = 2
    rtt_ms: float = 0.0
    prompt: int = 1024
    tokens: int = 8
    svg: Path | None = None
    as_json: bool = False
