"""meshd as services of a machine that systemd boots: over reboots and failures, until nothing is left."""

import json
from collections.abc import Callable

import pytest
from meshd.base.service_manager import FINAL_EXIT_CODE
from meshd.service.files import CREDENTIAL, Service, environment_of, systemd_unit

from tests.boot.machine import Machine
from tests.boot.scenes import (
    HEAD,
    STATE,
    WORKER,
    answer_after_a_reboot,
    of_node,
    refused,
    restarts_are_gentle,
    service,
    shown,
    uninstall_leaves_what_it_names,
    until,
)
from tests.tokens import token


def test_after_a_reboot_there_is_an_answer_by_nobodys_hand(
    computing_machine: Machine, record_property: Callable[[str, object], None]
) -> None:
    """And a restart is gentle, and after the last service nothing is left but what `uninstall` names."""
    seconds = answer_after_a_reboot(computing_machine)
    record_property("seconds", str(seconds))
    print(seconds)  # noqa: T201
    restarts_are_gentle(computing_machine)
    uninstall_leaves_what_it_names(computing_machine, kept="opt")


def test_a_users_service_starts_at_boot_once_that_user_lingers(machine: Machine) -> None:
    machine.done("useradd", "--create-home", "ada")
    assert "enable-linger ada" in refused(machine, "install client", user="ada")
    machine.done("loginctl", "enable-linger", "ada")
    home = "/home/ada/.local/state/meshd"
    until(lambda: machine.run("test", "-d", "/run/user/1001/systemd").returncode == 0, "ada has no manager")
    assert "not in a mesh yet" in refused(machine, "install client", *WORKER, user="ada")
    assert "differs" in refused(machine, "install client", *HEAD, user="ada")
    service(machine, "uninstall client", user="ada")
    service(machine, "install relay", "--listen", "127.0.0.1:0", user="ada")
    machine.power_off()
    machine.boot()
    until(
        lambda: machine.run(machine.program, "service", "status", "relay", user="ada").returncode == 0,
        "it does not start",
    )
    assert "starts     at boot" in service(machine, "status relay", user="ada")
    restarts = "from meshd.service.control import restart_commands; print(restart_commands())"
    said = machine.done("/opt/meshd/bin/python", "-c", restarts, user="ada")
    assert said.strip() == "['meshd service restart relay']"
    assert "relay://" in service(machine, "logs relay", user="ada")
    service(machine, "uninstall relay", user="ada")
    assert machine.run("pgrep", "-u", "ada", "-f", "meshd relay").returncode == 1
    assert "does not exist" in refused(machine, "status relay", user="ada")
    left = machine.done("find", "/home/ada", "-name", "*meshd*").split()
    assert left == [home]


def test_what_cannot_heal_is_not_tried_again(machine: Machine) -> None:
    said = refused(machine, "install client --system", *WORKER)
    assert "`meshd-client.service` failed: this node is not in a mesh yet" in said
    assert shown(machine, "meshd-client", "NRestarts") == "0"
    assert shown(machine, "meshd-client", "ExecMainStatus") == str(FINAL_EXIT_CODE)
    assert "failed: this node is not in a mesh yet" in refused(machine, "status client --system")
    # An invite from the store of credentials; nobody answers there, which may change.
    machine.done("sh", "-c", f"mkdir -p /etc/credstore; umask 077; cat > {CREDENTIAL}", text=token())
    said = refused(machine, "restart client --system")
    assert "will be started again: cannot reach the node that made the invite" in said
    until(lambda: shown(machine, "meshd-client", "NRestarts") not in ("", "0"), "it is not started again")
    machine.done("test", "-e", CREDENTIAL)


def test_a_credential_joins_and_is_deleted(computing_machine: Machine) -> None:
    machine = computing_machine
    service(machine, "install worker --system", *WORKER)
    invite = machine.done(*of_node(machine, "worker", "invite"))
    machine.done("sh", "-c", f"mkdir -p /etc/credstore; umask 077; cat > {CREDENTIAL}", text=invite)
    service(machine, "install client --system", *HEAD)
    assert machine.run("test", "-e", CREDENTIAL).returncode == 1
    status = json.loads(machine.done(*of_node(machine, "client", "status --json")))
    assert [peer["role"] for peer in status["peers"]] == ["worker"]
    # and once more without it
    machine.done("systemctl", "restart", "meshd-client")
    assert shown(machine, "meshd-client", "ActiveState") == "active"


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
def test_a_daemon_that_dies_or_hangs_is_started_again(machine: Machine, signal: str) -> None:
    service(machine, "install relay --system", "--listen", "127.0.0.1:0")
    drop_in = 'mkdir -p "$1"; cat > "$1/short.conf"'
    folder = "/run/systemd/system/meshd-relay.service.d"
    machine.done(
        "sh",
        "-c",
        drop_in,
        "sh",
        folder,
        text="[Service]\nWatchdogSec=8s\nRestartSec=100ms\nTimeoutAbortSec=2s\n",
    )
    machine.done("systemctl", "daemon-reload")
    machine.done("systemctl", "restart", "meshd-relay")
    pid = shown(machine, "meshd-relay", "MainPID")
    machine.done("kill", f"-{signal}", pid)
    until(
        lambda: (
            shown(machine, "meshd-relay", "MainPID") not in ("0", pid)
            and shown(machine, "meshd-relay", "ActiveState") == "active"
        ),
        "it is not started again",
    )
    assert "1 restart after failures" in service(machine, "status relay --system")


