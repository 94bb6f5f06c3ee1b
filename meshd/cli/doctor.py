"""The verbs that look for faults: doctor on this machine, netcheck in its network."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from meshd.admin.api import NatView, NetcheckReply, NetcheckRequest, PortMappingView
from meshd.admin.client import NotRunning, ask
from meshd.admin.request import to_fields
from meshd.base.units import in_number
from meshd.cli.layout import State
from meshd.cli.options import Arguments, add_config_file, add_keys, config_file, load_role
from meshd.cli.output import Json, Output
from meshd.config.tree import home_here

if TYPE_CHECKING:
    from meshd.doctor.kinds import Finding

OPTIONS = ("links.stun", "links.relays", "links.no_portmap")
_CHECK_SECONDS = 30.0
_LABEL_WIDTH = 14


class Doctor:
    """Diagnose this machine: what is wrong, what that means, and what to do about it.

    Checks the installation, the settings, home and cache, limits and power, the network, llama.cpp and its
    devices, model files, and the running node if there is one.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """--json, and what replaces the configuration."""
        parser.add_argument(
            "--fix",
            action="store_true",
            help="first repair what is safe to repair: modes of meshd's own files, leftovers of killed nodes",
        )
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
        add_config_file(parser)
        add_keys(parser, ("paths.native_bin",))

    def run(self, args: Arguments, out: Output) -> int:
        """0 when nothing is an error, else 1."""
        from meshd.doctor.examine import examine, fix
        from meshd.doctor.settings import read_settings

        options = {"paths.native_bin": vars(args)["paths.native_bin"]}
        settings = read_settings(options, config_file(args))
        if args.fix:
            findings, mended = fix(settings)
        else:
            findings, mended = examine(settings), []
        if args.json:
            fixed = [
                {**_fields(repair.finding), "did": repair.did, "failed": repair.failed} for repair in mended
            ]
            out.json({"findings": [_fields(found) for found in findings], "fixed": fixed})
        else:
            for repair in mended:
                text = repair.did or f"{repair.finding.what}, and could not be fixed: {repair.failed}"
                out.finding("fixed" if repair.did else "failed", repair.finding.name, text)
            for found in findings:
                _show(found, out)
            out.text(_verdict(findings))
        return int(any(found.state == "error" for found in findings))


def _fields(found: "Finding") -> dict[str, Json]:
    return {name: value for name, value in asdict(found).items() if name != "path"}


def _show(found: "Finding", out: Output) -> None:
    """Show one finding to a person: more than one line only if there is something to do."""
    out.finding(found.state, found.name, found.what)
    if found.state != "ok":
        for text in (found.meaning, found.hint and f"hint: {found.hint}"):
            if text:
                out.finding("", "", text)


def _verdict(findings: "Sequence[Finding]") -> str:
    """Sum up in one sentence."""
    errors, warnings = (sum(found.state == state for found in findings) for state in ("error", "warning"))
    if errors:
        return f"{in_number(errors, 'error')} to mend before this node works"
    return f"this node works, with {in_number(warnings, 'warning')}" if warnings else "everything is in order"


class Netcheck:
    """Diagnose the network of this machine: what is wrong, and what to do about it.

    The running node does the check; if none runs, or if you pass --stun or --relay, this command does it. It
    contacts only the configured STUN servers and relays, and the router.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add --json, and options that replace the configuration."""
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
        add_config_file(parser)
        add_keys(parser, OPTIONS)

    def run(self, args: Arguments, out: Output) -> int:
        """Return 0 when no problem is an error, else 1."""
        reply = _reply(args, out)
        if args.json:
            out.json(to_fields(reply))
        else:
            show(reply, out)
        return int(any(problem.severity == "error" for problem in reply.problems))


def _reply(args: Arguments, out: Output) -> NetcheckReply:
    own = args.config is not None or any(vars(args).get(name) is not None for name in OPTIONS)
    if not own:
        try:
            return ask(home_here(), NetcheckRequest(), seconds=_CHECK_SECONDS)
        except NotRunning:
            pass
    config = load_role(args, "worker").config
    from meshd.daemon.network_state import check_alone, servers_of

    servers = servers_of(config)
    out.note("checking without a running node; this takes some seconds")
    return check_alone(config, servers)


def show(reply: NetcheckReply, out: Output) -> None:
    """Show the whole reply to a person."""
    _line(out, "UDP", reply.udp)
    _line(out, "TCP", reply.tcp.replace("only_443", "only to port 443"))
    _line(out, "NAT", reply.nat.kind + _ports(reply.nat))
    _line(out, "NAT for TCP", reply.tcp_nat.kind + _ports(reply.tcp_nat))
    _line(out, "IPv4 outside", reply.public_v4 or "not known")
    _line(out, "IPv6", {"yes": f"yes, {reply.public_v6}"}.get(reply.ipv6, reply.ipv6))
    _line(out, "port mapping", _mapping(reply.port_mapping))
    _line(out, "hairpin", reply.hairpin)
    _line(out, "direct peers", reply.direct)
    _line(out, "asked", ", ".join(reply.servers) or "nobody")
    if reply.daemon and reply.age_s >= 60:
        _line(out, "checked", f"{reply.age_s / 60:.0f} min ago")
    for problem in reply.problems:
        out.line()
        out.text(State(f"{problem.severity}:"), f" {problem.what} [{problem.code}]")
        if problem.hint:
            out.text(f"hint: {problem.hint}", indent=2)


def _line(out: Output, name: str, text: str) -> None:
    out.field(name, text, width=_LABEL_WIDTH)


def _ports(nat: NatView) -> str:
    if nat.mapping in ("unknown", "none") or nat.ports == "unknown":
        return ""
    if nat.ports == "counting":
        return f", ports count by {nat.step}"
    return {"preserved": ", ports are kept", "random": ", ports are not kept"}.get(nat.ports, "")


def _mapping(router: PortMappingView) -> str:
    by = f" by {router.language}" if router.language else ""
    match router.state:
        case "mapped":
            sure = {True: ", seen to work", False: ", not reached", None: ""}[router.verified]
            return f"{', '.join(router.mappings) or router.external}{by}{sure}"
        case "offered":
            outside = f", outer address {router.external}" if router.external else ""
            return f"the router {router.gateway} offers it{by}{outside}"
        case "off":
            return "disabled"
        case "asking":
            return "asking the router"
        case _:
            return f"none: {router.why}" if router.why else "none"
