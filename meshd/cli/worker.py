"""Lend this machine's GPUs or CPU to a mesh, until you stop it.

Without --join, the first start creates a mesh and prints an invite on standard output; the log goes to
standard error. A restart needs no invite.

examples:
  meshd worker                                  create a mesh; download layers from the head
  meshd worker --model model.gguf               use this machine's copy of the model file
  meshd worker --join @invite.txt --memory 8G    join a mesh, and lend at most 8 GiB per device
  meshd worker --device CUDA0 CUDA1             lend two of this machine's GPUs
"""

import argparse

from meshd.cli.daemon_import import import_daemon
from meshd.cli.find_models import find_worker_models
from meshd.cli.options import Arguments, add_role_options, load_role
from meshd.cli.output import Output
from meshd.cli.role_checks import check_worker, read_join


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options from the list of settings."""
    add_role_options(parser, "worker")
    parser.usage = "meshd worker [OPTIONS]"


def run(args: Arguments, out: Output) -> int:
    """Run the daemon itself; return its exit code."""
    config = load_role(args, "worker").config
    check_worker(config)
    config = find_worker_models(read_join(config), out)
    return import_daemon()(config, "worker", out.line)
