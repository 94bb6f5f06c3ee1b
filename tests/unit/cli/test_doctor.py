"""doctor and netcheck: what they find, with and without a daemon."""

import asyncio
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.admin.snapshot import netcheck_reply
from meshd.admin.status import HealthWarning
from meshd.base.resource_limits import MemoryAllowance
from meshd.build.pin import read_pin
from meshd.cli.doctor import _mapping
from meshd.daemon.native import TriedDevice, choose
from meshd.doctor import programs
from meshd.model.layer_work import USUAL
from meshd.netcheck.interface import NetReport
from meshd.portmap.interface import Language, MapState, MapStatus
from meshd.wire.netfacts import NetFacts

from tests.process.failing_disk import failing
from tests.unit.admin.fake import NETCHECK, FakeControl, full_status
from tests.unit.build.stored import install_wheel
from tests.unit.daemon.mesh_programs import named_programs, says
from tests.unit.daemon.test_native import CPU, CUDA, build, script

from .shell import meshd, refused

LACKS = "error while loading shared libraries: libcuda.so.1: cannot open shared object file: No such file"
FINDINGS = list[dict[str, str]]


@pytest.fixture(autouse=True)
def _stays_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is asked but by the tests of netcheck, which name theirs."""
    del home
    monkeypatch.setenv("MESHD_STUN", "none")


def _findings(*options: str) -> tuple[int, FINDINGS]:
    ran = meshd("doctor", "--json", *options)
    found: FINDINGS = json.loads(ran.out)["findings"]
    return ran.code, found


def test_without_a_build_it_says_how_to_get_one(home: Path) -> None:
    code, found = _findings()
    assert code == 1
    assert (found[0]["name"], found[0]["state"]) == ("home", "ok")
    [missing] = [one for one in found if one["code"] == "native_missing"]
    assert (missing["name"], missing["state"]) == ("llama.cpp", "error")
    assert "meshd native build" in missing["hint"] and missing["meaning"]
    assert (found[-1]["name"], found[-1]["state"], found[-1]["what"]) == ("daemon", "ok", "not running")
    assert not home.exists(), "it leaves nothing behind"


@pytest.mark.parametrize(("machine", "is_told"), [("x86_64", False), ("riscv64", True)])
def test_a_compiler_is_missed_only_where_there_is_no_wheel(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, *, is_told: bool
) -> None:
    del home
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    assert ("compiler" in [one["name"] for one in _findings()[1]]) is is_told


def test_a_memory_limit_of_this_node_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del home
    limit = MemoryAllowance(700 << 20, 640 << 20, "/sys/fs/cgroup")
    monkeypatch.setattr("meshd.doctor.machine.memory_limit", lambda: limit)
    [found] = [one for one in _findings()[1] if one["name"] == "memory limit"]
    assert found["what"] == "700 MiB, 640 MiB free (`/sys/fs/cgroup`)"


@pytest.mark.parametrize(("sources", "state"), [(read_pin().sources_sha256, ""), ("f" * 64, "warning")])
def test_a_wheel_that_is_not_used_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: str, state: str
) -> None:
    del home
    monkeypatch.syspath_prepend(tmp_path)
    install_wheel(tmp_path, sources=sources)
    (build,) = [one for one in _findings()[1] if one["name"] == "llama.cpp"]
    assert build["state"] == ("error" if state else "ok")
    found = [one for one in _findings()[1] if one["name"] == "meshd-native"]
    assert [one["state"] for one in found] == ([state] if state else [])
    assert all("not used: it has llama.cpp" in one["what"] and one["hint"] for one in found)


def test_builds_that_lost_are_named_with_the_reason(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del home
    natives = (
        script(tmp_path / "old", "CUDA0", 1, listing=f"echo '{LACKS}' >&2; exit 127"),
        script(tmp_path / "cuda", "CUDA0", 1, trial=f"wrong {USUAL[0]} 1.0 0.1"),
        script(tmp_path / "vulkan", "Vulkan0", 1_000_000),
        script(tmp_path / "cpu", "CPU", 3_000_000),
    )
    monkeypatch.setattr("meshd.doctor.programs.natives_here", lambda paths: natives)
    found = [one for one in _findings()[1] if one["name"] in ("build", "device")]
    assert [(one["name"], one["state"]) for one in found] == [
        ("device", "ok"), ("build", "warning"), ("build", "warning"), ("build", "ok")
    ]  # fmt: skip
    used, old, cuda, cpu = (f"{one['what']}; {one['hint']}" for one in found)
    assert used.startswith("Vulkan0, ") and "reads weights at" in used
    assert "old` is not used: `mesh-server` lists no devices" in old and "install NVIDIA's driver" in old
    assert "cuda` is not used: CUDA0: it computes mul_mat" in cuda and "another driver" in cuda
    assert "CPU there takes 3.0 times as long" in cpu


def test_of_a_busy_gpu_no_speed_is_compared() -> None:
    cpu = build("cpu", TriedDevice(CPU, "", 20e9))
    busy = build("gpu", TriedDevice(CUDA, "", 1e9), TriedDevice(replace(CUDA, name="CUDA1"), "", 0.0))
    assert choose([cpu, busy]) is busy
    assert programs._unused(cpu, busy).what == "`cpu` is not used: not all devices could be timed now"


@pytest.mark.parametrize(
    ("commit", "pin", "state"),
    [
        (read_pin().commit[:9], "unknown", "ok"),
        ("unknown", read_pin().commit, "ok"),
        ("unknown", "unknown", "warning"),
        ("0123abcd", "unknown", "error"),
    ],
    ids=["that commit", "our own", "no commit", "another commit"],
)
def test_the_programs_say_what_they_are(tmp_path: Path, commit: str, pin: str, state: str) -> None:
    native = named_programs(tmp_path, version=says(commit=commit), pin=pin)
    found = asyncio.run(programs.look_at_programs(native, tmp_path))
    assert (found.name, found.state) == ("backend", state), found
    assert str(native.llama_server) in found.what
    assert bool(found.hint) == (state != "ok")


@pytest.mark.parametrize(
    ("number", "stage"), [(errno.EROFS, "open"), (errno.ENOSPC, "write"), (errno.EIO, "sync")]
)
@pytest.mark.parametrize("made", [True, False])
def test_a_home_that_takes_nothing(home: Path, number: int, stage: str, made: bool) -> None:
    if made:
        home.mkdir(mode=0o700)
    before = sorted(home.parent.rglob("*"))
    with failing(lambda path: path.name.startswith(".meshd-doctor-"), number, stage) as disk:
        code, found_all = _findings()
    found = next(one for one in found_all if one["name"] == "home")
    assert disk.hits and code == 1
    assert (found["name"], found["state"]) == ("home", "error")
    assert str(home) in found["what"] and os.strerror(number).lower() in found["what"]
    assert "free space" in found["hint"]
    assert sorted(home.parent.rglob("*")) == before


def test_a_home_that_is_a_file(home: Path) -> None:
    home.write_text("")
    code, found = _findings()
    assert code == 1
    [fault] = [one for one in found if one["name"] == "home"]
    assert fault["what"] == f"`{home}` cannot be written: not a directory" and "MESHD_HOME" in fault["hint"]


def test_a_folder_without_a_llama_server(tmp_path: Path) -> None:
    (tmp_path / "mesh-server").write_text("")
    ran = meshd("doctor", "--native-bin", str(tmp_path))
    assert ran.code == 1
    assert f"error    llama.cpp    `{tmp_path}` has no `llama-server`" in ran.out
    assert ran.out.splitlines()[-1] == "1 error to mend before this node works"


def test_programs_that_are_none(tmp_path: Path) -> None:
    for name in ("llama-server", "mesh-server", "libggml-mesh.so"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n")
        (tmp_path / name).chmod(0o700)
    code, found = _findings("--native-bin", str(tmp_path))
    assert code == 1
    states = {one["name"]: one["state"] for one in found if one["name"] in ("home", "llama.cpp", "daemon")}
    assert states == {"home": "ok", "llama.cpp": "ok", "daemon": "ok"}
    assert [one["name"] for one in found if one["state"] == "error"] == ["backend"], (
        "not what follows from it"
    )


@pytest.mark.parametrize(
    ("parts", "state", "what"),
    [
        (("Landlock (version 7)", "seccomp"), "ok", "confined by Landlock (version 7) and seccomp"),
        (("seccomp",), "warning", "confined by seccomp only on this system"),
        ((), "warning", "not confined on this system"),
    ],
)
def test_a_sandbox_is_as_good_as_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...], state: str, what: str
) -> None:
    monkeypatch.setattr("meshd.doctor.machine.confines_with", lambda: parts)
    assert _sandbox(tmp_path) == (state, f"native programs are {what}")


def test_a_sandbox_that_is_off_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_SANDBOX", "off")
    assert _sandbox(tmp_path) == ("warning", "native programs are not confined: `node.sandbox` is off")


@pytest.mark.parametrize(("setting", "state"), [("auto", "warning"), ("on", "ok")])
def test_macos_confines_only_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, state: str
) -> None:
    monkeypatch.setenv("MESHD_SANDBOX", setting)
    monkeypatch.setattr("meshd.doctor.machine.IS_MACOS", True)
    found, _ = _sandbox(tmp_path)
    assert found == state


def _sandbox(folder: Path) -> tuple[object, object]:
    """Return state and text of what doctor finds about the sandbox."""
    for name in ("llama-server", "mesh-server", "libggml-mesh.so"):
        (folder / name).write_text("#!/bin/sh\nexit 3\n")
        (folder / name).chmod(0o700)
    [found] = [one for one in _findings("--native-bin", str(folder))[1] if one["name"] == "sandbox"]
    return found["state"], found["what"]


@pytest.mark.parametrize("severity", ["info", "warning", "error"])
def test_what_the_daemon_warns_of(daemon: FakeControl, severity: str) -> None:
    warning = HealthWarning(code="native_mismatch", severity=severity, what="it differs", hint="do it")  # type: ignore[arg-type]
    daemon.state = replace(full_status(), warnings=(warning,))
    _, found = _findings()
    [one] = [one for one in found if one["code"] == "native_mismatch"]
    assert (one["name"], one["state"]) == ("version", severity)
    assert (one["what"], one["hint"]) == ("it differs", "do it")


def test_for_a_person(daemon: FakeControl) -> None:
    ran = meshd("netcheck")
    assert (ran.code, ran.err) == (0, "") and daemon.asked == ["netcheck"]
    for words in (
        "UDP           works",
        "symmetric, counting, ports count by 2",
        "20.1.0.2:17430/tcp/mapped by pcp, seen to work",
        "any peer can reach this node",
        "stun.example:3478",
        "5 min ago",
        "warning: the NAT is hard [symmetric]",
        "hint: a relay",
    ):
        assert words in ran.out, words


def test_for_a_script(daemon: FakeControl) -> None:
    ran = meshd("netcheck", "--json")
    assert ran.code == 0 and daemon.asked == ["netcheck"]
    body = json.loads(ran.out)
    assert body["nat"]["mapping"] == "address_port" and body["port_mapping"]["verified"] is True
    assert body["problems"][0]["code"] == "symmetric" and body["daemon"] is True


def test_an_error_is_an_exit_code(daemon: FakeControl) -> None:
    """As of `meshd doctor`; a warning is none."""
    [problem] = NETCHECK.problems
    daemon.network = replace(NETCHECK, problems=(problem, replace(problem, severity="error")))
    ran = meshd("netcheck")
    assert ran.code == 1 and "error: the NAT is hard" in ran.out
    assert meshd("netcheck", "--json").code == 1


def test_without_a_daemon_it_checks_by_itself() -> None:
    ran = meshd("netcheck", "--json", "--stun", "none", "--no-portmap")
    assert ran.code == 0 and "checking without a running node" in ran.err
    body = json.loads(ran.out)
    assert (body["udp"], body["daemon"], body["port_mapping"]["state"]) == ("unknown", False, "off")
    assert [problem["code"] for problem in body["problems"]] == ["no_servers"]


def test_servers_that_are_given_are_asked_from_here(daemon: FakeControl) -> None:
    ran = meshd("netcheck", "--stun", "none", "--no-portmap")
    assert ran.code == 0 and not daemon.asked
    assert "no_servers" in ran.out and "disabled" in ran.out


def test_a_relay_that_cannot_be_read() -> None:
    refused(meshd("netcheck", "--stun", "none", "--no-portmap", "--relay", "nonsense"), 1, "nonsense")


STATUS = MapStatus(state=MapState.SILENT, why="nobody answers")


@pytest.mark.parametrize(
    ("router", "words"),
    [
        (STATUS, "none: nobody answers"),
        (replace(STATUS, state=MapState.ASKING), "asking the router"),
        (replace(STATUS, state=MapState.OFF), "disabled"),
        (
            replace(STATUS, state=MapState.OFFERED, gateway="10.0.0.1", language=Language.UPNP),
            "10.0.0.1 offers it by upnp",
        ),
        (replace(STATUS, state=MapState.MAPPED, external="20.1.0.2", verified=False), "not reached"),
    ],
)
def test_what_the_router_does(router: MapStatus, words: str) -> None:
    report = NetReport(facts=NetFacts(), at=5.0, seconds=1.0, servers=())
    reply = netcheck_reply(report, router, now=10.0, daemon=True)
    assert reply.age_s == 5.0 and words in _mapping(reply.port_mapping)
    assert NETCHECK.daemon
