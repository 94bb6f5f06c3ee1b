"""Serve a model across the workers of a mesh, with an OpenAI-compatible API, until stopped.

Either start a worker first and join its mesh with --join, or start this first: without --join, the first
start founds a mesh and prints an invite token for workers. Arguments after `--` go to llama-server unchanged.
"""

import argparse

from meshd.cli.options import Arguments, add_role_options, load_role
from meshd.cli.output import Output
from meshd.config import check, read_join


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All from the list of settings."""
    add_role_options(parser, "serve")
    parser.usage = "meshd serve --model FILE [OPTIONS] [-- LLAMA_SERVER_ARGS…]"


def run(args: Arguments, out: Output) -> int:
    """The daemon itself; returns its exit code."""
    more = {"serve.llama_args": args.rest} if args.rest else {}
    config = load_role(args, "serve", more).config
    check(config, "serve")
    config = read_join(config)
    from meshd.daemon import run as run_daemon

    return run_daemon(config, "serve", out.line)
