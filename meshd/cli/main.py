"""The command `meshd`: picks the verb, turns signals and errors into exit codes, alone prints errors.

A verb's module is imported only when it is chosen, so that `--help` and the small verbs answer at once.
Exit codes: 0 done, 1 failed, 2 the command line cannot be parsed, 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from meshd.base.errors import MeshdError, UsageError
from meshd.base.own_limits import forbid_core_dumps
from meshd.cli.options import Arguments, Parser, split_rest
from meshd.cli.output import Output, standard

INTERRUPTED = 130

LATER = frozenset({"report", "service", "ui", "upgrade"})


class VerbModule(Protocol):
    """The interface of a verb's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: Arguments, out: Output) -> int: ...


@dataclass(frozen=True, slots=True)
class Verb:
    """`load` imports the module. `rest`: arguments after `--` are kept for another program."""

    name: str
    group: str
    help: str
    load: Callable[[], VerbModule]
    rest: bool = False


def _worker() -> VerbModule:
    from meshd.cli import worker

    return worker


def _serve() -> VerbModule:
    from meshd.cli import serve

    return serve


def _client() -> VerbModule:
    from meshd.cli import client

    return client


def _status() -> VerbModule:
    from meshd.cli import status

    return status


def _pause() -> VerbModule:
    from meshd.cli import pause

    return pause


def _drain() -> VerbModule:
    from meshd.cli import drain

    return drain


def _resume() -> VerbModule:
    from meshd.cli import resume

    return resume


def _ping() -> VerbModule:
    from meshd.cli import ping

    return ping


def _peers() -> VerbModule:
    from meshd.cli import peers

    return peers


def _netcheck() -> VerbModule:
    from meshd.cli import netcheck

    return netcheck


def _doctor() -> VerbModule:
    from meshd.cli import doctor

    return doctor


def _plan() -> VerbModule:
    from meshd.cli import plan

    return plan


def _why() -> VerbModule:
    from meshd.cli import why

    return why


def _capacity() -> VerbModule:
    from meshd.cli import capacity

    return capacity


def _invite() -> VerbModule:
    from meshd.cli import invite

    return invite


def _accept() -> VerbModule:
    from meshd.cli import accept

    return accept


def _forget() -> VerbModule:
    from meshd.cli import forget

    return forget


def _revoke() -> VerbModule:
    from meshd.cli import revoke

    return revoke


def _unban() -> VerbModule:
    from meshd.cli import unban

    return unban


def _expose() -> VerbModule:
    from meshd.cli import expose

    return expose


def _tunnel() -> VerbModule:
    from meshd.cli import tunnel

    return tunnel


def _leave() -> VerbModule:
    from meshd.cli import leave

    return leave


def _mesh() -> VerbModule:
    from meshd.cli import mesh

    return mesh


def _native() -> VerbModule:
    from meshd.cli import native

    return native


def _config() -> VerbModule:
    from meshd.cli import config

    return config


def _stop() -> VerbModule:
    from meshd.cli import stop

    return stop


def _logs() -> VerbModule:
    from meshd.cli import logs

    return logs


def _relay() -> VerbModule:
    from meshd.cli import relay

    return relay


def _demo() -> VerbModule:
    from meshd.cli import demo

    return demo


def _model() -> VerbModule:
    from meshd.cli import model

    return model


def _bench() -> VerbModule:
    from meshd.cli import bench

    return bench


