"""Serve a model across a mesh, through an OpenAI-compatible API, until you stop it.

If a worker already runs, join its mesh with --join. Otherwise the first start creates a mesh and prints an
invite for workers. A restart needs no invite. Arguments after `--` go to llama-server unchanged.

examples:
  meshd serve --model model.gguf --join @invite.txt
  meshd serve --model model.gguf --min-workers 2
  meshd serve --model hf:unsloth/Qwen3-4B-GGUF:Q4_K_M
  meshd serve --model model.gguf --host 0.0.0.0 --api-key-file key
  meshd serve --config models.toml    (several models: a table [models.NAME] for each)
"""

import argparse

from meshd.cli.daemon_import import import_daemon
from meshd.cli.find_models import find_served_model
from meshd.cli.options import Arguments, add_role_options, load_role
from meshd.cli.output import Output
from meshd.cli.role_checks import check_serve, read_join


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options from the list of settings."""
    add_role_options(parser, "serve")
    parser.usage = "meshd serve --model FILE|NAME [OPTIONS] [-- LLAMA_SERVER_ARGS…]"


def run(args: Arguments, out: Output) -> int:
    """Run the daemon itself; return its exit code."""
    more = {"serve.llama_args": args.rest} if args.rest else {}
    config = load_role(args, "serve", more).config
    check_serve(config)
    config = find_served_model(read_join(config), out)
    return import_daemon()(config, "serve", out.line)
