"""`meshd bench trace`: who computes, copies and waits while a mesh answers one prompt, and a picture of it.

Real daemons on this machine; each worker computes with one thread, and the head has
no layers. The programs of native/mesh write down what they do (GGML_MESH_TRACE), by the clock of the machine:
all nodes share it, also where a distance is put between them.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.bench.distance import machine
from meshd.bench.distant_run import WARM_TOKENS, until_head_serves
from meshd.bench.figures import count_of
from meshd.bench.inputs import programs_and_model
from meshd.bench.interface import BenchOutput, TraceArgs
from meshd.bench.llama import arguments_of, measure
from meshd.bench.timeline import Span, micro_batches, read_spans
from meshd.bench.timeline_picture import draw_timeline
from meshd.bench.trace_figures import Trace, as_json, put_together, step_table, sum_table
from meshd.fleet.fleet import HEAD_NAME, Fleet, worker_names, workers_alike
from meshd.fleet.networks import need_namespaces
from meshd.fleet.proxy import run_loop
from meshd.model.cache import ContextShape

_VARIABLE = "GGML_MESH_TRACE"


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
    """The second time that the prompt is asked: graphs are known then, and the links' windows have grown."""
    names = worker_names(args.workers)
    written = {name: folder / "traces" / name for name in (HEAD_NAME, *names)}
    for place in written.values():
        place.mkdir(parents=True)
    context = args.prompt + args.tokens
    fleet = Fleet(
        replace(
            workers_alike(
                folder,
                args.cache,
                model,
                count=args.workers,
                round_trip=args.rtt_ms / 1000,
                threads=1,
                head_options=("--device", "none", "--ctx-size", str(context)),
            ),
            environments={name: {_VARIABLE: str(place)} for name, place in written.items()},
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
    """What all programs of one node wrote down. Raises MeshdError."""
    files = sorted(folder.iterdir())
    if not files:
        raise MeshdError(f"the programs of `{folder.name}` wrote no trace")
    return [span for path in files for span in read_spans(path.read_text(encoding="utf-8"))]
