"""The choice of a build: tried in children, measured, kept. Builds are scripts that answer as mesh-server."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.daemon.native import (
    TriedBuild,
    TriedDevice,
    choose,
    choose_build,
    kept_choice,
    try_build,
)
from meshd.devices import devices
from meshd.devices.device_trial import AGAIN_SECONDS
from meshd.devices.interface import NativeBuild
from meshd.model.layer_work import USUAL
from meshd.process.run import run_to_end
from meshd.wire.lease import OfferedDevice
from meshd.wire.versions import NativeVersion

CPU = OfferedDevice("CPU", "cpu", "a processor", 5, 10)
CUDA = OfferedDevice("CUDA0", "gpu", "a card", 5, 10, "card")
OTHER = replace(CUDA, name="CUDA1", card="another card")
VULKAN = replace(CUDA, name="Vulkan0")
RIGHT = f"tried {len(USUAL)}"


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
