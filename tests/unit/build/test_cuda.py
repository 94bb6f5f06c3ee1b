"""meshd.build.cuda: a toolkit of links to NVIDIA's packages, which are small files here."""

import ctypes
import shutil
import sys
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import cuda, machine
from meshd.build.cuda import make_toolkit, mend_toolkit, toolkit_in

CUDA_H = """
#define cuDeviceTotalMem cuDeviceTotalMem_v2
CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice dev);
CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size);
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which pip puts the parts of all packages, and the only one that Python finds."""
    site = tmp_path / "site"
    place = site / "nvidia/cu13"
    for name in (*cuda.NEEDED_PARTS, "lib/libcublasLt.so.13"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(CUDA_H if name.endswith("cuda.h") else name)
    elsewhere = [path for path in sys.path if not (Path(path) / "nvidia").exists()]
    monkeypatch.setattr(sys, "path", [str(site), *elsewhere])
    return place


async def test_what_compilers_expect_is_there(packages: Path, tmp_path: Path) -> None:
    native = tmp_path / "native"
    native.mkdir()
    for _ in range(2):  # and a second time, over the first
        made = await make_toolkit(packages, native, tmp_path / "log")
    assert made == toolkit_in(native)
    assert sorted(path.name for path in native.iterdir()) == ["cuda"]
    for name in ("cudart", "cublas", "cublasLt", "nvrtc"):
        assert (made / f"lib64/lib{name}.so").resolve() == packages / f"lib/lib{name}.so.13"
    for name in cuda.NEEDED_PARTS:
        assert (made / name).read_text()
    # nvcc looks for the rest beside its link, so the folder must not be one
    assert not (made / "bin").is_symlink() and (made / "bin/nvcc").is_symlink()


@pytest.mark.skipif(sys.platform != "linux", reason="CUDA exists on Linux alone")
async def test_the_drivers_functions_can_be_linked_without_a_driver(packages: Path, tmp_path: Path) -> None:
    made = await make_toolkit(packages, tmp_path, tmp_path / "log")
    stub = made / "lib64/stubs/libcuda.so"
    library = ctypes.CDLL(str(stub))
    assert [getattr(library, name)() for name in ("cuMemCreate", "cuDeviceTotalMem_v2")] == [1, 1]
    assert b"libcuda.so.1\0" in stub.read_bytes(), "programs ask for the driver's"


@pytest.mark.parametrize("part", ["include/cccl/cub/cub.cuh", "nvvm/bin/cicc", "lib/libcublas.so.13"])
async def test_a_part_that_is_missing_is_named(packages: Path, tmp_path: Path, part: str) -> None:
    (packages / part).unlink()
    with pytest.raises(UserError, match=f"lack {part}") as caught:
        await make_toolkit(packages, tmp_path, tmp_path / "log")
    assert "pip install '.[cuda-build]'" in (caught.value.hint or "")


async def test_a_compiler_that_fails(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(UserError, match="`false` cannot make a library"):
        await make_toolkit(packages, tmp_path, tmp_path / "log")


async def test_links_that_lead_nowhere_are_made_anew(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.build.cuda.find_nvcc", lambda: None)
    log = tmp_path / "log"
    await mend_toolkit(tmp_path, log)
    assert not toolkit_in(tmp_path).exists(), "nothing was built with one"
    await make_toolkit(packages, tmp_path, log)
    moved = packages.parent.parent.rename(tmp_path / "gone")
    with pytest.raises(UserError, match="which were removed") as caught:
        await mend_toolkit(tmp_path, log)
    assert "cuda-build" in (caught.value.hint or "")
    shutil.copytree(moved, tmp_path / "site")
    (tmp_path / "site/nvidia/cu13").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(packages)
    await mend_toolkit(tmp_path, log)
    assert (toolkit_in(tmp_path) / "lib/libcublas.so").is_file()


async def test_a_toolkit_takes_the_place_of_links_that_lead_nowhere(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_toolkit(packages, tmp_path, tmp_path / "log")
    packages.parent.parent.rename(tmp_path / "gone")
    build = tmp_path / "llama-1234-cuda-5678"
    build.mkdir()
    monkeypatch.setattr("meshd.build.cuda.find_nvcc", lambda: Path("/usr/bin/nvcc"))
    await mend_toolkit(tmp_path, tmp_path / "log")
    assert not toolkit_in(tmp_path).exists() and not build.exists()


def test_packages_without_a_compiler_are_none(packages: Path) -> None:
    assert machine.find_packages() == packages
    (packages / "bin/nvcc").unlink()
    assert machine.find_packages() is None, "others install the libraries alone"
