"""`meshd service` up to systemctl: options that go into units, what is refused, and how a restart waits."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from meshd.admin.api import DrainReply
from meshd.base.errors import UsageError, UserError
from meshd.cli import service
from meshd.cli.service import program, role_words
from meshd.service import control as control_module
from meshd.service.control import Launchd, ServiceControl, ServiceState, Systemd, check_user
from meshd.service.files import (
    Service,
    environment_of,
    launchd_environment,
    service_of,
    systemd_unit,
    unit_name,
)

from tests.tokens import token
from tests.unit.admin.fake import FakeControl

from .shell import meshd, refused

RUNNING = ServiceState("active", starts="at boot", pid=7, since=1)
FAILED = ServiceState("failed", why="this node is not in a mesh yet", exit_code=78)


@dataclass
class FakeService:
    """A service manager that does as it is told; the first of `states` is the present one."""

    role: str
    folder: Path
    states: list[ServiceState] = field(default_factory=lambda: [ServiceState("inactive")])
    done: list[str] = field(default_factory=list)
    user: int | None = None
    option: str = ""
    restart_command: str = "restart now"

    @property
    def name(self) -> str:
        return unit_name(self.role)

    @property
    def file(self) -> Path:
        return self.folder / self.name

    def text(self, service: Service) -> bytes:
        return systemd_unit(service, system=False).encode()

    def home(self) -> Path | None:
        if not self.file.exists():
            return None
        return Path(environment_of(self.file.read_text(encoding="utf-8"))["MESHD_HOME"])

    def installed(self) -> Service | None:
        return service_of(self.file.read_text(encoding="utf-8"), self.role)

    def install(self, text: bytes) -> None:
        self.file.write_bytes(text)
        self.done.append("install")

    def start(self) -> None:
        self.done.append("start")
        self.states.pop(0)

    def restart(self) -> None:
        self.done.append("restart")
        self.states.pop(0)

    def state(self) -> ServiceState:
        return self.states[0]

    def uninstall(self) -> None:
        self.done.append("uninstall")
        self.file.unlink()

    def logs(self, lines: int, *, follow: bool) -> Sequence[str] | None:
        return ["sh", "-c", f"exit {lines}"]


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeService]:
    """The services of this user, by role."""
    folder = tmp_path / "units"
    folder.mkdir()
    made = {role: FakeService(role, folder) for role in ("worker", "serve", "client", "relay")}

    def find(role: str, *, system: bool) -> ServiceControl:
        return replace(made[role], folder=tmp_path / "system") if system else made[role]

    monkeypatch.setattr(service, "find_control", find)
    monkeypatch.setattr(service, "check_user", lambda *, system: None)
    return made


def started(fake: FakeService, state: ServiceState = RUNNING) -> None:
    fake.states = [ServiceState("inactive"), state]


# -- options


def test_options_are_checked_and_their_paths_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.gguf", "keys", "node.toml", "lora.gguf"):
        (tmp_path / name).write_text("")
    line = "--config node.toml --model m.gguf --api-key-file keys --set serve.mmproj=m.gguf --name keys"
    more = "--ctx-size max --no-mdns -- --lora ./lora.gguf -fa on"
    words = role_words("serve", f"{line} {more}".split(), {})
    assert words[:2] == ["--config", str(tmp_path / "node.toml")]
    assert words[2:4] == ["--set", f"serve.mmproj={tmp_path / 'm.gguf'}"]
    given = dict(pairwise(words))
    assert (given["--model"], given["--api-key-file"]) == (str(tmp_path / "m.gguf"), str(tmp_path / "keys"))
    assert given["--name"] == "keys", "a name is no path, even if there is such a file"
    assert given["--ctx-size"] == "max" and "--no-mdns" in words
    assert words[words.index("--") :] == ["--", "--lora", str(tmp_path / "lora.gguf"), "-fa", "on"]


def test_what_is_written_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words mean the same a second time, from another directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").write_text("")
    once = role_words("worker", ["--model", "m.gguf", "smollm2", "--memory", "8G", "--device", "CPU"], {})
    monkeypatch.chdir("/")
    assert role_words("worker", once, {}) == once


def test_the_file_of_the_variable_counts(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[worker]\nmemory = '1G'\n")
    assert role_words("worker", [], {"MESHD_CONFIG": str(file)}) == ["--config", str(file)]


@pytest.mark.parametrize(
    "words", [["--join", token()], ["--join", "@invite.txt"], ["--set", "node.join=x"], [f"--join={token()}"]]
)
def test_no_secret_goes_into_a_unit(words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        role_words("client", words, {})
    assert token() not in caught.value.what + caught.value.hint
    assert "--join-file" in caught.value.hint or "node.join" in caught.value.what


@pytest.mark.parametrize(
    ("role", "words", "what"),
    [
        ("serve", [], "needs a model"),
        ("serve", ["--model", "/nonexistent/m.gguf"], "cannot read model file"),
        ("worker", ["--memory", "much"], "cannot use `--memory much`"),
        ("worker", ["--model", "a", "--", "-fa"], "unrecognized arguments"),
        ("worker", ["--portt", "1"], "unrecognized arguments"),
        ("relay", ["--listen", "nowhere"], "cannot use `--listen nowhere`"),
        ("relay", ["--rate", "fast"], "cannot use `--rate fast`"),
    ],
)
def test_options_that_a_role_does_not_take_are_refused_at_once(
    role: str, words: list[str], what: str
) -> None:
    with pytest.raises(UserError, match=what):
        role_words(role, words, {})


def test_the_program_is_the_command_that_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "meshd"
    script.write_text("")
    monkeypatch.setattr(sys, "argv", [str(script), "service"])
    assert program() == [sys.executable, "-P", "-m", "meshd"]
    script.chmod(0o755)
    assert program() == [str(script)]


# -- install


def test_install_writes_starts_and_says_what_runs(
    fakes: dict[str, FakeService], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "lingers", lambda: False)
    monkeypatch.setenv("MESHD_SPLIT", "always")
    invite = tmp_path / "invite.txt"
    invite.write_text(f"{token()}\n")
    started(fakes["worker"])
    ran = meshd("service", "install", "worker", "--join-file", str(invite), "--", "--memory", "8G")
    assert ran.code == 0, ran.err
    assert fakes["worker"].done == ["install", "start"]
    unit = fakes["worker"].file.read_text()
    assert "worker --memory 8G\n" in unit and token() not in unit
    assert environment_of(unit) == {"MESHD_HOME": str(home), "MESHD_CACHE": str(tmp_path / "cache")}
    assert (home / "join").read_text().strip() == token()
    assert (home / "join").stat().st_mode & 0o777 == 0o600 and home.stat().st_mode & 0o777 == 0o700
    assert not invite.exists(), "it has joined"
    assert "running    process 7, starts at boot" in ran.out
    assert "loginctl enable-linger" in ran.err and "MESHD_SPLIT" in ran.err and token() not in ran.err


def test_the_invite_stays_until_the_node_has_joined(
    fakes: dict[str, FakeService], home: Path, tmp_path: Path
) -> None:
    invite = tmp_path / "invite.txt"
    invite.write_text(token())
    started(fakes["client"], replace(FAILED, waits=True))
    ran = meshd("service", "install", "client", "--join-file", str(invite))
    assert ran.code == 1 and "failed, and will be started again: this node is not in a mesh yet" in ran.err
    assert invite.exists() and (home / "join").exists()
    assert meshd("service", "uninstall", "client").code == 0
    assert invite.exists() and not (home / "join").exists()


def test_a_slow_start_goes_on_without_the_verb(
    fakes: dict[str, FakeService], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "START_SECONDS", 0.0)
    started(fakes["worker"], ServiceState("activating"))
    ran = meshd("service", "install", "worker")
    assert ran.code == 0 and "starting" in ran.out


@pytest.mark.parametrize("text", ["", "nonsense", token()[:-4]])
def test_nothing_is_installed_with_a_bad_invite(
    fakes: dict[str, FakeService], tmp_path: Path, text: str
) -> None:
    invite = tmp_path / "invite.txt"
    invite.write_text(text)
    ran = meshd("service", "install", "worker", "--join-file", str(invite))
    assert ran.code == 1 and "invite" in ran.err
    assert fakes["worker"].done == [] and invite.exists()


def test_what_is_in_the_way_is_named(fakes: dict[str, FakeService], home: Path) -> None:
    started(fakes["worker"])
    assert meshd("service", "install", "worker").code == 0
    refused(meshd("service", "install", "worker", "--", "--memory", "8G"), 1, "differs", "uninstall worker")
    ran = meshd("service", "install", "client")
    refused(
        ran,
        1,
        "`meshd-worker.service` already uses",
        f"MESHD_HOME={home}-client meshd service install client",
    )
    started(fakes["relay"])
    assert meshd("service", "install", "relay").code == 0, "its state is a folder of its own in the home"


def test_a_node_that_runs_by_hand_is_not_doubled(
    fakes: dict[str, FakeService], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "lock_holder", lambda _home, *, purpose: 99)
    refused(meshd("service", "install", "worker"), 1, "(process 99)", "meshd stop")
    fakes["worker"].states = [replace(RUNNING, pid=99), replace(RUNNING, pid=99)]
    assert meshd("service", "install", "worker").code == 0, "that is the service itself"


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("status worker", 1, ("does not exist", "meshd service install worker")),
        ("restart cliente", 2, ("did you mean",)),
        ("start worker", 2, ("did you mean `meshd service",)),
        ("status worker -- --memory 8G", 2, ("takes no options of the role",)),
        ("install relay --join-file x", 2, ("joins no mesh",)),
        ("install worker --memory 8G", 2, ("options of the role go after `--`",)),
        ("logs worker --lines many", 1, ("does not exist",)),
    ],
)
def test_wrong_lines(fakes: dict[str, FakeService], line: str, code: int, words: tuple[str, ...]) -> None:
    refused(meshd("service", *line.split()), code, *words)


# -- look, restart


def test_whether_a_failure_is_tried_again_is_said_once_the_process_has_ended(
    fakes: dict[str, FakeService], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fakes["client"]
    ending = ServiceState("activating", changes=True, waits=True, why=FAILED.why)
    started(fake, ending)
    monkeypatch.setattr("time.sleep", lambda _seconds: fake.states.__setitem__(0, replace(FAILED, why="")))
    ran = meshd("service", "install", "client")
    assert ran.code == 1 and f"failed: {FAILED.why}" in ran.err and fake.states[0].state == "failed"


def test_status_says_what_runs_or_why_not(fakes: dict[str, FakeService], home: Path) -> None:
    fake = fakes["worker"]
    started(fake)
    meshd("service", "install", "worker")
    fake.states = [replace(RUNNING, restarts=2)]
    ran = meshd("service", "status", "worker")
    assert ran.code == 0 and "process 7" in ran.out and "2 restarts after failures" in ran.out
    fake.states = [FAILED]
    ran = meshd("service", "status", "worker")
    assert ran.code == 1 and "failed: this node is not in a mesh yet" in ran.err
    fake.states = [ServiceState("inactive")]
    ran = meshd("service", "status", "worker")
    assert ran.code == 1 and "is inactive" in ran.err and "meshd service restart worker" in ran.err
    assert meshd("service", "logs", "worker", "--lines", "3").code == 3


def test_a_restart_waits_until_nothing_runs(
    fakes: dict[str, FakeService], daemon: FakeControl, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_LOOK_SECONDS", 0.01)
    fake = fakes["worker"]
    started(fake)
    meshd("service", "install", "worker")
    fake.states = [RUNNING, RUNNING]
    daemon.drains = [
        DrainReply(requests=2, leases=1),
        DrainReply(requests=0, leases=1),
        DrainReply(requests=0, leases=0),
    ]
    ran = meshd("service", "restart", "worker")
    assert ran.code == 0 and "waiting for 2 requests and 1 lease to end" in ran.err
    assert daemon.asked == [("drain", True)] * 3
    assert fake.done[-1] == "restart"


def test_a_restart_that_waits_in_vain_changes_nothing(
    fakes: dict[str, FakeService], daemon: FakeControl, home: Path
) -> None:
    fake = fakes["serve"]
    fake.file.write_bytes(fake.text(Service("serve", ["/x"], {"MESHD_HOME": str(home)})))
    fake.states = [RUNNING]
    daemon.drains = [DrainReply(requests=1, leases=0)] * 100
    ran = meshd("service", "restart", "serve", "--timeout", "1")
    assert ran.code == 1 and "error: 1 request still running" in ran.err and "`restart now`" in ran.err
    assert daemon.asked[-1] == ("drain", False)
    assert fake.done == []


def test_a_node_that_does_not_answer_is_restarted_at_once(fakes: dict[str, FakeService], home: Path) -> None:
    fake = fakes["client"]
    fake.file.write_bytes(fake.text(Service("client", ["/x"], {"MESHD_HOME": str(home)})))
    fake.states = [RUNNING, RUNNING]
    ran = meshd("service", "restart", "client")
    assert ran.code == 0 and "without waiting" in ran.err
    assert fake.done == ["restart"]


# -- systemd and launchd


def test_without_systemd_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "_BOOTED", tmp_path / "none")
    refused(meshd("service", "install", "worker"), 1, "not started by systemd", "container", "wsl.conf")


def test_who_may_install_what(monkeypatch: pytest.MonkeyPatch) -> None:
    for uid, system, words in ((0, False, "add --system"), (1000, True, "sudo")):
        monkeypatch.setattr("os.geteuid", lambda uid=uid: uid)
        with pytest.raises(UserError) as caught:
            check_user(system=system)
        assert words in caught.value.hint
        check_user(system=not system)


def command(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> Path:
    """Put a stand-in for a program into PATH, which notes its arguments; return the notes."""
    notes = folder / f"{name}.notes"
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\necho "$@" >> "{notes}"\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return notes


def test_systemctl_is_asked_for_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "ActiveState=active SubState=running UnitFileState=enabled MainPID=7 NRestarts=1 StatusText=a=b"
    shown += " ExecMainStatus=0 ActiveEnterTimestamp=@1700000000 Job=0"
    script = f"case $* in *show*) printf '%s\\n' {shown};; esac"
    notes = command(tmp_path, monkeypatch, "systemctl", script)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "systemd").mkdir()
    control = Systemd("worker", system=False)
    assert control.file == tmp_path / "config/systemd/user/meshd-worker.service"
    control.install(control.text(Service("worker", ["/x"], {"MESHD_HOME": "/a b"})))
    assert control.home() == Path("/a b") and control.file.stat().st_mode & 0o777 == 0o644
    control.start()
    state = control.state()
    assert (state.state, state.pid, state.restarts, state.since, state.why) == (
        "active",
        7,
        1,
        1_700_000_000,
        "a=b",
    )
    control.restart()
    control.uninstall()
    assert not control.file.exists()
    asked = notes.read_text().splitlines()
    assert all(line.startswith("--user ") for line in asked)
    for words in ("enable --quiet", "start --no-block", "restart --no-block", "disable --now"):
        assert any(words in line for line in asked), words
    assert control.logs(5, follow=True)[:2] == ["journalctl", "--user"]


@pytest.mark.parametrize("there", [True, False])
def test_a_failure_of_systemctl_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if there:
        (tmp_path / "systemd").mkdir()
        command(tmp_path, monkeypatch, "systemctl", "echo 'Access denied' >&2; exit 1")
    with pytest.raises(UserError, match="Access denied" if there else "runs nothing for this user"):
        Systemd("worker", system=False).start()


def test_launchctl_loads_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as that can be seen without macOS: launchctl is a stand-in."""
    printed = "gui/501/org.meshd.worker = {\\n\\tstate = running\\n\\tpid = 42\\n\\tlast exit code = 1\\n}\\n"
    notes = command(tmp_path, monkeypatch, "launchctl", f"case $* in *print*) printf '{printed}';; esac")
    monkeypatch.setenv("HOME", str(tmp_path))
    control = Launchd("worker")
    assert control.file == tmp_path / "Library/LaunchAgents/org.meshd.worker.plist"
    control.install(control.text(Service("worker", ["/x y", "worker"], {"MESHD_HOME": "/a b"})))
    assert launchd_environment(control.file.read_bytes()) == {"MESHD_HOME": "/a b"}
    assert control.home() == Path("/a b")
    control.start()
    assert (control.state().is_running, control.state().pid, control.state().exit_code) == (True, 42, 1)
    control.uninstall()
    assert not control.file.exists()
    asked = notes.read_text()
    assert f"bootstrap {control._domain} {control.file}" in asked and f"bootout {control._domain}/" in asked


def test_the_verb_imports_no_daemon() -> None:
    script = "import sys, meshd.cli.service; print(*[m for m in sys.modules if m.startswith('meshd.daemon')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_usage_errors_have_a_code_of_their_own() -> None:
    with pytest.raises(UsageError):
        role_words("serve", [], {})


@pytest.mark.parametrize(
    ("state", "running", "failed"),
    [
        (ServiceState("active"), True, False),
        (
            ServiceState("active", changes=True, exit_code=1, why="of before"),
            False,
            False,
        ),  # before a restart
        (ServiceState("activating", changes=True), False, False),
        (ServiceState("activating", changes=True, why="no network"), False, True),
        (ServiceState("activating", waits=True, exit_code=1), False, True),
        (ServiceState("failed", changes=True, why="of before"), False, False),
        (ServiceState("failed"), False, True),
        (ServiceState("inactive", exit_code=1), False, True),
        (ServiceState("inactive"), False, False),
    ],
)
def test_a_state_is_judged_once_nothing_is_under_way(
    state: ServiceState, *, running: bool, failed: bool
) -> None:
    assert (state.is_running, state.has_failed) == (running, failed)
