"""The page about a fleet is followed as it stands, on three machines that systemd boots in one network."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from meshd.config.tree import Paths
from meshd.daemon.native import natives_here

from tests.boot.installed import fresh_machine
from tests.boot.machine import HOME, Machine, switched_on
from tests.boot.scenes import MODEL
from tests.e2e.models import cache_folder, smollm2
from tests.netns import walkthrough
from tests.netns.space import skip_reason
from tests.netns.walkthrough import Walkthrough
from tests.netns.world import World
from tests.rules.source import ROOT

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

INVITE = "workers.invite"
# The machines have root alone, and no sudo.
_SUDO = """#!/bin/sh
[ "$1" = -u ] || exec "$@"
user=$2; shift 2
exec runuser -u "$user" -- "$@"
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """Three machines with meshd, llama.cpp and a model; each is found by the others in one LAN."""
    if reason := skip_reason():
        pytest.skip(reason)
    native = natives_here(Paths(cache=cache_folder()), head=True)[0]
    programs = (native.llama_server.parent, native.mesh_server.parent)
    machines = {}
    with World() as world, ExitStack() as stack:
        lan = world.router("office")
        for name in ("hub", "gpu1", "gpu2"):
            host = lan.host(name)
            machine = fresh_machine(tmp_path / name, {smollm2(): MODEL}, programs, name=name)
            machine.network = host.space.path
            _add_what_a_server_has(machine)
            machines[name] = stack.enter_context(switched_on(machine))
        yield machines


def _add_what_a_server_has(machine: Machine) -> None:
    """Put meshd into the path as its package does, and sudo; nobody answers for names."""
    programs = machine.upper / "usr/bin"
    programs.mkdir(parents=True)
    (programs / "meshd").symlink_to(machine.program)
    (programs / "sudo").write_text(_SUDO)
    (programs / "sudo").chmod(0o755)
    (machine.upper / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")


def _copied(source: Machine, target: Machine) -> None:
    text = source.done("cat", f"{HOME}/{INVITE}")
    target.done("sh", "-c", 'umask 077; cat > "$1"', "sh", f"{HOME}/{INVITE}", text=text)


def _rebooted(machine: Machine, terminals: walkthrough.Machine) -> None:
    for terminal in terminals.terminals:
        terminal.hang_up()
    machine.power_off()
    machine.boot()
    terminals.prefix = machine.prefix


def test_the_page_of_a_fleet(fleet: dict[str, Machine]) -> None:
    readers = {name: walkthrough.Machine(machine.prefix, Path("/"), {}) for name, machine in fleet.items()}
    by_bench: dict[str, Callable[[], None]] = {
        f"scp {INVITE} {name}:": partial(_copied, fleet["hub"], fleet[name]) for name in ("gpu1", "gpu2")
    }
    by_bench["sudo reboot"] = partial(_rebooted, fleet["gpu1"], readers["gpu1"])
    page = (ROOT / "docs/fleet.md").read_text(encoding="utf-8")
    with Walkthrough(readers, {"qwen3-4b": MODEL}, by_bench) as reader:
        reader.follow(page)
        reader.end()
    del fleet["gpu1"]  # which is lost at the end of the page
    for machine in fleet.values():
        assert machine.run("sh", "-c", "ls /etc/systemd/system/meshd-*").stdout == ""
        assert machine.run("pgrep", "-f", "meshd|llama-server|mesh-server").stdout == ""
