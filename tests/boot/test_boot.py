"""meshd as services of a machine that systemd boots: over reboots and failures, until nothing is left."""

import json
import time
from collections.abc import Callable

import pytest
from meshd.base.service_manager import FINAL_EXIT_CODE
from meshd.cli.service_files import CREDENTIAL, Service, environment_of, systemd_unit

from tests.boot.conftest import MODEL
from tests.boot.machine import MESHD, Machine
from tests.tokens import token

WAIT_SECONDS = 120.0
LOCAL = ("--no-mdns", "--no-portmap", "--stun", "none")
WORKER, HEAD = ("--listen", "127.0.0.1:17430", *LOCAL), ("--listen", "127.0.0.1:17431", *LOCAL)
API = "http://127.0.0.1:8090"
STATE = "/var/lib/meshd"


def service(machine: Machine, line: str, *options: str, user: str = "") -> str:
    """`meshd service …`, which has to succeed."""
    more = ("--", *options) if options else ()
    return machine.done(MESHD, "service", *line.split(), *more, user=user)


def refused(machine: Machine, line: str, *options: str, user: str = "") -> str:
    """What `meshd service …` says when it fails."""
    more = ("--", *options) if options else ()
    done = machine.run(MESHD, "service", *line.split(), *more, user=user)
    assert done.returncode == 1, done.stdout
    return done.stderr


def of_node(role: str, line: str) -> tuple[str, ...]:
    """The words for a command to the node of a service of the system, as the verb prints them."""
    return ("runuser", "-u", "meshd", "--", "env", f"MESHD_HOME={STATE}/{role}", MESHD, *line.split())


