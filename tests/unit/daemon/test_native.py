"""The programs of llama.cpp: what they report is checked, and of several builds the best is used."""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.daemon import native as daemon_native
from meshd.daemon.native import (
    LlamaVersion,
    TriedBuild,
    TriedDevice,
    asked_to_seal,
    check_native,
    check_native_once,
    choose,
    choose_build,
    kept_choice,
    parse_version,
    try_build,
)
from meshd.devices import devices
from meshd.devices.device_trial import AGAIN_SECONDS, TrialCache
from meshd.devices.interface import NativeBuild
from meshd.model.layer_work import USUAL
from meshd.process.interface import ChildSpec, Ended, Sandbox
from meshd.process.run import run_to_end
from meshd.wire.lease import OfferedDevice
from meshd.wire.versions import NativeVersion

from tests.conformance.run import run
from tests.unit.daemon.mesh_programs import PIN, described, named_programs, says

CPU = OfferedDevice("CPU", "cpu", "a processor", 5, 10)
CUDA = OfferedDevice("CUDA0", "gpu", "a card", 5, 10, "card")
OTHER = replace(CUDA, name="CUDA1", card="another card")
VULKAN = replace(CUDA, name="Vulkan0")
RIGHT = f"tried {len(USUAL)}"


def _check(native: NativeBuild, logs: Path, *, head: bool = True) -> NativeBuild:
    return run(check_native(native, pin=PIN, logs=logs, head=head))


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("version: 0.5.0-dev (build 0, commit unknown)", LlamaVersion("0.5.0-dev", "unknown")),
        ("version: 0.5.0 (build 8123, commit 0c1e57098)", LlamaVersion("0.5.0", "0c1e57098")),
        ("version: 5123 (0c1e5709)", LlamaVersion("5123", "0c1e5709")),
        ("version: 0 (unknown)", LlamaVersion("0", "unknown")),
        ("version: 0.5.0 (build 1, commit v0.5.0)", LlamaVersion("0.5.0", "unknown")),
        ("llama-server 5", None),
    ],
)
def test_what_llama_server_says(line: str, version: LlamaVersion | None) -> None:
    assert parse_version(["some log line", line, "built with GNU"]) == version


@pytest.mark.parametrize(
    ("version", "host", "pin"),
    [
        (says(PIN.release, PIN.commit[:7]), "unknown", PIN.commit),
        (says(commit=PIN.commit), PIN.version, PIN.commit),
        (f"version: 8123 ({PIN.commit[:9]})", "unknown", PIN.commit),
        (says(), PIN.version, "unknown"),
        (says(PIN.release), "unknown", "unknown"),
    ],
    ids=["release", "shared", "older words", "shared without git", "static without git"],
)
def test_a_llama_server_of_that_release_is_used(tmp_path: Path, version: str, host: str, pin: str) -> None:
    native = _check(named_programs(tmp_path, version=version, host=host), tmp_path)
    assert native.version.pin == pin


