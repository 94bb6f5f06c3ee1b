"""Steps with services on a booted machine, and what has to be true in between."""

import json
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.boot.machine import Machine

MODEL = "/srv/models/smollm2.gguf"
WAIT_SECONDS = 120.0
LOCAL = ("--no-mdns", "--no-portmap", "--stun", "none")
WORKER, HEAD = ("--listen", "127.0.0.1:17430", *LOCAL), ("--listen", "127.0.0.1:17431", *LOCAL)
API = "http://127.0.0.1:8090"
STATE = "/var/lib/meshd"


def service(machine: Machine, line: str, *options: str, user: str = "") -> str:
    """`meshd service …`, which has to succeed."""
    more = ("--", *options) if options else ()
    return machine.done(machine.program, "service", *line.split(), *more, user=user)


def refused(machine: Machine, line: str, *options: str, user: str = "") -> str:
    """Carry the message of a failed `meshd service …`."""
    more = ("--", *options) if options else ()
    done = machine.run(machine.program, "service", *line.split(), *more, user=user)
    assert done.returncode == 1, done.stdout
    return done.stderr


def of_node(machine: Machine, role: str, line: str) -> tuple[str, ...]:
    """The words for a command to the node of a service of the system, as the verb prints them."""
    return (
        "runuser",
        "-u",
        "meshd",
        "--",
        "env",
        f"MESHD_HOME={STATE}/{role}",
        machine.program,
        *line.split(),
    )


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


@dataclass(frozen=True, slots=True)
class Seconds:
    """Hold the seconds from power-on to the end of the boot, a served model, and an answer."""

    booted: float
    ready: float
    answered: float

    def __str__(self) -> str:
        return f"booted after {self.booted:.2f} s, ready {self.ready:.2f} s, answered {self.answered:.2f} s"


def answer_after_a_reboot(machine: Machine) -> Seconds:
    """Install a worker, and a head that joins it by an invite in a file; reboot, and ask."""
    service(machine, "install worker --system", *WORKER)
    invite = machine.done(*of_node(machine, "worker", "invite")).strip()
    machine.done("sh", "-c", 'umask 077; cat > "$1"', "sh", "/root/invite", text=invite)
    options = (*HEAD, "--model", MODEL, "--split", "always")
    service(machine, "install serve --system --join-file /root/invite", *options)
    until(lambda: is_ready(machine), "the model is not served")
    before = ask(machine)
    nothing_has(machine, invite)
    programs_are_confined_twice(machine)
    machine.power_off()
    began = time.monotonic()
    booted = machine.boot()
    until(lambda: is_ready(machine), "the model is not served after a reboot")
    ready = time.monotonic() - began
    assert ask(machine) == before
    return Seconds(booted, ready, time.monotonic() - began)


def restarts_are_gentle(machine: Machine) -> None:
    """Restart the head under an answer, and the worker under its lease."""
    before = ask(machine)
    an_answer_outlives_the_restart(machine)
    assert ask(machine) == before
    service(machine, "restart worker --system")  # its head gives the lease back, and takes another one
    until(lambda: is_ready(machine), "the model is not served after the worker's restart")
    assert ask(machine) == before


def uninstall_leaves_what_it_names(machine: Machine, kept: str) -> None:
    """Uninstall both, and remove what that names as left; only what is in `kept` is left of meshd."""
    service(machine, "uninstall serve --system")
    said = machine.run(machine.program, "service", "uninstall", "worker", "--system").stderr
    assert f"`{STATE}`" in said and "`/var/cache/meshd`" in said and "user `meshd`" in said
    machine.done("sh", "-c", said.partition(":\n")[2].replace("sudo ", ""))
    found = machine.upper.rglob("*meshd*")
    assert [path for path in found if machine.upper / kept not in path.parents and not _is_gone(path)] == []


def _is_gone(path: Path) -> bool:
    """Say whether this is an overlay's sign that a file of the root below was deleted."""
    return stat.S_ISCHR(path.lstat().st_mode)


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