GROUPS = ("get started", "run", "watch and diagnose", "members", "share other services", "configure")
VERBS: tuple[Verb, ...] = (
    Verb("doctor", GROUPS[0], "diagnose this machine: llama.cpp, devices, running node", _doctor),
    Verb("native", GROUPS[0], "build llama.cpp for this machine, or show the build", _native),
    Verb("demo", GROUPS[0], "try it out: split a small model over two nodes on this machine", _demo),
    Verb("model", GROUPS[0], "list, download, check and remove models", _model),
    Verb("worker", GROUPS[1], "lend this machine's GPUs or CPU to the mesh", _worker),
    Verb(
        "serve",
        GROUPS[1],
        "serve a model across the mesh, through an OpenAI-compatible API",
        _serve,
        rest=True,
    ),
    Verb("client", GROUPS[1], "offer the API of the serving nodes on this machine, without a model", _client),
    Verb("relay", GROUPS[1], "forward traffic between nodes that cannot connect directly", _relay),
    Verb("pause", GROUPS[1], "lend nothing until resume", _pause),
    Verb("drain", GROUPS[1], "let running requests finish, then lend nothing", _drain),
    Verb("resume", GROUPS[1], "lend again after pause or drain", _resume),
    Verb("stop", GROUPS[1], "stop the node that runs on this machine", _stop),
    Verb("status", GROUPS[2], "show what this node does, and what needs attention", _status),
    Verb("peers", GROUPS[2], "list the other nodes and the connection to each", _peers),
    Verb("logs", GROUPS[2], "show the logs of meshd and of llama.cpp", _logs),
    Verb(
        "netcheck",
        GROUPS[2],
        "diagnose the network: NAT type, port mapping, what blocks connections",
        _netcheck,
    ),
    Verb("ping", GROUPS[2], "measure the round trip to a node", _ping),
    Verb("capacity", GROUPS[2], "measure the devices and paths of all nodes", _capacity),
    Verb("why", GROUPS[2], "show where the time of a token goes, and what would save most", _why),
    Verb("plan", GROUPS[2], "predict how fast a model would run, and choose machines and split", _plan),
    Verb("bench", GROUPS[2], "run benchmarks", _bench),
    Verb("invite", GROUPS[3], "create, list and revoke invites", _invite),
    Verb("accept", GROUPS[3], "let in a node that printed a reply code", _accept),
    Verb("forget", GROUPS[3], "remove a node that is gone from this node's list", _forget),
    Verb("revoke", GROUPS[3], "ban a node from the mesh", _revoke),
    Verb("unban", GROUPS[3], "list the bans, or lift one", _unban),
    Verb("leave", GROUPS[3], "leave the mesh", _leave),
    Verb("mesh", GROUPS[3], "back up and restore the mesh's root key", _mesh),
    Verb("expose", GROUPS[4], "give chosen nodes access to a TCP service of this machine", _expose),
    Verb("tunnel", GROUPS[4], "use a service that another node exposes", _tunnel),
    Verb("config", GROUPS[5], "show the effective configuration, or write an example file", _config),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    out = standard()
    forbid_core_dumps()
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
        from meshd.cli import version

        return version.run(out)
    verb = next((verb for verb in VERBS if verb.name == name), None)
    if verb is None:
        from meshd.cli.unknown_verb import unknown_verb

        raise unknown_verb(name, [*(verb.name for verb in VERBS), "help", "version"], LATER)
    module = verb.load()
    parser = Parser(prog=f"meshd {name}", description=module.__doc__)
    module.add_arguments(parser)
    after: list[str] | None = None
    if verb.rest:
        rest, after = split_rest(rest)
    args = parser.parse(rest, passes_on=verb.rest)
    args.rest = after
    return module.run(args, out)


def _help() -> str:
    lines = [
        "Run one GGUF model across several machines.",
        "",
        "usage: meshd COMMAND [OPTIONS]",
        "",
        "examples:",
        "  meshd worker                                  lend this machine; prints an invite",
        "  meshd serve --model model.gguf --join INVITE  serve the model at http://127.0.0.1:8090/v1",
        "",
    ]
    for group in GROUPS:
        verbs = [f"  {verb.name:<8}  {verb.help}" for verb in VERBS if verb.group == group]
        lines += [f"{group}:", *verbs, ""]
    lines += [
        "A running `meshd worker`, `serve` or `client` is called a node; a node that serves, a head.",
        "A node keeps its state in $MESHD_HOME",
        "(default: ~/.local/state/meshd; on macOS: ~/Library/Application Support/meshd).",
        "",
        "Run `meshd help COMMAND` for a command's options, `meshd version` for the version.",
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