def until(true: Callable[[], bool], what: str) -> float:
    """Wait for something to be true; return the seconds that it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() < began + WAIT_SECONDS, what
        time.sleep(0.1)
    return time.monotonic() - began


def is_ready(machine: Machine) -> bool:
    return machine.run("curl", "-sf", f"{API}/health").returncode == 0


def ask(machine: Machine, tokens: int = 8) -> str:
    """The text of an answer."""
    body = {
        "messages": [{"role": "user", "content": "Count to ten."}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    shown = machine.done("curl", "-sf", f"{API}/v1/chat/completions", "--json", json.dumps(body))
    text: str = json.loads(shown)["choices"][0]["message"]["content"]
    return text


def shown(machine: Machine, unit: str, name: str) -> str:
    return machine.done("systemctl", "show", "--value", f"--property={name}", unit).strip()


def test_after_a_reboot_there_is_an_answer_by_nobodys_hand(
    computing_machine: Machine, record_property: Callable[[str, object], None]
) -> None:
    """And a restart is gentle, and after the last service nothing is left but what `uninstall` names."""
    machine = computing_machine
    # A worker, and a head that joins it by an invite in a file.
    service(machine, "install worker --system", *WORKER)
    invite = machine.done(*of_node("worker", "invite")).strip()
    machine.done("sh", "-c", 'umask 077; cat > "$1"', "sh", "/root/invite", text=invite)
    options = (*HEAD, "--model", MODEL, "--split", "always")
    service(machine, "install serve --system --join-file /root/invite", *options)
    until(lambda: is_ready(machine), "the model is not served")
    before = ask(machine)
    nothing_has(machine, invite)
    programs_are_confined_twice(machine)
    # Off and on again.
    machine.power_off()
    began = time.monotonic()
    booted = machine.boot()
    until(lambda: is_ready(machine), "the model is not served after a reboot")
    ready = time.monotonic() - began
    assert ask(machine) == before
    answered = time.monotonic() - began
    record_property("seconds until booted, ready, answered", (booted, ready, answered))
    print(f"booted after {booted:.2f} s, ready {ready:.2f} s, answered {answered:.2f} s")  # noqa: T201
    # Restarts.
    an_answer_outlives_the_restart(machine)
    assert ask(machine) == before
    service(machine, "restart worker --system")  # its head gives the lease back, and takes another one
    until(lambda: is_ready(machine), "the model is not served after the worker's restart")
    assert ask(machine) == before
    # What is left is what `uninstall` names.
    service(machine, "uninstall serve --system")
    said = machine.run(MESHD, "service", "uninstall", "worker", "--system").stderr
    assert f"`{STATE}`" in said and "`/var/cache/meshd`" in said and "user `meshd`" in said
    machine.done("sh", "-c", said.partition(":\n")[2].replace("sudo ", ""))
    written = machine.folder / "upper"
    assert [path for path in written.rglob("*meshd*") if written / "opt" not in path.parents] == []


def nothing_has(machine: Machine, invite: str) -> None:
    """No file, journal, command line or environment has the invite."""
    left = 'grep -rlsF -- "$1" /etc /home /root /run /srv /tmp /var; journalctl --no-pager | grep -cF -- "$1"'
    assert machine.run("sh", "-c", left, "sh", invite).stdout.split() == ["0"]
    processes = machine.done("sh", "-c", "cat /proc/*/cmdline /proc/*/environ 2> /dev/null | tr '\\0' '\\n'")
    assert "llama-server" in processes and invite not in processes


def programs_are_confined_twice(machine: Machine) -> None:
    """The native programs have the filters of the unit, and the one of their own."""
    daemon = filters_of(machine, "systemctl show --value -p MainPID meshd-worker")
    assert daemon > 0
    for name in ("mesh-server", "llama-server"):
        assert filters_of(machine, f"pgrep -o -x {name}") == daemon + 1


def filters_of(machine: Machine, which: str) -> int:
    """The number of seccomp filters of a process, which may have no rights."""
    status = machine.done("sh", "-c", f"cat /proc/$({which})/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (fields["NoNewPrivs"], int(fields["CapEff"], 16)) == ("1", 0)
    return int(fields["Seccomp_filters"])


def an_answer_outlives_the_restart(machine: Machine) -> None:
    """A restart of the head lets a running answer end."""
    body = {"messages": [{"role": "user", "content": "Tell a long story."}], "ignore_eos": True}
    body |= {"max_tokens": 200, "stream": True}
    stream = 'curl -sN "$1/v1/chat/completions" --json "$2" > /root/answer; echo $? > /root/code'
    machine.done("systemd-run", "--unit=asking", "sh", "-c", stream, "sh", API, json.dumps(body))
    until(lambda: machine.run("grep", "-q", "content", "/root/answer").returncode == 0, "no answer has begun")
    pid = shown(machine, "meshd-serve", "MainPID")
    service(machine, "restart serve --system")
    until(lambda: machine.run("test", "-s", "/root/code").returncode == 0, "the answer does not end")
    answer = machine.done("cat", "/root/answer")
    assert answer.rstrip().endswith("data: [DONE]") and '"finish_reason":"length"' in answer, answer[-400:]
    assert shown(machine, "meshd-serve", "MainPID") != pid
    until(lambda: is_ready(machine), "the model is not served after a restart")


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
        lambda: machine.run(MESHD, "service", "status", "relay", user="ada").returncode == 0,
        "it does not start",
    )
    assert "starts     at boot" in service(machine, "status relay", user="ada")
    restarts = "from meshd.cli.service_control import restart_commands; print(restart_commands())"
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
    invite = machine.done(*of_node("worker", "invite"))
    machine.done("sh", "-c", f"mkdir -p /etc/credstore; umask 077; cat > {CREDENTIAL}", text=invite)
    service(machine, "install client --system", *HEAD)
    assert machine.run("test", "-e", CREDENTIAL).returncode == 1
    status = json.loads(machine.done(*of_node("client", "status --json")))
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
        text="[Service]\nWatchdogSec=2s\nRestartSec=100ms\nTimeoutAbortSec=2s\n",
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
