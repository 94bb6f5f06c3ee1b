"""Run a benchmark: meshd beside stock llama.cpp, over a simulated distance, or meshd's links alone.

`load`, `nodes` and `latency` compare stock llama.cpp with meshd over a distance. `rpc` compares meshd with a
direct --rpc connection of stock llama.cpp. `transport` compares meshd's links with bare UDP and TLS.
"""

import argparse
from pathlib import Path

from meshd.base.errors import UsageError, UserError
from meshd.base.files import expanded
from meshd.cli.options import Arguments, milliseconds, number
from meshd.cli.output import Output
from meshd.config.load import load

WHAT = "load|nodes|latency|rpc|transport"
_USUAL = {  # workers, round trips
    "load": ("1,2,4", "0,20,50"),
    "nodes": ("1,2,3,4", "20"),
    "latency": ("2", "0,5,10,20,30,50"),
}
_DISTANCE = {"model", "workers", "rtt", "pairs"}
_TAKES = {
    "load": _DISTANCE,
    "nodes": _DISTANCE,
    "latency": _DISTANCE,
    "rpc": {"model", "pairs"},
    "transport": {"ways", "only"},
}
_USAGE = """\
meshd bench load|nodes|latency [--model FILE] [--workers N,…]
                                      [--rtt MS,…] [--pairs N] [--json]
       meshd bench rpc [--model FILE] [--pairs N] [--json]
       meshd bench transport [--ways LIST] [--only loopback|lines|beside]
                             [--json]"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to measure, and on what."""
    parser.usage = _USAGE
    parser.add_argument(
        "what",
        metavar=WHAT,
        help="load: time to the first token; nodes: speed by number of workers; latency: speed by distance; "
        "rpc: tokens per second beside a direct connection; transport: bytes per second of links",
    )
    parser.add_argument("--model", metavar="FILE", help="GGUF file (default: SmolLM2)")
    parser.add_argument("--pairs", metavar="N", help="number of paired runs (default: 3)")
    _distance_arguments(parser)
    transport = parser.add_argument_group("transport")
    transport.add_argument(
        "--ways", metavar="LIST", help="links to measure, such as quic,webrtc (default: all)"
    )
    transport.add_argument(
        "--only", choices=("loopback", "lines", "beside"), help="part to run (default: all three)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def _distance_arguments(parser: argparse.ArgumentParser) -> None:
    distance = parser.add_argument_group("load, nodes and latency")
    distance.add_argument(
        "--workers",
        metavar="N,…",
        help="numbers of workers to measure with (default: depends on the benchmark)",
    )
    distance.add_argument(
        "--rtt", metavar="MS,…", help="round trips to measure with (default: depends on the benchmark)"
    )


def run(args: Arguments, out: Output) -> int:
    """Run real daemons and binaries, driven by meshd.bench."""
    if args.what not in _TAKES:
        raise UsageError(
            f"unknown measurement `{args.what}`", hint=f"choose one of {WHAT.replace('|', ', ')}"
        )
    _refuse_options_of_others(args)
    match args.what:
        case "transport":
            return _transport(args, out)
        case "rpc":
            return _rpc(args, out)
        case _:
            return _distance(args, out)


def _refuse_options_of_others(args: Arguments) -> None:
    for name in sorted(set().union(*_TAKES.values()) - _TAKES[args.what]):
        if getattr(args, name):
            raise UsageError(
                f"`meshd bench {args.what}` has no option `--{name}`", hint="see `meshd bench --help`"
            )


def _model(args: Arguments) -> Path | None:
    model = expanded(args.model).absolute() if args.model else None
    if model is not None and not model.is_file():
        raise UserError(
            f"there is no model file `{model}`", hint="name a GGUF file, or leave it out to use SmolLM2"
        )
    return model


def _rpc(args: Arguments, out: Output) -> int:
    model = _model(args)
    pairs = number("--pairs", args.pairs or "3", 1, 100)
    from meshd.bench.interface import RpcBenchArgs
    from meshd.bench.rpc import run as run_bench

    cache = load().config.paths.cache
    return run_bench(RpcBenchArgs(model=model, pairs=pairs, as_json=args.json, cache=cache), out)


def _cells(args: Arguments) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the numbers of workers and the round trips."""
    from meshd.plan.by_memory import MAX_SPLIT_DEVICES

    usual = _USUAL[args.what]
    workers = tuple(
        number("--workers", part, 1, MAX_SPLIT_DEVICES) for part in (args.workers or usual[0]).split(",")
    )
    return workers, milliseconds("--rtt", args.rtt or usual[1])


def _distance(args: Arguments, out: Output) -> int:
    pairs = number("--pairs", args.pairs or "3", 1, 100)
    workers, round_trips = _cells(args)
    from meshd.bench.distance import run as run_bench
    from meshd.bench.interface import DistanceArgs

    return run_bench(
        DistanceArgs(
            what=args.what,
            model=_model(args),
            cache=load().config.paths.cache,
            workers=workers,
            round_trips=round_trips,
            pairs=pairs,
            as_json=args.json,
        ),
        out,
    )


def _transport(args: Arguments, out: Output) -> int:
    from meshd.bench.interface import BENCH_TRANSPORTS, TransportBenchArgs
    from meshd.bench.transport import run as run_bench

    transports = tuple(args.ways.split(",")) if args.ways else BENCH_TRANSPORTS
    for transport in transports:
        if transport not in BENCH_TRANSPORTS:
            known = ", ".join(BENCH_TRANSPORTS)
            raise UsageError(f"unknown link `{transport[:32]}`", hint=f"choose from {known}")
    return run_bench(
        TransportBenchArgs(
            transports=transports,
            loopback=args.only in (None, "loopback"),
            lines=args.only in (None, "lines"),
            beside=args.only in (None, "beside"),
            as_json=args.json,
        ),
        out,
    )
