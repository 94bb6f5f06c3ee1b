"""Why a GPU is not used: the facts, and the first cause that they show."""

import asyncio
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.build.machine import CUDA_IN_PACKAGE
from meshd.doctor.gpus import (
    CudaDriver,
    GpuFacts,
    explain,
    gather_facts,
    look_around,
    parse_cuda,
)
from meshd.process.run import run_to_end

NODE, RENDER = Path("/dev/nvidia0"), Path("/dev/dri/renderD128")
NVIDIA = GpuFacts(
    cards={True: 1, False: 0},
    nodes={True: [NODE], False: []},
    module="580.159.04",
    cuda=CudaDriver(13_000, 0, (90,)),
)
WSL = replace(NVIDIA, nodes={True: [Path("/dev/dxg")], False: []}, cards={True: 0, False: 0}, module="")
AMD = GpuFacts(cards={True: 0, False: 1}, nodes={True: [], False: [RENDER]})
CUDA, PORTABLE, COMPILED = ("cpu", "cuda", "vulkan"), ("cpu", "vulkan"), ("cpu",)


def one(facts: GpuFacts, listed: tuple[str, ...] = ("CPU",), backends: tuple[str, ...] = CUDA) -> str:
    """The only fault, and what helps."""
    (found,) = explain(facts, listed, backends)
    assert found.hint
    return f"{found.what} -> {found.hint}"


@pytest.mark.parametrize("facts", [NVIDIA, AMD, replace(NVIDIA, in_container=True)])
@pytest.mark.parametrize("listed", [("CUDA0", "CPU"), ("CUDA0", "Vulkan0"), ("Vulkan0",)])
def test_a_gpu_that_is_used_needs_no_word(facts: GpuFacts, listed: tuple[str, ...]) -> None:
    if facts is AMD or "CUDA0" in listed:
        assert explain(facts, listed, CUDA) == []


def test_a_machine_without_a_gpu_needs_none() -> None:
    bare = GpuFacts(cards={True: 0, False: 0}, nodes={True: [], False: []})
    assert explain(bare, ("CPU",), CUDA) == []
    assert explain(replace(bare, cuda=CudaDriver(13_000, 100)), ("CPU",), CUDA) == []


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        (
            replace(NVIDIA, nodes={True: [], False: []}, module="", cuda=None),
            "has no driver -> install NVIDIA's",
        ),
        (replace(NVIDIA, cuda=None), "no libcuda.so.1 -> install the package of the driver's libraries"),
        (replace(NVIDIA, closed=[NODE]), "may not open `/dev/nvidia0` -> check its owner"),
        (replace(NVIDIA, cuda=CudaDriver(13_000, 803)), "was updated and .* -> restart the machine"),
        (replace(NVIDIA, cuda=CudaDriver(13_000, 999)), r"does not start \(CUDA error 999\) -> `nvidia-smi`"),
        (replace(NVIDIA, cuda=CudaDriver(13_000, -1)), "does not start"),
        (NVIDIA, "although its driver works -> .*--list-devices"),
        (replace(WSL, cuda=None), "on Windows does not answer in WSL2 -> install .* on Windows, and none in"),
        (replace(WSL, cuda=CudaDriver(13_000, 100)), "on Windows does not answer in WSL2"),
        (replace(WSL, cuda=CudaDriver(13_000, 803)), "on Windows does not answer in WSL2"),
        (
            replace(WSL, cuda=CudaDriver(12_020, 0, (86,))),
            "on Windows supports CUDA .* -> install .* later on Windows;",
        ),
        (
            replace(WSL, cuda=CudaDriver(13_000, 100), variables={"CUDA_VISIBLE_DEVICES": ""}),
            "is hidden: CUDA_VISIBLE_DEVICES",
        ),
        (replace(WSL, closed=[Path("/dev/dxg")]), "may not open `/dev/dxg` -> .*`ls -l /dev/dxg`"),
    ],
)
def test_the_first_cause_of_an_idle_nvidia_card(facts: GpuFacts, what: str) -> None:
    assert re.search(what, one(facts)), one(facts)


@pytest.mark.parametrize("package", CUDA_IN_PACKAGE)
def test_who_has_no_pip_is_not_sent_to_add_a_wheel(package: str) -> None:
    line = one(replace(NVIDIA, package=package), backends=PORTABLE)
    assert line.endswith(f" -> {CUDA_IN_PACKAGE[package]}") and "native build" not in line
    assert "add cuda13 --from DIR`; or in the clone" in one(NVIDIA, backends=PORTABLE)


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        (replace(AMD, nodes={True: [], False: []}), "no /dev/dri/renderD128 -> install its driver"),
        (
            replace(AMD, closed=[RENDER]),
            "may not open `/dev/dri/renderD128` -> add the user to the group `render`",
        ),
        (
            replace(AMD, variables={"VK_DRIVER_FILES": "/no/icd.json"}),
            "which does not exist -> unset VK_DRIVER",
        ),
        (replace(AMD, variables={"GGML_VK_VISIBLE_DEVICES": "7"}), "hidden: .* -> unset GGML_VK"),
        (AMD, "no driver for Vulkan: .* -> install it .*mesa-vulkan-drivers"),
    ],
)
def test_the_first_cause_of_another_idle_card(facts: GpuFacts, what: str) -> None:
    assert re.search(what, one(facts, backends=PORTABLE)), one(facts, backends=PORTABLE)
    assert explain(facts, ("CPU",), COMPILED) == [], "who compiled for the CPU gets that"


