"""Diagnose this machine: what is wrong, and what to do about it.

Tests the llama.cpp binaries, lists the devices, and shows the warnings of the daemon if one runs. For the
network, run `meshd netcheck`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from meshd.base.units import in_number
from meshd.cli.options import Arguments, add_config_file, add_keys, load_role
from meshd.cli.output import Output
from meshd.cli.role_checks import check_node

if TYPE_CHECKING:  # it imports what runs children: `--help` needs none of it
    from meshd.daemon.doctor import Finding

_WIDTH = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--json, and what replaces the configuration."""
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    add_config_file(parser)
    add_keys(parser, ("paths.native_bin",))


def run(args: Arguments, out: Output) -> int:
    """0 when nothing is an error, else 1."""
    from meshd.daemon.doctor import look

    config = load_role(args, "worker").config
    check_node(config)
    findings = [*look(config), *_daemon()]
    if args.json:
        out.json({"findings": [asdict(found) for found in findings]})
    else:
        for found in findings:
            out.line(f"{found.state:<8} {found.name:<{_WIDTH}} {found.what}")
            if found.hint and found.state != "ok":
                out.line(f"{'':<8} {'':<{_WIDTH}} hint: {found.hint}")
        out.line(_verdict(findings))
    return int(any(found.state == "error" for found in findings))


def _verdict(findings: "Sequence[Finding]") -> str:
    """Sum up in one sentence."""
    errors, warnings = (sum(found.state == state for found in findings) for state in ("error", "warning"))
    if errors:
        return f"{in_number(errors, 'error')} to mend before this node works"
    return f"this node works, with {in_number(warnings, 'warning')}" if warnings else "everything is in order"


def _daemon() -> "list[Finding]":
    from meshd.admin.api import StatusRequest
    from meshd.admin.client import NotRunning, ask
    from meshd.config.tree import home_here
    from meshd.daemon.doctor import Finding

    try:
        status = ask(home_here(), StatusRequest())
    except NotRunning:
        return [Finding("daemon", "ok", "not running")]
    running = Finding("daemon", "ok", f"`{status.node.name}` runs as {status.node.role}")
    found = [running]
    for warning in status.warnings:
        state = "ok" if warning.severity == "info" else warning.severity
        found.append(Finding(warning.code, state, warning.what, warning.hint))
    return found
