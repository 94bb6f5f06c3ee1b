"""`meshd worker`, `serve` and `client`: the verbs that run a daemon, one for each role."""

import argparse
import gc
from collections.abc import Callable
from typing import ClassVar

from meshd.cli.find_models import find_served_model, find_worker_models
from meshd.cli.options import Arguments, add_role_options, load_role
from meshd.cli.output import Output
from meshd.cli.role_checks import check_node, check_serve, check_worker, read_join
from meshd.config.tree import Config


class RoleVerb:
    """A verb that runs a daemon in its role."""

    role: ClassVar[str]
    usage: ClassVar[str]

    def prepared(self, config: Config, out: Output) -> Config:
        """Check the configuration, and find its models on this machine. Raises UserError."""
        raise NotImplementedError

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add all options from the list of settings."""
        add_role_options(parser, self.role)
        parser.usage = self.usage

    def run(self, args: Arguments, out: Output) -> int:
        """Run the daemon itself; return its exit code."""
        more = {"serve.llama_args": args.rest} if args.rest else {}
        config = self.prepared(load_role(args, self.role, more).config, out)
        return import_daemon()(config, self.role, out.line)


class Worker(RoleVerb):
    """Lend this machine's GPUs or CPU to a mesh, until you stop it.

    Without --join, the first start creates a mesh and prints an invite on standard output; the log goes to
    standard error. A restart needs no invite.

    examples:
      meshd worker                                  create a mesh; download layers from the head
      meshd worker --model model.gguf               use this machine's copy of the model file
      meshd worker --join @invite.txt --memory 8G    join a mesh, and lend at most 8 GiB per device
      meshd worker --device CUDA0 CUDA1             lend two of this machine's GPUs
    """

    role = "worker"
    usage = "meshd worker [OPTIONS]"

    def prepared(self, config: Config, out: Output) -> Config:
        check_worker(config)
        return find_worker_models(read_join(config), out)


class Serve(RoleVerb):
    """Serve a model across a mesh, through an OpenAI-compatible API, until you stop it.

    If a worker already runs, join its mesh with --join. Otherwise the first start creates a mesh and prints
    an invite for workers. A restart needs no invite. Arguments after `--` go to llama-server unchanged.

    examples:
      meshd serve --model model.gguf --join @invite.txt
      meshd serve --model model.gguf --min-workers 2
      meshd serve --model hf:unsloth/Qwen3-4B-GGUF:Q4_K_M
      meshd serve --model model.gguf --host 0.0.0.0 --api-key-file key
      meshd serve --config models.toml    (several models: a table [models.NAME] for each)
    """

    role = "serve"
    usage = "meshd serve --model FILE|NAME [OPTIONS] [-- LLAMA_SERVER_ARGS…]"

    def prepared(self, config: Config, out: Output) -> Config:
        check_serve(config)
        return find_served_model(read_join(config), out)


class Client(RoleVerb):
    """Offer the API of the mesh's serving nodes on this machine, until you stop it.

    It needs no model, no GPU and no llama.cpp. A request goes to a node that serves its model; of several, to
    the least busy one. A restart needs no invite.

    examples:
      meshd client --join @invite.txt               the API at http://127.0.0.1:8090/v1
      meshd client --port 8091 --set client.heads=desk,attic   use only these two nodes
    """

    role = "client"
    usage = "meshd client [OPTIONS]"

    def prepared(self, config: Config, out: Output) -> Config:
        check_node(config)
        return read_join(config)


def import_daemon() -> Callable[[Config, str, Callable[[str], None]], int]:
    """Return `meshd.daemon.run`, imported without garbage collection: nothing that its import makes is
    garbage.

    That, and not to walk it all again while the node starts, saves a seventh of the processor time of a
    start.
    """
    gc.disable()
    try:
        from meshd.daemon.run import run
    finally:
        gc.enable()
    gc.freeze()
    return run