def test_what_is_in_the_way_is_said(machine: Machine) -> None:
    service(machine, "install relay --system", "--listen", "127.0.0.1:443")
    service(machine, "install relay --system", "--listen", "127.0.0.1:443")  # the same once more
    assert "meshd service uninstall relay --system" in refused(machine, "install relay --system")
    assert "add --system" in refused(machine, "status relay")
    assert "add --system" in refused(machine, "install worker")
    machine.done("useradd", "--create-home", "ada")
    assert "run it with `sudo`" in refused(machine, "install worker --system", user="ada")
    machine.done("sh", "-c", "mkdir /srv/keys; touch /srv/keys/k /home/ada/k; chmod 600 /srv/keys/k")
    for file, words in (("/srv/keys/k", "cannot read"), ("/home/ada/k", "cannot see")):
        said = refused(machine, "install client --system", "--config", file)
        assert f"{words} `{file}`" in said


HOSTILE = [
    "plain",
    "two words",
    "%h %% %i %",
    "$HOME ${HOME} $$",
    "a \"quote\" and 'another'",
    "back\\slash\\",
    "\\x41\\n",
    ";",
    "# no comment",
    "ü € 漢字",
    "line\nbreak\ttab",
    "",
    "-",
    "@:!+",
    " ends with a space ",
    "~",
    "*?[",
]
SHOW = """#!/usr/bin/python3
import json, os, socket, sys
seen = [sys.argv[1:], os.environ["MESHD_HOME"], os.environ["MESHD_CACHE"]]
json.dump(seen, open("/var/lib/meshd/seen", "w"))
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
sys.stdin.close()
socket.socketpair()[0].recv(1)
"""


def test_systemd_reads_back_every_word_and_path(machine: Machine) -> None:
    """Real quoting rules, not those that we believe: the unit is started, and says what it got."""
    machine.done("useradd", "--system", "meshd")
    for place in HOSTILE:
        folder = f"/srv/{place.strip() or 'empty'}".replace("\n", " ")
        program = f"{folder}/show"
        machine.done("mkdir", "-p", folder)
        machine.done("sh", "-c", 'cat > "$1"; chmod 755 "$1"', "sh", program, text=SHOW)
        environment = {"MESHD_HOME": f"/x/{place}", "MESHD_CACHE": " ".join(HOSTILE)}
        unit = systemd_unit(Service("relay", [program, *HOSTILE], environment), system=True)
        assert environment_of(unit) == environment
        machine.done("sh", "-c", "cat > /etc/systemd/system/meshd-relay.service", text=unit)
        assert (
            machine.run("systemd-analyze", "verify", "/etc/systemd/system/meshd-relay.service").stderr == ""
        )
        machine.done("systemctl", "daemon-reload")
        machine.done("systemctl", "restart", "meshd-relay")
        seen = json.loads(machine.done("cat", f"{STATE}/seen"))
        assert seen == [HOSTILE, environment["MESHD_HOME"], environment["MESHD_CACHE"]]


def test_landlock_is_there_within_the_limits_of_a_unit(machine: Machine) -> None:
    """A filter for system calls that knew nothing of Landlock would switch it off without a word."""
    script = "from meshd.process.sandbox_rules import confines_with as c; print(*c(), file=open('{}', 'w'))"
    there = machine.done("/opt/meshd/bin/python", "-c", script.format("/dev/stdout"))
    machine.done("useradd", "--system", "meshd")
    for role in ("worker", "serve"):
        command = ["/opt/meshd/bin/python", "-c", script.format(f"{STATE}/seen-{role}")]
        unit = systemd_unit(Service(role, command), system=True).replace("Type=notify", "Type=oneshot")
        unit = unit.replace("Restart=on-failure\n", "")
        machine.done("sh", "-c", f"cat > /etc/systemd/system/meshd-{role}.service", text=unit)
        machine.done("systemctl", "start", f"meshd-{role}")
        assert machine.done("cat", f"{STATE}/seen-{role}") == there
    assert "seccomp" in there