def _system(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_facts_are_what_files_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert look_around(tmp_path / "nothing").cards == {True: 0, False: 0}
    pci = "sys/bus/pci/devices/0000:0"
    root = _system(
        tmp_path,
        {
            f"{pci}1/vendor": "0x10de\n",
            f"{pci}1/class": "0x030200\n",
            f"{pci}2/vendor": "0x10de\n",
            f"{pci}2/class": "0x040300\n",  # its sound
            f"{pci}3/vendor": "0x1002\n",
            f"{pci}3/class": "0x030000\n",
            f"{pci}4/vendor": "0x1af4\n",  # a virtual display
            f"{pci}4/class": "0x030000\n",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
            "dev/dri/renderD128": "",
            "sys/module/nvidia/version": "580.1\n",
            "usr/share/vulkan/icd.d/radeon_icd.json": "{}",
            ".dockerenv": "",
        },
    )
    facts = look_around(root)
    assert facts.cards == {True: 1, False: 1}
    assert facts.nodes == {True: [root / "dev/nvidia0"], False: [root / "dev/dri/renderD128"]}
    assert (facts.module, facts.in_container, facts.closed) == ("580.1", True, [])
    assert [path.name for path in facts.icds] == ["radeon_icd.json"]
    assert facts.variables is not None and facts.variables["CUDA_VISIBLE_DEVICES"] == ""


def test_wsl2_has_an_nvidia_gpu_where_windows_has_its_driver(tmp_path: Path) -> None:
    root = _system(tmp_path, {"dev/dxg": "", "usr/lib/wsl/lib/libdxcore.so": ""})
    for cuda in (None, CudaDriver(13_000, 100)):
        assert look_around(root, cuda).nodes[True] == [], "another vendor's GPU"
        assert explain(look_around(root, cuda), ("CPU",), CUDA) == []
    boxed = look_around(root, CudaDriver(13_000, 0, (86,)))
    assert boxed.nodes[True] == [root / "dev/dxg"] and boxed.in_wsl, "libcuda answers from elsewhere"
    known = look_around(_system(root, {"usr/lib/wsl/lib/libcuda.so.1": ""}))
    assert known.nodes[True] == [root / "dev/dxg"] and known.in_wsl
    assert "does not answer in WSL2" in one(known)


@pytest.mark.parametrize(
    ("files", "is_container"),
    [
        ({}, False),
        ({".dockerenv": ""}, True),
        ({"run/.containerenv": ""}, True),
        ({"run/systemd/container": "lxc"}, True),
        ({"run/systemd/container": "wsl\n"}, False),
    ],
)
def test_containers_are_known_by_their_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], is_container: bool
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    root = _system(tmp_path, files)
    assert look_around(root).in_container is is_container
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert look_around(root).in_container


DRIVER = """
#include <stdlib.h>
int cuDriverGetVersion(int *version) { *version = 13020; return 0; }
int cuInit(unsigned flags) { if (CRASHES) abort(); return flags; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGetAttribute(int *value, int asked, int device) {
  *value = asked == 75 ? 8 + device : 6 * !device;
  return 0;
}
"""


@pytest.mark.parametrize("crashes", [False, True])
def test_cudas_driver_is_asked_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    """A library of its name and functions; one that crashes has said its version before."""
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    made = ["cc", "-shared", "-fPIC", f"-DCRASHES={int(crashes)}", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run([*made, str(source)], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    facts = asyncio.run(gather_facts(run_to_end, tmp_path / "log"))
    assert facts.cuda == (CudaDriver(13_020, -1) if crashes else CudaDriver(13_020, 0, (86, 90)))


def test_what_the_child_says() -> None:
    assert parse_cuda([]) is None
    assert parse_cuda(["version 12020", "init 100"]) == CudaDriver(12_020, 100)
    assert parse_cuda(["version 0", "init 0", "sm 61", "sm 120"]) == CudaDriver(0, 0, (61, 120))


@given(st.lists(st.text() | st.from_regex(r"(version|init|sm) -?\d{1,12}", fullmatch=True)))
def test_whatever_the_child_says(lines: list[str]) -> None:
    found = parse_cuda(lines)
    assert found is None or all(0 <= kind < 10**8 for kind in (found.version, *found.kinds))
