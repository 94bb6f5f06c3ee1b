"""Each kind of finding about services, on a machine whose systemd has a service broken in just that way."""

import json
from dataclasses import dataclass

from meshd.doctor.services import ServiceKind

from tests.boot.machine import Machine
from tests.boot.scenes import HEAD, STATE, WORKER, refused, service, shown, until
from tests.tokens import token

UNIT = "/etc/systemd/system/meshd-relay.service"
_CHECK = "from meshd.doctor.services import check_services as c; print(*[f.code for f in c()])"
_RELAY = ("--listen", "127.0.0.1:0")


def found(machine: Machine, user: str = "") -> set[str]:
    """The codes of what doctor says of services."""
    return {*machine.done("/opt/meshd/bin/python", "-c", _CHECK, user=user).split()}


@dataclass(frozen=True)
class Breakage:
    """A command that breaks the running service of a relay, and one that mends it."""

    broken: str
    mended: str


OF_A_RELAY = {
    ServiceKind.SERVICE_PROGRAM: Breakage(
        "mv /opt/meshd/bin/meshd /opt/gone", "mv /opt/gone /opt/meshd/bin/meshd"
    ),
    ServiceKind.SERVICE_OUTDATED: Breakage(
        f"cp {UNIT} /root/kept; sed -i s/RestartSec=5/RestartSec=7/ {UNIT}; systemctl daemon-reload",
        f"mv /root/kept {UNIT}; systemctl daemon-reload",
    ),
    ServiceKind.SERVICE_UNKNOWN: Breakage(
        f"cp {UNIT} /root/kept; sed -i s/^ExecStart=:/ExecStart=/ {UNIT}", f"mv /root/kept {UNIT}"
    ),
    ServiceKind.SERVICE_DISABLED: Breakage(
        "systemctl disable -q meshd-relay", "systemctl enable -q meshd-relay"
    ),
    ServiceKind.SERVICE_STOPPED: Breakage("systemctl stop meshd-relay", "systemctl start meshd-relay"),
    ServiceKind.SERVICE_FAILED: Breakage(
        # as after the thirtieth crash
        "mkdir -p /run/systemd/system/meshd-relay.service.d; printf '[Service]\nRestart=no\n' "
        "> /run/systemd/system/meshd-relay.service.d/no.conf; systemctl daemon-reload; "
        "systemctl kill -s KILL meshd-relay; while systemctl -q is-active meshd-relay; do sleep 0.1; done",
        "rm -r /run/systemd/system/meshd-relay.service.d; systemctl daemon-reload; systemctl reset-failed; "
        "systemctl start meshd-relay",
    ),
}


def test_a_service_of_the_system(machine: Machine) -> None:
    assert found(machine) == set()
    service(machine, "install relay --system", *_RELAY)
    healthy = {ServiceKind.SERVICE.code}
    assert found(machine) == healthy
    for kind, breakage in OF_A_RELAY.items():
        machine.done("sh", "-ec", breakage.broken)
        codes = found(machine) - healthy
        machine.done("sh", "-ec", breakage.mended)
        assert codes == {kind.code}
        assert found(machine) == healthy, kind
    machine.done("mv", "/opt/meshd/bin/python", "/opt/meshd/bin/gone")  # as after an upgrade of the system
    machine.run("systemctl", "restart", "meshd-relay")
    codes = {*machine.done("/opt/meshd/bin/gone", "-c", _CHECK).split()}
    assert codes == {ServiceKind.SERVICE_PROGRAM.code}


def test_one_that_no_restart_heals_and_one_that_is_tried_again(machine: Machine) -> None:
    refused(machine, "install client --system", *WORKER)
    assert found(machine) == {ServiceKind.SERVICE_REFUSED.code}
    # as a person sees it, and in the whole report
    findings = json.loads(machine.run(machine.program, "doctor", "--json").stdout)["findings"]
    assert [row["code"] for row in findings if row["name"] == "service"] == [ServiceKind.SERVICE_REFUSED.code]
    machine.done(
        "sh", "-c", "mkdir -p /etc/credstore; umask 077; cat > /etc/credstore/meshd.join", text=token()
    )
    refused(machine, "restart client --system")
    until(lambda: found(machine) == {ServiceKind.SERVICE_RETRIES.code}, "it is not said to be tried again")


def test_a_service_of_a_user_who_does_not_linger(machine: Machine) -> None:
    machine.done("useradd", "--create-home", "ada")
    machine.done("loginctl", "enable-linger", "ada")
    until(lambda: machine.run("test", "-d", "/run/user/1001/systemd").returncode == 0, "ada has no manager")
    service(machine, "install relay", *_RELAY, user="ada")
    assert found(machine, user="ada") == {ServiceKind.SERVICE.code}
    machine.done("rm", "/var/lib/systemd/linger/ada")  # logind would end ada's manager, as at a logout
    assert found(machine, user="ada") == {ServiceKind.SERVICE_NOT_LINGERING.code}


def test_a_node_by_hand_in_the_home_of_a_service(computing_machine: Machine) -> None:
    machine = computing_machine
    service(machine, "install worker --system", *WORKER)
    assert found(machine) == {ServiceKind.SERVICE.code}
    machine.done("systemctl", "stop", "meshd-worker")
    by_hand = ("runuser", "-u", "meshd", "--", "env", f"MESHD_HOME={STATE}/worker", machine.program)
    machine.done("systemd-run", "--unit=by-hand", *by_hand, "worker", *HEAD)
    until(lambda: found(machine) == {ServiceKind.SERVICE_RIVAL.code}, "it is not found")
    machine.done("systemctl", "stop", "by-hand")
    machine.done("systemctl", "start", "meshd-worker")
    assert shown(machine, "meshd-worker", "ActiveState") == "active"
    assert found(machine) == {ServiceKind.SERVICE.code}


def test_every_kind_is_broken_here() -> None:
    others = {"REFUSED", "RETRIES", "NOT_LINGERING", "RIVAL"}
    bad = {kind.name.removeprefix("SERVICE_") for kind in ServiceKind if kind.value.state != "ok"}
    assert bad == others | {kind.name.removeprefix("SERVICE_") for kind in OF_A_RELAY}
