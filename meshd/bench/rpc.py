"""`meshd bench rpc`: the speed of a model through meshd, compared with a direct RPC connection.

The same model is loaded over meshd and by llama.cpp's RPC directly, with the same llama.cpp and the same
split, at the same time. Both are asked in turn, so that a ratio compares neighbours in time. The bound is
meshd's own target (docs/lab/benchmarks.md). If meshd's plan chose a micro batch, there is one more direct
connection, with llama.cpp's own.
"""

import asyncio
import os
import platform
import statistics
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.base.tasks import Owner, first_error
from meshd.bench.figures import Table, with_spread
from meshd.bench.interface import BenchOutput, RpcBenchArgs
from meshd.bench.llama import arguments_of, changed, measure
from meshd.bench.rig import over_rpc, programs_and_model, start_rpc_server
from meshd.build.interface import LLAMA_SERVER, NativeInfo
from meshd.devices.command_lines import CALM_THREADS, LARGE_PAGES
from meshd.fleet.fleet import LocalNode, NodeSpec, ready_or_raise, start_all
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec
from meshd.process.ready import http_200

_MICRO_BATCH = "-ub"
PROMPT_TOKENS = 512
DECODE_TOKENS = 96
BOUND = 1.0  # the least tokens per second relative to a direct connection
LOGITS_ON_WORKER = ("-ot", "^no such tensor$=CPU")  # replaces the plan's own: the output stays on the worker


@dataclass(frozen=True, slots=True)
class ComparedServers:
    """The sockets of the llama-servers.

    `own_batch`: like `direct`, with llama.cpp's own micro batch; None if meshd's plan chose none.
    """

    meshd: Path
    direct: Path
    own_batch: Path | None


@asynccontextmanager
async def load_all(
    model: Path, cache: Path, native: NativeInfo, *, extra: tuple[str, ...] = ()
) -> AsyncIterator[ComparedServers]:
    """Load all; `extra` are more options for each llama-server. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        folder = Path(name)
        async with Owner() as owner:
            # over meshd
            worker = LocalNode(NodeSpec("worker", "worker", folder / "w", cache, ("--model", str(model))))
            await start_all(owner, worker)
            options = ("--model", str(model), "--port", "0", "--split", "always")
            rest = ("--", *extra) if extra else ()
            head = LocalNode(
                NodeSpec(
                    "head",
                    "serve",
                    folder / "h",
                    cache,
                    (*options, "--set", "serve.output=head", *rest),
                    environment={"MESHD_JOIN": await worker.token()},
                )
            )
            await start_all(owner, head)
            status = await head.until(ready_or_raise)
            # directly, with meshd's options
            pid = next(child.pid or 0 for child in status.children if child.name == "llama-server")
            argv = arguments_of(pid)
            direct = await _direct(owner, native, argv, folder, "direct")
            own_batch = None
            if _MICRO_BATCH in argv:
                unbatched = changed(argv, {_MICRO_BATCH: None})
                own_batch = await _direct(owner, native, unbatched, folder, "own-batch")
            place = Path(argv[argv.index("--host") + 1])
            yield ComparedServers(meshd=place, direct=direct, own_batch=own_batch)
            owner.cancel()


async def _direct(owner: Owner, native: NativeInfo, argv: list[str], folder: Path, name: str) -> Path:
    """Load with meshd's options, but without meshd between llama-server and rpc-server; return the socket."""
    port = await start_rpc_server(owner, native, folder / f"{name}-rpc.log", options=("--device", "CPU"))
    place = folder / f"{name}.sock"
    child = OwnedChild(
        ChildSpec(
            name=f"{name} llama-server",
            argv=(
                str(native.binaries[LLAMA_SERVER]),
                *changed(over_rpc(argv, 1), {"--rpc": f"127.0.0.1:{port}", "--host": str(place)}),
            ),
            log=folder / f"{name}-llama.log",
            env=CALM_THREADS | LARGE_PAGES,
            probe=http_200(place),
            ready_timeout=None,
        )
    )
    owner.start(child.serve(), name=name)
    await child.ensure_ready()
    return place