@pytest.mark.parametrize(
    ("version", "host", "what"),
    [
        (says(commit="abcdef123"), "unknown", "is llama.cpp 0.5.0-dev (commit abcdef123)"),
        (says("0.1.0-dev"), "unknown", "is llama.cpp 0.1.0-dev (commit unknown)"),
        ("version: 0 (unknown)", "unknown", "is llama.cpp 0 (commit unknown)"),
        ("error: unknown argument", "unknown", "does not say which llama.cpp it is: error"),
        (says(), "0.20.0", f"has ggml 0.20.0, meshd's module is for {PIN.version}"),
        (says(), "", "does not load meshd's module"),
    ],
    ids=["commit", "release", "before releases", "no version", "its ggml", "no module"],
)
def test_another_llama_server_is_refused(tmp_path: Path, version: str, host: str, what: str) -> None:
    native = named_programs(tmp_path, version=version, host=host)
    with pytest.raises(UserError) as caught:
        _check(native, tmp_path)
    assert str(native.llama_server) in caught.value.what
    assert what in caught.value.what
    assert "omit --native-bin" in (caught.value.hint or "")
    assert _check(native, tmp_path, head=False).llama_server == native.llama_server, "of no use there"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (described(protocol=1), "does not speak version"),
        (described(ggml="0.20.0"), "was made for ggml 0.20.0"),
        ("Segmentation fault", "Segmentation fault"),
        ("[1]", "does not speak version"),
    ],
)
@pytest.mark.parametrize("which", ["server", "module"])
def test_programs_of_ours_that_are_others(tmp_path: Path, which: str, text: str, what: str) -> None:
    server, module = (text if one == which else None for one in ("server", "module"))
    native = named_programs(tmp_path, version=says(), server=server, module=module)
    with pytest.raises(UserError) as caught:
        _check(native, tmp_path)
    named = tmp_path / ("mesh-server" if which == "server" else "libggml-mesh.so")
    assert f"`{named}`" in caught.value.what
    assert what in caught.value.what
    assert "run `meshd native build`" in (caught.value.hint or "")


def test_a_worker_asks_its_own_program_alone(tmp_path: Path) -> None:
    native = named_programs(tmp_path, version="none", module="none")
    assert _check(native, tmp_path, head=False).version.pin == PIN.commit


def _server(folder: Path, script: str) -> NativeBuild:
    native = named_programs(folder, version="none")
    native.mesh_server.write_text(f"#!/bin/sh\n{script}\n")
    return native


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"seals": true}', True),
        ('{"seals": false}', False),
        ('{"seals": 1}', False),
        ("{}", False),
        ("[]", False),
        ("no JSON", False),
        ("", False),
    ],
)
def test_mesh_server_is_asked_whether_it_seals(tmp_path: Path, text: str, expected: bool) -> None:
    native = _server(tmp_path, f"[ \"$*\" = --seals ] && echo '{text}'; exit 0")
    assert run(asked_to_seal(native, run_to_end, tmp_path)) == replace(native, seals=expected)


def test_it_is_asked_anew_at_each_start(tmp_path: Path) -> None:
    """A library to seal with may have been installed, or removed."""
    native = _server(tmp_path, f"cat {tmp_path}/answer")
    for seals in (True, False, True):
        (tmp_path / "answer").write_text(json.dumps({"seals": seals}))
        native = run(asked_to_seal(native, run_to_end, tmp_path))
        assert native.seals is seals


@pytest.mark.parametrize(
    "script",
    ["echo '{\"seals\": true}'; exit 3", "kill -ABRT $$", "echo '{\"seals\": true}'; exec sleep 1000"],
)
def test_a_library_that_crashes_or_hangs_it_leaves_a_node_that_does_not_seal(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_native, "_SEALS_SECONDS", 1.0)
    native = _server(tmp_path, script)
    assert run(asked_to_seal(replace(native, seals=True), run_to_end, tmp_path)) == native


def test_it_is_asked_in_the_sandbox_in_which_it_will_run(tmp_path: Path) -> None:
    asked: list[ChildSpec] = []

    async def ask(spec: ChildSpec) -> Ended:
        asked.append(spec)
        raise UserError("no", hint="none")

    native = _server(tmp_path, "exit 0")
    assert not run(asked_to_seal(native, ask, tmp_path)).seals
    assert [spec.sandbox for spec in asked] == [Sandbox()]


@pytest.mark.parametrize("program", ["mesh-server", "llama-server"])
def test_a_program_that_fails(tmp_path: Path, program: str) -> None:
    native = named_programs(tmp_path, version=says())
    (tmp_path / program).write_text("#!/bin/sh\necho no such library\nexit 3\n")
    with pytest.raises(UserError, match=r"failed \(exit code 3\): no such library"):
        _check(native, tmp_path)


