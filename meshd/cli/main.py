"""The command `meshd`: picks the verb, turns signals and errors into exit codes, alone prints errors.

A verb's module is imported only when it is chosen, so that `--help` and the small verbs answer at once.
Exit codes: 0 done, 1 failed, 2 the command line cannot be parsed, 130 interrupted.
"""

import argparse
import importlib
import inspect
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from meshd import __version__
from meshd.base.errors import MeshdError, UsageError
from meshd.base.processes import forbid_core_dumps
from meshd.base.service_manager import FINAL_EXIT_CODE, PACE_SECONDS, service_manager
from meshd.cli.options import LLAMA_SERVER, THE_ROLE, Arguments, Parser, split_rest, unknown_verb
from meshd.cli.output import Output, standard

INTERRUPTED = 130


class VerbCode(Protocol):
    """The interface of a verb: a module, or one of the classes of a module with several."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: Arguments, out: Output) -> int: ...


@dataclass(frozen=True, slots=True)
class Verb:
    """`module`: the one with this verb's class, if the verb has no module of its own.

    `rest`: what the arguments after `--` are for; empty if there are none.
    """

    name: str
    group: str
    help: str
    module: str = ""
    rest: str = ""

    def load(self) -> VerbCode:
        """Import it."""
        module = importlib.import_module(f"meshd.cli.{self.module or self.name}")
        code: VerbCode = getattr(module, self.name.capitalize())() if self.module else module
        return code

    def parser(self) -> Parser:
        """Import it, and return the parser of its arguments."""
        code = self.load()
        parser = Parser(prog=f"meshd {self.name}", description=inspect.getdoc(code))
        code.add_arguments(parser)
        return parser


GROUPS = ("get started", "run", "watch and diagnose", "members", "share other services", "configure")
VERBS: tuple[Verb, ...] = (
    Verb("doctor", GROUPS[0], "diagnose this machine: llama.cpp, devices, running node", module="doctor"),
    Verb("native", GROUPS[0], "build llama.cpp for this machine, or show the build"),
    Verb("upgrade", GROUPS[0], "install a newer version of meshd"),
    Verb("demo", GROUPS[0], "try it out: split a small model over two nodes on this machine", module="roles"),
    Verb("model", GROUPS[0], "list, download, check and remove models"),
    Verb("worker", GROUPS[1], "lend this machine's GPUs or CPU to the mesh", module="roles"),
    Verb(
        "serve",
        GROUPS[1],
        "serve a model across the mesh, through an OpenAI-compatible API",
        module="roles",
        rest=LLAMA_SERVER,
    ),
    Verb(
        "client",
        GROUPS[1],
        "use the mesh's models from this machine, through the same API",
        module="roles",
    ),
    Verb("relay", GROUPS[1], "forward traffic between nodes that cannot connect directly", module="roles"),
    Verb("service", GROUPS[1], "run a role as a service, which starts at boot", rest=THE_ROLE),
    Verb("pause", GROUPS[1], "lend nothing until resume", module="stop"),
    Verb("drain", GROUPS[1], "let running requests finish, then lend nothing", module="stop"),
    Verb("resume", GROUPS[1], "lend again after pause or drain", module="stop"),
    Verb("stop", GROUPS[1], "stop the node that runs on this machine", module="stop"),
    Verb("status", GROUPS[2], "show what this node does, and what needs attention", module="status"),
    Verb("ui", GROUPS[2], "open the page of the mesh in a browser"),
    Verb("peers", GROUPS[2], "list the other nodes and the connection to each", module="status"),
    Verb("logs", GROUPS[2], "show the logs of meshd and of llama.cpp"),
    Verb("metrics", GROUPS[2], "print the metrics of this node for Prometheus", module="status"),
    Verb(
        "netcheck",
        GROUPS[2],
        "diagnose the network: NAT, port mapping, what blocks connections",
        module="doctor",
    ),
    Verb("report", GROUPS[2], "write a file for people who help you; sends nothing"),
    Verb("ping", GROUPS[2], "measure the round trip to a node", module="status"),
    Verb("capacity", GROUPS[2], "measure the devices and paths of all nodes", module="plan"),
    Verb("why", GROUPS[2], "show where the time of a token goes, and what would save most", module="plan"),
    Verb(
        "plan", GROUPS[2], "predict how fast a model would run, and choose machines and split", module="plan"
    ),
    Verb("bench", GROUPS[2], "run benchmarks"),
    Verb("invite", GROUPS[3], "create, list and revoke invites", module="members"),
    Verb(
        "accept",
        GROUPS[3],
        "let in a node that could not connect (it prints the command)",
        module="members",
    ),
    Verb("forget", GROUPS[3], "remove a node that is gone from this node's list", module="members"),
    Verb("revoke", GROUPS[3], "ban a node from the mesh", module="members"),
    Verb("unban", GROUPS[3], "list the bans, or lift one", module="members"),
    Verb("leave", GROUPS[3], "leave the mesh", module="members"),
    Verb("mesh", GROUPS[3], "back up and restore the mesh's root key", module="members"),
    Verb("expose", GROUPS[4], "give chosen nodes access to a TCP service of this machine", module="tunnels"),
    Verb("tunnel", GROUPS[4], "use a service that another node exposes", module="tunnels"),
    Verb("config", GROUPS[5], "show the effective configuration, or write an example file"),
    Verb("completion", GROUPS[5], "print the completion script for a shell", module="shell"),
    Verb("man", GROUPS[5], "write the man pages into a folder", module="shell"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    out = standard()
    forbid_core_dumps()
    service_manager()  # whose variables no child gets
    try:
        code = dispatch(list(sys.argv[1:] if argv is None else argv), out)
    except BrokenPipeError:
        _drop_stdout()
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        sys.stdout.flush()  # what does not get out shows here, not at exit with a traceback
    except OSError:  # told already, unless the reader has gone
        _drop_stdout()
        return code or 1
    return code


def dispatch(argv: list[str], out: Output) -> int:
    """Parse and run; print errors on `out`."""
    try:
        return _run(argv, out)
    except MeshdError as error:
        help_of_verb = f"run `meshd {argv[0]} --help` for its options" if argv else ""
        out.error(error.what, error.hint or (help_of_verb if isinstance(error, UsageError) else ""))
        manager = service_manager()
        if manager.is_there:
            manager.failed(error.with_hint)
            if error.is_final and not isinstance(error, UsageError):  # which has a code of its own
                return FINAL_EXIT_CODE
            if manager.is_starting and not error.is_final:
                time.sleep(PACE_SECONDS)
        return error.exit_code
    except SystemExit as leaving:  # how argparse ends after --help
        return leaving.code if isinstance(leaving.code, int) else 0


def _run(argv: list[str], out: Output) -> int:
    if not argv:
        out.note(_help())
        return UsageError.exit_code
    name, rest = argv[0], argv[1:]
    if name == "help" and rest and not rest[0].startswith("-"):  # `help VERB` and `help VERB ACTION`
        name, rest = rest[0], [*rest[1:], "--help"]
    if name in ("-h", "--help", "help"):
        out.line(_help())
        return 0
    if name in ("-V", "--version", "version"):
        _print_version(out)
        return 0
    verb = next((verb for verb in VERBS if verb.name == name), None)
    if verb is None:
        raise unknown_verb(name, [*(verb.name for verb in VERBS), "help", "version"])
    parser = verb.parser()
    after: list[str] | None = None
    if verb.rest:
        rest, after = split_rest(rest)
    args = parser.parse(rest, passes_to=verb.rest)
    args.rest = after
    return verb.load().run(args, out)


def _print_version(out: Output) -> None:
    """Print four lines; nothing has to be built for them."""
    from meshd.build.page import page_release, page_words
    from meshd.build.pin import read_pin
    from meshd.wire.versions import WIRE_VERSION

    pin = read_pin()
    out.line(f"meshd {__version__}")
    out.line(f"wire protocol {WIRE_VERSION}")
    out.line(f"native {pin.name} {pin.commit} sources {pin.sources_sha256[:12]}")
    out.line(f"chat page {page_words(page_release(), pin.release)}")


def _help() -> str:
    lines = [
        "Run one GGUF model across several machines.",
        "",
        "usage: meshd COMMAND [OPTIONS]",
        "",
        "examples:",
        "  meshd worker",
        "      lend this machine; prints an invite",
        "  meshd serve --model model.gguf --join INVITE",
        "      serve the model at http://127.0.0.1:8090/v1",
        "",
    ]
    for group in GROUPS:
        verbs = [f"  {verb.name:<10}  {verb.help}" for verb in VERBS if verb.group == group]
        lines += [f"{group}:", *verbs, ""]
    lines += [
        "A running `meshd worker`, `serve` or `client` is called a node; one that serves,",
        "a head. A node keeps its state in $MESHD_HOME",
        "(default: ~/.local/state/meshd; on macOS: ~/Library/Application Support/meshd).",
        "",
        "`meshd help COMMAND` shows a command's options, `meshd version` the version.",
    ]
    return "\n".join(lines)


def _drop_stdout() -> None:
    # Python flushes stdout once more at exit: give it somewhere to go
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
