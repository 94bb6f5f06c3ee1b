"""The arguments of measurements on real daemons and binaries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


class BenchOutput(Protocol):
    """The output of results, remarks and progress (`meshd.cli.output.Output`)."""

    def line(self, text: str = "") -> None: ...
    def json(self, value: Mapping[str, Json], *, compact: bool = False) -> None: ...
    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None: ...
    def note(self, text: str) -> None: ...
    def progress(self, step: str, share: float | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcBenchArgs:
    """Arguments of `bench rpc`. `model` None: SmolLM2, fetched into `cache`.

    `pairs`: how often to run with and without meshd, in turn.
    """

    model: Path | None
    cache: Path
    pairs: int = 3
    as_json: bool = False


BENCH_TRANSPORTS = ("udp", "tcp", "quic", "webrtc", "tls")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportBenchArgs:
    """Arguments of `bench transport`.

    `loopback`: measure without a line; `lines`: with lines of 100 Mbit/s; `beside`: beside a TCP flow.
    """

    transports: tuple[str, ...] = BENCH_TRANSPORTS
    loopback: bool = True
    lines: bool = True
    beside: bool = True
    as_json: bool = False


WITHOUT = {"push": "serve.no_push=true"}  # parts that meshd can be measured without, and the setting for it


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceArgs:
    """Arguments of the measurement `what`, load, nodes or latency. `model` None: SmolLM2.

    There is a cell for each of `workers` and each of `round_trips` (ms), measured `pairs` times.
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
    as_json: bool = False