@dataclass(frozen=True, slots=True)
class RpcRow:
    """One comparison: `ours` and `theirs` in `unit`, and the `ratios` of the pairs, in the order of the runs.

    `bound`: the least ratio.
    """

    what: str
    unit: str
    ours: Sequence[float]
    theirs: Sequence[float]
    ratios: Sequence[float]
    bound: float

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return statistics.median(self.ratios)

    @property
    def held(self) -> bool:
        """True if the bound is kept."""
        return self.ratio >= self.bound


def run(args: RpcBenchArgs, out: BenchOutput) -> int:
    """Measure and print. Returns 0 if every bound was kept, else 1. Raises MeshdError."""
    rows = measure_all(args, out)
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if args.as_json:
        shown = [_as_json(row) for row in rows]
        out.json({"machine": machine, "pairs": args.pairs, "rows": shown})
    else:
        out.table(*as_table(rows))
        out.note(f"{machine}; {args.pairs} pairs, median of their ratios")
    return 0 if all(row.held for row in rows) else 1


def measure_all(args: RpcBenchArgs, out: BenchOutput) -> list[RpcRow]:
    """Measure every row. Raises MeshdError."""
    log.set_up(level="warning")
    try:
        return asyncio.run(_rows(args, out))
    except ExceptionGroup as group:
        raise first_error(group) from None


def as_table(rows: Sequence[RpcRow]) -> Table:
    """Return the rows as a table for people."""
    cells: list[Sequence[str]] = [
        (
            row.what,
            f"{with_spread(row.ours)} {row.unit}",
            f"{with_spread(row.theirs)} {row.unit}",
            with_spread(row.ratios, ".3f"),
            f"≥ {row.bound}",
            "yes" if row.held else "no",
        )
        for row in rows
    ]
    return ("WHAT", "MESHD", "WITHOUT", "RATIO", "BOUND", "HELD"), cells


def _as_json(row: RpcRow) -> dict[str, str | float | bool | None]:
    return {
        "what": row.what,
        "unit": row.unit,
        "meshd": statistics.median(row.ours),
        "without": statistics.median(row.theirs),
        "ratio": row.ratio,
        "bound": row.bound,
        "held": row.held,
    }


async def _rows(args: RpcBenchArgs, out: BenchOutput) -> list[RpcRow]:
    native, model = await programs_and_model(args.cache, args.model, out)
    rows = []
    out.progress("loading the model twice, output on the head")
    async with load_all(model, args.cache, native) as loaded:
        rows += await compare_prompts(loaded, args.pairs, out)
        rows.append(await _decode(loaded, args.pairs, "decode, output on the head", out))
    out.progress("loading the model twice, output on the worker")
    async with load_all(model, args.cache, native, extra=LOGITS_ON_WORKER) as loaded:
        rows.append(await _decode(loaded, args.pairs, "decode, logits over the wire", out))
    return rows


async def compare_prompts(loaded: ComparedServers, pairs: int, out: BenchOutput) -> list[RpcRow]:
    """Measure the prompt; if the plan chose a micro batch, also against llama.cpp's own."""
    out.progress(f"prompt of {PROMPT_TOKENS} tokens")
    what = f"prompt of {PROMPT_TOKENS} tokens, output on the head"
    places = {what: loaded.direct}
    if loaded.own_batch is not None:
        places[f"{what}; without: its own micro batch"] = loaded.own_batch
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(pairs + 1):
        ours.append((await measure(loaded.meshd, prompt_tokens=PROMPT_TOKENS, tokens=1)).prompt)
        for name, place in places.items():
            theirs[name].append((await measure(place, prompt_tokens=PROMPT_TOKENS, tokens=1)).prompt)
    return [compared(name, ours, speeds) for name, speeds in theirs.items()]


async def _decode(loaded: ComparedServers, pairs: int, what: str, out: BenchOutput) -> RpcRow:
    out.progress(what)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(pairs + 1):
        for speeds, server in ((ours, loaded.meshd), (theirs, loaded.direct)):
            speeds.append((await measure(server, prompt_tokens=8, tokens=DECODE_TOKENS)).generate)
    return compared(what, ours, theirs)


def compared(what: str, ours: list[float], theirs: list[float]) -> RpcRow:
    """Make a row without the first pair, which was for warming up."""
    ratios = [mine / other for mine, other in zip(ours[1:], theirs[1:], strict=True)]
    return RpcRow(what, "tok/s", ours[1:], theirs[1:], ratios, BOUND)
