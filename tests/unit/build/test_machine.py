"""meshd.build.machine: kind of CPU, backends, compilers and tools."""

import re
import sys
import sysconfig
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import machine
from meshd.build.machine import packaged_as

from tests.rules.source import ROOT

X86 = "processor\t: 0\nmodel name\t: A\nflags\t\t: fpu sse avx2\n\nprocessor\t: 1\nflags\t\t: fpu sse avx2\n"


def _kind(folder: Path, text: str) -> str:
    path = folder / "cpuinfo"
    path.write_text(text)
    return machine.cpu_kind(path)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no /proc/cpuinfo")
def test_the_kind_is_what_the_cpu_can_do(tmp_path: Path) -> None:
    kind = _kind(tmp_path, X86)
    assert len(kind) == 8
    assert kind == _kind(
        tmp_path, X86.replace("model name\t: A", "model name\t: B").replace("sse avx2", "avx2 sse")
    )
    assert kind != _kind(tmp_path, X86.replace("avx2", "avx512f"))
    assert kind != _kind(tmp_path, "Features\t: fp asimd\n")


def test_the_kind_of_this_machine_is_stable() -> None:
    assert machine.cpu_kind() == machine.cpu_kind()


def test_a_package_is_told_by_the_file_that_it_brings(tmp_path: Path) -> None:
    assert packaged_as(tmp_path) is None
    for kind, recipe in (("deb", "packaging/debian/inside"), ("image", "Dockerfile")):
        (line,) = re.findall(r"echo (.*) > /opt/meshd/packaged-as", (ROOT / recipe).read_text("utf-8"))
        (tmp_path / "packaged-as").write_text(f"{line}\n")
        assert packaged_as(tmp_path) == line == kind
    (tmp_path / "packaged-as").write_bytes(b"\xffelse")
    assert packaged_as(tmp_path) is None


def test_auto_is_the_best_that_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(machine, "find_nvcc", lambda: None)
    monkeypatch.setattr(machine, "find_packages", lambda: None)
    assert machine.resolve_backend("auto") == "cpu"
    monkeypatch.setattr(machine, "find_nvcc", lambda: Path("/nvcc"))
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    assert machine.resolve_backend("auto") == "cpu", "a toolkit without a card is no reason for CUDA"
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    assert machine.resolve_backend("auto") == "cuda"
    monkeypatch.setattr(machine, "find_nvcc", lambda: None)
    monkeypatch.setattr(machine, "find_packages", lambda: Path("/site/nvidia/cu13"))
    assert machine.resolve_backend("auto") == "cuda", "NVIDIA's packages will do"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert machine.resolve_backend("auto") == "metal"
    assert machine.resolve_backend("cpu") == "cpu"


def test_wsl2s_device_file_alone_is_no_nvidia_gpu(tmp_path: Path) -> None:
    libraries, node = tmp_path / "usr/lib/wsl/lib", tmp_path / "dev/dxg"
    for folder in (libraries, node.parent):
        folder.mkdir(parents=True)
    node.touch()
    assert machine.nvidia_nodes(tmp_path) == []
    (libraries / "libcuda.so.1").touch()
    assert machine.nvidia_nodes(tmp_path) == [node]
    node.rename(tmp_path / "dev/nvidia0")
    assert machine.nvidia_nodes(tmp_path) == [tmp_path / "dev/nvidia0"]


def test_a_backend_that_does_not_exist() -> None:
    with pytest.raises(UserError, match="there is no backend `cuba`") as caught:
        machine.resolve_backend("cuba")
    assert "vulkan" in caught.value.hint


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match="there is no C compiler") as caught:
        machine.need_compiler()
    assert "build-essential" in caught.value.hint
    assert "xcode-select" in caught.value.hint
    for name in ("cc", "c++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    machine.need_compiler()
    monkeypatch.setenv("CXX", "my-compiler -O2")
    with pytest.raises(UserError, match="`my-compiler`, which CXX names, does not exist"):
        machine.need_compiler()


def test_tools_that_came_with_meshd_are_found_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for name in ("cmake", "ninja"):
        assert Path(machine.find_tool(name)).is_file()
    assert machine.missing_tools() == []
    with pytest.raises(UserError, match="`no-such-tool` is not installed"):
        machine.find_tool("no-such-tool")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation without the extra; returns the only folder in PATH, which is empty."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _put(folder: Path, name: str) -> None:
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_without_the_extra_it_says_what_to_install(bare: Path) -> None:
    with pytest.raises(UserError, match="`cmake` and `ninja` are not installed") as caught:
        machine.need_tools()
    assert "pip install '.[build]'" in caught.value.hint
    assert "pip install '.[build]'" in machine.how_to_build()
    _put(bare, "cmake")
    with pytest.raises(UserError, match=r"cannot build llama\.cpp: `ninja` is not installed") as caught:
        machine.need_tools()
    assert "pip install '.[build]'" in caught.value.hint


def test_tools_of_the_system_will_do(bare: Path) -> None:
    for name in ("cmake", "ninja"):
        _put(bare, name)
        assert machine.find_tool(name) == str(bare / name)
    machine.need_tools()
    assert machine.how_to_build().startswith("run `meshd native build` once")


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Linux without any tool for GPUs; returns the only folder in PATH."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    needed = {name: (program, variables, ()) for name, (program, variables, _) in machine.COMPILERS.items()}
    monkeypatch.setattr(machine, "COMPILERS", needed)
    monkeypatch.setattr(machine, "find_packages", lambda: None)
    for _, variables, _ in needed.values():
        for name in variables:
            monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("backend", "program", "variable"),
    [("cuda", "nvcc", "CUDACXX"), ("hip", "hipcc", "ROCM_PATH"), ("vulkan", "glslc", "VULKAN_SDK")],
)
def test_what_a_gpu_needs_is_missed_before_the_build(
    no_gpu: Path, monkeypatch: pytest.MonkeyPatch, backend: str, program: str, variable: str
) -> None:
    with pytest.raises(UserError, match=f"there is no `{program}`") as caught:
        machine.need_backend(backend)
    assert "docs/install.md#gpus" in caught.value.hint
    monkeypatch.setenv(variable, "/elsewhere")
    machine.need_backend(backend)
    monkeypatch.delenv(variable)
    _put(no_gpu, program)
    machine.need_backend(backend)


def test_nvidias_packages_are_a_toolkit(no_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as caught:
        machine.need_backend("cuda")
    assert "pip install '.[cuda-build]'" in caught.value.hint
    monkeypatch.setattr(machine, "find_packages", lambda: no_gpu)
    machine.need_backend("cuda")


def test_a_cpu_needs_no_more_than_compilers(no_gpu: Path) -> None:
    machine.need_backend("cpu")


@pytest.mark.parametrize(("system", "backend"), [("linux", "metal"), ("darwin", "cuda"), ("darwin", "hip")])
def test_what_a_system_does_not_have(
    no_gpu: Path, monkeypatch: pytest.MonkeyPatch, system: str, backend: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(UserError, match="does not exist on"):
        machine.need_backend(backend)
    monkeypatch.setattr(sys, "platform", "darwin")
    machine.need_backend("metal")


def test_the_hint_names_the_backend_that_is_missing() -> None:
    assert "`meshd native build --backend cuda`" in machine.how_to_build("cuda")