@pytest.mark.parametrize("program", ["mesh-server", "llama-server"])
def test_a_program_that_does_not_end(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_native, "SAY_SECONDS", 4.0)
    native = named_programs(tmp_path, version=says())
    (tmp_path / program).write_text("#!/bin/sh\necho the driver is asked\nexec sleep 1000\n")
    with pytest.raises(UserError, match=r"did not end within 4 s: the driver is asked"):
        _check(native, tmp_path)


def test_all_programs_are_asked_at_once(tmp_path: Path) -> None:
    """Each waits for the others to be there: asked in turn, none would end."""
    native = named_programs(tmp_path, version=says(commit=PIN.commit))
    for program in (native.llama_server, native.mesh_server):
        script = program.read_text().removeprefix("#!/bin/bash\n")
        met = f"touch {tmp_path}/here.$$; until [ $(ls {tmp_path}/here.* | wc -l) = 4 ]; do sleep 0.01; done"
        program.write_text(f"#!/bin/bash\n{met}\n{script}")
    assert _check(native, tmp_path).version.pin == PIN.commit


def test_of_two_faults_the_first_is_told(tmp_path: Path) -> None:
    native = named_programs(tmp_path, version=says("0.1.0"), server=described(protocol=1))
    with pytest.raises(UserError, match="mesh-server` does not speak version"):
        _check(native, tmp_path)


class Remembering:
    """The programs of a start, and how often one was asked. The scripts pass for programs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **named: str) -> None:
        monkeypatch.setattr(daemon_native, "_BINARIES", (b"#!/bin/bash", b"a module"))
        for name in daemon_native.SEARCHED_FIRST:
            monkeypatch.delenv(name, raising=False)
        self.folder, self.asked, self.machine, self.head = folder, folder / "asked", "since noon", True
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.native = named_programs(self.bin, **({"version": says(commit=PIN.commit)} | named))
        self.native.module.write_bytes(b"a module")
        for program in (self.native.llama_server, self.native.mesh_server):
            program.write_text(program.read_text().replace("\n", f"\necho x >>{self.asked}\n", 1))

    def start(self) -> int:
        """Start, and return how many programs that asks."""
        self.asked.write_text("")
        passed = TrialCache(self.folder / "native-checks")
        run(
            check_native_once(
                self.native,
                pin=PIN,
                logs=self.folder,
                head=self.head,
                passed=passed,
                machine=self.machine,
            )
        )
        return len(self.asked.read_text().split())


def test_a_second_start_asks_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Remembering(tmp_path, monkeypatch)
    assert [node.start(), node.start()] == [4, 0]
    node.head = False
    assert [node.start(), node.start()] == [1, 0], "a worker needs one of them"
    node.machine = "since one o'clock"
    assert node.start() == 1


def _touched(node: Remembering) -> None:
    os.utime(node.native.llama_server, ns=(1, 1))


def _replaced(node: Remembering) -> None:
    """Replace the file by another one of the same size and time."""
    server = node.native.llama_server
    before = server.stat()
    other = server.with_suffix(".new")
    other.write_bytes(server.read_bytes())
    other.chmod(0o700)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(server)


def _other_module(node: Remembering) -> None:
    node.native.module.write_bytes(b"a module of today")


def _other_library(node: Remembering) -> None:
    (node.bin / "libggml-base.so").write_bytes(b"a module")


@pytest.mark.parametrize("change", [_touched, _replaced, _other_module, _other_library])
def test_what_was_changed_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Remembering], None]
) -> None:
    node = Remembering(tmp_path, monkeypatch)
    assert node.start() == 4
    change(node)
    assert [node.start(), node.start()] == [4, 0]


def test_a_library_of_the_program_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Remembering(tmp_path, monkeypatch)
    with node.native.llama_server.open("a") as program:
        program.write("# libllama.so.0\n")
    assert [node.start(), node.start()] == [4, 4], (
        "it is somewhere else: that it stays as it is, nobody knows"
    )
    library = tmp_path / "lib" / "libllama.so.0"
    library.parent.mkdir()
    library.write_bytes(b"a module")
    assert [node.start(), node.start()] == [4, 0]
    library.write_bytes(b"a module of today")
    assert [node.start(), node.start()] == [4, 0]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert node.start() == 4


def test_a_script_is_always_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Remembering(tmp_path, monkeypatch)
    monkeypatch.setattr(daemon_native, "_BINARIES", (b"\x7fELF",))
    assert [node.start(), node.start()] == [4, 4]


def test_a_program_that_does_not_know_its_commit_is_always_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And warned of."""
    node = Remembering(tmp_path, monkeypatch, version=says())
    assert [node.start(), node.start()] == [4, 4]


