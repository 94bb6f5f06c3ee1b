"""Measure. `rpc` compares a model over meshd with a direct --rpc connection of the same binaries, paired."""

import argparse
from pathlib import Path

from meshd.base.errors import UsageError, UserError
from meshd.cli.options import NOT_HERE, Arguments, number
from meshd.cli.output import Output
from meshd.config import load

LATER = ("transport", "load", "nodes", "latency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and on what."""
    parser.add_argument("what", metavar="rpc", help="rpc: tokens a second through meshd and without it")
    parser.add_argument("--model", metavar="FILE", help="GGUF file (default: SmolLM2)")
    parser.add_argument("--pairs", metavar="N", default="3", help="how many pairs of runs (default: 3)")
    parser.add_argument("--json", action="store_true", help="one JSON document, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Real daemons and binaries, driven by meshd.bench."""
    if args.what in LATER:
        raise UsageError(f"`meshd bench {args.what}` is {NOT_HERE}", hint="there is `meshd bench rpc`")
    if args.what != "rpc":
        raise UsageError(f"unknown measurement `{args.what}`", hint="there is `meshd bench rpc`")
    model = Path(args.model).expanduser().absolute() if args.model else None
    if model is not None and not model.is_file():
        raise UserError(f"there is no model file `{model}`", hint="give a GGUF file, or none for SmolLM2")
    pairs = number("--pairs", args.pairs, 1, 100)
    from meshd.bench.interface import RpcBenchArgs
    from meshd.bench.rpc import run as run_bench

    cache = load().config.paths.cache
    return run_bench(RpcBenchArgs(model=model, pairs=pairs, as_json=args.json, cache=cache), out)
