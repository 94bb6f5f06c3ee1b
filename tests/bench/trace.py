"""Show who computes, copies and waits while a mesh answers one prompt, and a picture of it.

Real daemons on this machine; each worker computes with one thread, or on the device that `--devices` gives
it, and the head has no layers. The programs of native/mesh write down what they do (GGML_MESH_TRACE), by the
clock of the machine: all nodes share it, also where a distance is put between them.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.bench.distance import WARM_TOKENS, machine, until_head_serves
from meshd.bench.figures import count_of
from meshd.bench.interface import BenchOutput
from meshd.bench.llama import arguments_of, measure
from meshd.bench.rig import programs_and_model
from meshd.config.load import load
from meshd.fleet.fleet import HEAD_NAME, Fleet, worker_names
from meshd.fleet.networks import need_namespaces
from meshd.fleet.proxy import run_loop
from meshd.model.cache import ContextShape

from tests.bench.networks import workers_alike
from tests.bench.program import run_bench
from tests.bench.timeline import Span, micro_batches, read_spans
from tests.bench.timeline_picture import draw_timeline
from tests.bench.trace_figures import Trace, as_json, put_together, step_table, sum_table

_VARIABLE = "GGML_MESH_TRACE"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceArgs:
    """One prompt of `prompt` tokens, answered with `tokens`, over `workers` at `rtt_ms`.

    It is asked `times` times, and the last is shown. `model` None: SmolLM2. `svg`: where a picture goes.
    `devices`: one for each worker, or none: CPUs.
    """

    model: Path | None
    cache: Path
    workers: int = 2
    rtt_ms: float = 0.0
    prompt: int = 1024
    tokens: int = 8
    times: int = 2
    devices: tuple[str, ...] = ()
    svg: Path | None = None
    as_json: bool = False


def main(argv: Sequence[str]) -> int:
    """Measure what the command line says, and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.trace", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--rtt", type=float, default=0.0, metavar="MS")
    parser.add_argument("--prompt", type=int, default=1024, metavar="N", help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=8, metavar="N", help="tokens to generate")
    parser.add_argument("--times", type=int, default=2, metavar="N", help="ask so often, and show the last")
    parser.add_argument("--devices", default="", metavar="LIST", help="of each worker, such as CUDA0,CUDA1")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    args = TraceArgs(
        model=given.model,
        cache=load().config.paths.cache,
        workers=given.workers,
        rtt_ms=given.rtt,
        prompt=given.prompt,
        tokens=given.tokens,
        times=given.times,
        devices=tuple(filter(None, given.devices.split(","))),
        svg=given.svg,
        as_json=given.json,
    )
    return run_bench(lambda out: run(args, out))


def run(args: TraceArgs, out: BenchOutput) -> int:
    """Returns 0. Raises MeshdError."""
    log.set_up(level="error")
    try:
        trace = run_loop(_trace(args, out))
    except ExceptionGroup as group:
        raise first_error(group) from None
    workers = count_of(args.workers, "worker")
    what = f"a prompt of {args.prompt} and {args.tokens} tokens, {workers}, RTT {args.rtt_ms:g} ms"
    if args.svg is not None:
        args.svg.write_text(draw_timeline(what, trace.panels()), encoding="utf-8")
    if args.as_json:
        out.json({"machine": machine(), "what": what, **as_json(trace)})
        return 0
    out.table(*sum_table(trace))
    out.line()
    out.table(*step_table(trace))
    out.note(f"{what}; {machine()}; steps in ms. The head computes when it does not wait for a worker")
    return 0


async def _trace(args: TraceArgs, out: BenchOutput) -> Trace:
    if args.rtt_ms:
        need_namespaces()
    _, model = await programs_and_model(args.cache, args.model, out)
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with Owner() as owner:
            trace = await _measured(args, model, Path(name), owner, out)
            owner.cancel()
    return trace


async def _measured(args: TraceArgs, model: Path, folder: Path, owner: Owner, out: BenchOutput) -> Trace:
    """The last time that the prompt is asked: from the second on graphs are known, and windows have grown."""
    names = worker_names(args.workers)
    written = {name: folder / "traces" / name for name in (HEAD_NAME, *names)}
    for place in written.values():
        place.mkdir(parents=True)
    context = args.prompt + args.tokens
    alike = workers_alike(
        folder,
        args.cache,
        model,
        count=args.workers,
        round_trip=args.rtt_ms / 1000,
        threads=1,
        head_options=("--device", "none", "--ctx-size", str(context)),
    )
    fleet = Fleet(
        replace(
            alike,
            worker_options=[("--device", one) for one in args.devices] or alike.worker_options,
            environments={
                # a file of a trace is nothing that a sandbox knows
                name: {_VARIABLE: str(place), "MESHD_SANDBOX": "off"}
                for name, place in written.items()
            },
        )
    )
    out.progress(f"loading the model, {count_of(args.workers, 'worker')}")
    await fleet.start_workers(owner)
    head = await fleet.start_head(owner)
    await until_head_serves(fleet, head)
    status = await head.status()
    argv = arguments_of(next(child.pid or 0 for child in status.children if child.name == "llama-server"))
    place = head.spec.home / "llama.sock"
    out.progress("measuring")
    for _ in range(args.times - 1):
        await measure(place, prompt_tokens=args.prompt, tokens=WARM_TOKENS)
    begin = time.monotonic_ns()
    await measure(place, prompt_tokens=args.prompt, tokens=args.tokens)
    end = time.monotonic_ns()
    spans = {name: await asyncio.to_thread(_read, place) for name, place in written.items()}
    usual = ContextShape(context)
    batches = micro_batches(
        args.prompt,
        batch=_option(argv, "-b", usual.batch),
        micro_batch=_option(argv, "-ub", usual.micro_batch),
    )
    waits = spans.pop(HEAD_NAME)
    return put_together(spans, waits, begin, end, prompt_steps=batches, tokens=args.tokens - 1)


def _option(argv: Sequence[str], name: str, usual: int) -> int:
    return int(argv[argv.index(name) + 1]) if name in argv else usual


def _read(folder: Path) -> list[Span]:
    """Return what all programs of one node wrote down. Raises MeshdError."""
    files = sorted(folder.iterdir())
    if not files:
        raise MeshdError(f"the programs of `{folder.name}` wrote no trace")
    return [span for path in files for span in read_spans(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