def test_a_fault_is_found_at_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Remembering(tmp_path, monkeypatch, version=says("0.1.0"))
    for _ in range(2):
        with pytest.raises(UserError, match=r"is llama\.cpp"):
            node.start()


def build(name: str, *devices: TriedDevice, why_not: str = "") -> TriedBuild:
    program = Path(name) / "mesh-server"
    version = NativeVersion("mesh 5", "pin", "sources", name)
    return TriedBuild(NativeBuild(program, program, program, version, "7"), devices, why_not=why_not)


def test_the_fastest_that_computes_right_is_chosen() -> None:
    cpu = build("cpu", TriedDevice(CPU, "", 20e9))
    vulkan = build("vulkan", TriedDevice(VULKAN, "", 800e9))
    wrong = build("cuda", TriedDevice(CUDA, "it computes rope wrong", 0.0))
    broken = build("hip", why_not="`mesh-server` lists no devices")
    slow = build("lavapipe", TriedDevice(VULKAN, "", 1e9))
    assert choose([wrong, broken, cpu, vulkan]) is vulkan
    assert choose([slow, cpu]) is cpu, "a GPU that is none"
    assert choose([broken, wrong]) is broken, "of none that computes, the usual one, which says so"
    assert choose([cpu, replace(cpu)]) is cpu


def test_where_a_speed_is_unknown_the_usual_order_decides() -> None:
    full = build("cuda", TriedDevice(CUDA, "", 0.0))
    cpu = build("cpu", TriedDevice(CPU, "", 20e9))
    assert choose([full, cpu]) is full, "a card without free memory is no slower for that"
    vulkan = build("vulkan", TriedDevice(VULKAN, "", 800e9))
    assert choose([full, vulkan]) is full and choose([vulkan, full]) is vulkan


@pytest.mark.parametrize(
    "wheel",
    [
        [TriedDevice(CUDA, "", 0.0)],
        [TriedDevice(CUDA, "", 2e12), TriedDevice(OTHER, "", 0.0)],
        [TriedDevice(CUDA, "", 1e9), TriedDevice(OTHER, "", 0.0)],
    ],
)
def test_a_busy_gpu_does_not_lose_to_a_cpu(wheel: list[TriedDevice]) -> None:
    cpu, gpu = build("cpu", TriedDevice(CPU, "", 20e9)), build("wheel", *wheel)
    slow = build("lavapipe", TriedDevice(VULKAN, "", 1e9))
    for builds in ([cpu, gpu], [cpu, slow, gpu], [gpu, cpu]):
        assert choose(builds) is gpu
    unfit = build("wheel", *(replace(one, why_unfit="it computes rope wrong") for one in wheel))
    assert choose([unfit, cpu]) is cpu


def test_beside_a_busy_gpu_measured_ones_are_compared() -> None:
    vulkan = build("vulkan", TriedDevice(VULKAN, "", 800e9), TriedDevice(OTHER, "", 0.0))
    cuda = build("wheel", TriedDevice(CUDA, "", 2e12), TriedDevice(OTHER, "", 0.0))
    assert choose([vulkan, cuda]) is cuda and choose([cuda, vulkan]) is cuda


