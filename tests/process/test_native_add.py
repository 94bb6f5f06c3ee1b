"""`meshd native add cuda13`: pip gets the wheel by its file from a folder, and asks no index for its name."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from meshd import __version__
from meshd.base.errors import UserError
from meshd.build import cuda
from meshd.build.machine import CUDA_IN_PACKAGE
from meshd.build.pin import read_pin
from meshd.build.wheel import PACKAGE
from wheels.archive import Entry, Name, pack
from wheels.cuda import pack_module

from tests.process.test_native_wheel import Venv, packed, venv  # noqa: F401 - a fixture
from tests.unit.wheels.test_cuda import NEEDED, module

NVIDIA = ("nvidia_cublas-13.1.0", "nvidia_cuda_runtime-13.0.9")


def _nvidias(folder: Path) -> None:
    """Packages of these names, with nothing in them."""
    for name in NVIDIA:
        distribution, _, version = name.partition("-")
        wheel = Name(distribution, version, "py3-none-any")
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        pack(folder, wheel, {f"{wheel.info}/METADATA": Entry(metadata.encode())})


@pytest.fixture
def folder(venv: Venv, tmp_path: Path) -> Path:  # noqa: F811
    """A folder of wheels; meshd-native is installed, and pip is there without a network."""
    made = tmp_path / "wheels"
    venv.pip("install", "--no-deps", "--no-index", "--no-compile", packed(tmp_path / "dist", read_pin()))
    pack_module(module(*NEEDED, glibc="GLIBC_2.17"), "MIT License", read_pin(), made)
    _nvidias(made)
    return made


def _add(venv: Venv, folder: Path) -> tuple[int, str]:  # noqa: F811
    closed = {"HTTPS_PROXY": "http://127.0.0.1:1", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    done = venv.meshd("native", "add", "cuda13", "--from", str(folder), **closed)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def _backend(venv: Venv) -> object:  # noqa: F811
    return json.loads(venv.meshd("native", "info", "--json").stdout)["backend"]


def test_it_is_added_without_a_network_and_removed_again(venv: Venv, folder: Path) -> None:  # noqa: F811
    assert _backend(venv) == "cpu"
    code, told = _add(venv, Path(os.path.relpath(folder)))  # pip runs elsewhere
    assert code == 0, told
    assert str(venv.site / PACKAGE / "bin") in told and "`meshd doctor` must list CUDA0" in told
    assert _backend(venv) == "cuda"
    venv.pip("uninstall", "--yes", "meshd-native-cuda13")
    assert _backend(venv) == "cpu"


def test_what_lacks_is_named(venv: Venv, folder: Path) -> None:  # noqa: F811
    (wheel,) = folder.glob("meshd_native_cuda13-*.whl")
    content = wheel.read_bytes()
    for file in folder.glob("nvidia_cublas-*"):
        file.unlink()
    code, told = _add(venv, folder)
    assert code == 1 and "could not be installed" in told
    assert (
        "without network, put the wheels of nvidia-cublas" in told
        and "nvidia-cublas" in told.split("lines:")[1]
    )
    wheel.write_bytes(content[: len(content) // 2])
    code, told = _add(venv, folder)
    assert code == 1 and f"`{wheel}` is not whole" in told and "download or copy it again" in told
    wheel.write_bytes(content[:200] + bytes(100) + content[300:])
    code, told = _add(venv, folder)
    assert code == 1 and f"`{wheel}` is not whole" in told
    wheel.rename(folder / "meshd_native_cuda13-0.0.0-py3-none-manylinux_2_28_x86_64.whl")
    code, told = _add(venv, folder)
    assert (
        code == 1
        and "it has meshd_native_cuda13-0.0.0" in told
        and f"take the file of meshd {__version__}" in told
    )
    assert _add(venv, folder / "nowhere")[1].startswith("error: there is no directory")
    assert _backend(venv) == "cpu", "nothing was half installed"


def test_without_programs_the_module_is_of_no_use(venv: Venv, folder: Path) -> None:  # noqa: F811
    venv.pip("uninstall", "--yes", "meshd-native")
    code, told = _add(venv, folder)
    assert code == 1 and "there is no meshd-native here" in told and "--backend cuda" in told


def test_a_module_of_another_llama_cpp_is_reported(venv: Venv, folder: Path) -> None:  # noqa: F811
    (wheel,) = folder.glob("meshd_native_cuda13-*.whl")
    wheel.unlink()
    pack_module(module(*NEEDED, glibc="GLIBC_2.17"), "MIT", replace(read_pin(), commit="f" * 40), folder)
    code, told = _add(venv, folder)
    assert code == 1 and "cannot be used: the meshd-native-cuda13 beside it is for llama.cpp ffff" in told


@pytest.mark.parametrize("package", ["deb", "image"])
def test_nothing_is_added_to_a_package_that_has_no_pip(venv: Venv, folder: Path, package: str) -> None:  # noqa: F811
    (venv.folder / "packaged-as").write_text(f"{package}\n")
    code, told = _add(venv, folder)
    assert code == 1 and f"it is from a package ({package}), and has no pip" in told
    assert f"hint: {CUDA_IN_PACKAGE[package]}" in told.replace("\n  ", " ") and "ensurepip" not in told
    assert _backend(venv) == "cpu"


def test_who_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that `uv tool install` made have no pip."""
    assert cuda.installer()[1:5] == ("-P", "-m", "pip", "install")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert cuda.installer() == ("/bin/uv", "pip", "install", "--python", sys.executable)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match="this Python has no pip, and there is no `uv`"):
        cuda.installer()
