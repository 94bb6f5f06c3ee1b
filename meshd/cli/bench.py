"""Measure: what a model loses by running through meshd, and how fast its links are.

`rpc` compares a model over meshd with a direct --rpc connection of the same binaries, paired; `transport`
compares links with what their libraries do unchanged, on this machine and over a line of 100 Mbit/s.
"""

import argparse
from pathlib import Path

from meshd.base.errors import UsageError, UserError
from meshd.cli.options import NOT_HERE, Arguments, number
from meshd.cli.output import Output
from meshd.config import load

LATER = ("load", "nodes", "latency")
THERE = "there are `meshd bench rpc` and `meshd bench transport`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and on what."""
    parser.add_argument(
        "what", metavar="rpc|transport", help="rpc: tokens a second; transport: bytes a second of links"
    )
    parser.add_argument("--model", metavar="FILE", help="GGUF file (default: SmolLM2)")
    parser.add_argument("--pairs", metavar="N", default="3", help="how many pairs of runs (default: 3)")
    parser.add_argument("--ways", metavar="LIST", help="transport: such as webrtc,aiortc (default: all)")
    parser.add_argument(
        "--only", choices=("loopback", "lines", "beside"), help="transport: one part (default: all three)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Real daemons and binaries, driven by meshd.bench."""
    if args.what in LATER:
        raise UsageError(f"`meshd bench {args.what}` is {NOT_HERE}", hint=THERE)
    if args.what == "transport":
        return _transport(args, out)
    if args.what != "rpc":
        raise UsageError(f"unknown measurement `{args.what}`", hint=THERE)
    model = Path(args.model).expanduser().absolute() if args.model else None
    if model is not None and not model.is_file():
        raise UserError(f"there is no model file `{model}`", hint="give a GGUF file, or none for SmolLM2")
    pairs = number("--pairs", args.pairs, 1, 100)
    from meshd.bench.interface import RpcBenchArgs
    from meshd.bench.rpc import run as run_bench

    cache = load().config.paths.cache
    return run_bench(RpcBenchArgs(model=model, pairs=pairs, as_json=args.json, cache=cache), out)


def _transport(args: Arguments, out: Output) -> int:
    from meshd.bench.interface import TRANSPORT_WAYS, TransportBenchArgs
    from meshd.bench.transport import run as run_bench

    ways = tuple(args.ways.split(",")) if args.ways else TRANSPORT_WAYS
    for way in ways:
        if way not in TRANSPORT_WAYS:
            known = ", ".join(TRANSPORT_WAYS)
            raise UsageError(f"`{way[:32]}` is no way to carry bytes", hint=f"there are {known}")
    return run_bench(
        TransportBenchArgs(
            ways=ways,
            loopback=args.only in (None, "loopback"),
            lines=args.only in (None, "lines"),
            beside=args.only in (None, "beside"),
            as_json=args.json,
        ),
        out,
    )