@pytest.mark.parametrize(("cuda", "vulkan", "slower"), [(9.0, 4.0, "Vulkan0"), (4.0, 9.0, "CUDA0")])
def test_of_one_card_the_slower_device_is_named(cuda: float, vulkan: float, slower: str) -> None:
    both = build("wheel", TriedDevice(CUDA, "", cuda), TriedDevice(VULKAN, "", vulkan))
    assert both.slower == (slower,)
    wrong = build("wheel", TriedDevice(CUDA, "", cuda), TriedDevice(VULKAN, "it hung", 0.0))
    other = build("wheel", TriedDevice(CUDA, "", cuda), TriedDevice(replace(VULKAN, card="b"), "", vulkan))
    assert wrong.slower == other.slower == ()


def script(
    folder: Path, device: str, nanoseconds: int, *, trial: str = RIGHT, listing: str = "", card: str = "01"
) -> NativeBuild:
    """A build whose device takes that long, and `trial` or `listing` in the place of an answer."""
    folder.mkdir(parents=True)
    program = folder / "mesh-server"
    kind = "cpu - 9000 8000" if device == "CPU" else f"gpu {card} 9000 8000"
    shown = listing or f"echo 'device {device} {kind} it'"
    times = "".join(f"echo took 0 {tokens} {nanoseconds + tokens}; " for tokens in (1, 128))
    count = f"echo . >>{folder}/runs"
    program.write_bytes(
        f'#!/bin/sh\n{count}\ncase $1 in --list-devices) {shown};; --try-device) echo "{trial}";; '
        f"*) {times} echo timed 1;; esac\n".encode("utf-8", "surrogateescape")
    )
    program.chmod(0o755)
    version = NativeVersion("mesh 5", "pin", "sources", folder.name)
    return NativeBuild(program, program, program, version, "7")


def _runs(*natives: NativeBuild) -> int:
    files = [native.mesh_server.parent / "runs" for native in natives]
    return sum(len(file.read_text().splitlines()) for file in files if file.exists())


def _choose(natives: Sequence[NativeBuild], folder: Path, machine: str = "m") -> NativeBuild:
    (folder / "logs").mkdir(exist_ok=True)
    asked = choose_build(natives, run_to_end, cache=folder, logs=folder / "logs", machine=machine)
    return asyncio.run(asked)


def test_builds_are_tried_once_and_the_choice_is_kept(tmp_path: Path) -> None:
    natives = (script(tmp_path / "vulkan", "Vulkan0", 5000), script(tmp_path / "cpu", "CPU", 900_000))
    assert kept_choice(natives, tmp_path, machine="m") is None
    for _ in range(2):
        assert _choose(natives, tmp_path) is not None
        assert _choose(natives, tmp_path).mesh_server == natives[0].mesh_server
    assert _runs(*natives) == 5, "two listings, a trial, two measurements"
    assert kept_choice(natives, tmp_path, machine="m") == natives[0]
    assert kept_choice(natives, tmp_path, machine="restarted") is None, "its driver may be another one"
    assert kept_choice((*natives, natives[1]), tmp_path, machine="m") is None, "a new build"
    (tmp_path / "native-choice").write_text("nonsense")
    assert kept_choice(natives, tmp_path, machine="m") is None


def test_nodes_that_start_together_try_once(tmp_path: Path) -> None:
    natives = (script(tmp_path / "vulkan", "Vulkan0", 5000), script(tmp_path / "cpu", "CPU", 900_000))

    async def all_at_once() -> list[NativeBuild]:
        asked = [
            choose_build(natives, run_to_end, cache=tmp_path, logs=tmp_path, machine="m") for _ in range(3)
        ]
        return await asyncio.gather(*asked)

    assert asyncio.run(all_at_once()) == [natives[0]] * 3
    assert _runs(*natives) == 5


def test_a_cache_that_takes_nothing_costs_a_trial_at_each_start(tmp_path: Path) -> None:
    natives = (script(tmp_path / "vulkan", "Vulkan0", 5000), script(tmp_path / "cpu", "CPU", 900_000))
    (tmp_path / "cache").write_text("a file in its place")
    for trials in (5, 10):
        asked = choose_build(natives, run_to_end, cache=tmp_path / "cache", logs=tmp_path, machine="m")
        assert asyncio.run(asked) == natives[0]
        assert _runs(*natives) == trials


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"trial": f"wrong {USUAL[0]} 1.0 0.1"}, "it computes"),
        ({"listing": "kill -SEGV $$"}, "lists no devices"),
        ({"listing": "exit 127"}, "lists no devices"),
        ({"trial": '"; kill -ABRT $$; echo "'}, "its trial was ended by SIGABRT"),
    ],
)
def test_a_build_that_crashes_or_errs_is_not_chosen(tmp_path: Path, broken: dict[str, str], why: str) -> None:
    natives = (script(tmp_path / "cuda", "CUDA0", 5, **broken), script(tmp_path / "cpu", "CPU", 900_000))
    assert _choose(natives, tmp_path).mesh_server == natives[1].mesh_server
    tried = asyncio.run(try_build(natives[0], run_to_end, tmp_path, machine="m"))
    assert why in tried.why_not + "".join(one.why_unfit for one in tried.devices)


def test_one_build_is_not_tried_unless_it_has_several_modules(tmp_path: Path) -> None:
    both = "echo 'device CUDA0 gpu 01 9 8 it'; echo 'device Vulkan0 gpu 01 9 8 it'"
    native = script(tmp_path / "wheel", "CUDA0", 5000, listing=both)
    (native.mesh_server.parent / "libggml-vulkan.so").touch()
    assert _choose((native,), tmp_path) == native
    assert _runs(native) == 0
    (native.mesh_server.parent / "libggml-cuda.so").touch()
    assert set(native.backends) >= {"cuda", "vulkan"}
    chosen = _choose((native,), tmp_path)
    assert chosen.mesh_server == native.mesh_server and chosen.slower == ()  # equally fast: ggml's order
    assert _runs(native) == 5


def _age(folder: Path) -> None:
    file = folder / "native-choice"
    long_ago = file.stat().st_mtime - AGAIN_SECONDS - 1
    os.utime(file, (long_ago, long_ago))


def test_a_device_that_failed_is_tried_again_later(tmp_path: Path) -> None:
    """Another job may have had its memory; the choice without it must not stay until the machine restarts."""
    wrong = f"wrong {USUAL[0]} 1.0 0.1"
    natives = (script(tmp_path / "cuda", "CUDA0", 5, trial=wrong), script(tmp_path / "cpu", "CPU", 900_000))
    assert _choose(natives, tmp_path) == natives[1]
    assert kept_choice(natives, tmp_path, machine="m") == natives[1]
    _age(tmp_path)
    assert kept_choice(natives, tmp_path, machine="m") is None


def test_a_sound_choice_stays_and_may_lie_anywhere(tmp_path: Path) -> None:
    place = tmp_path / "caf\udce9"  # not UTF-8
    natives = (script(place / "vulkan", "Vulkan0", 5000), script(place / "cpu", "CPU", 900_000))
    assert _choose(natives, tmp_path) == natives[0]
    _age(tmp_path)
    assert kept_choice(natives, tmp_path, machine="m") == natives[0]


def test_a_driver_that_hangs_keeps_no_node_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "LIST_SECONDS", 0.3)
    hung = script(tmp_path / "cuda", "CUDA0", 5, listing="exec sleep 60")
    tried = asyncio.run(try_build(hung, run_to_end, tmp_path, machine="m"))
    assert "did not list its devices" in tried.why_not
