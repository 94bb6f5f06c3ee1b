"""wheels.cuda: the wheel of the module, and the libraries that it may need. No CUDA is compiled here."""

import json
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build.pin import read_pin
from meshd.build.wheel import CUDA_MODULE, CUDA_STAMP, read_wheel
from packaging.requirements import Requirement
from wheels.cuda import pack_module

from tests.unit.build.stored import install_wheel

NEEDED = ("libggml-base.so", "libcudart.so.13", "libcublas.so.13", "libcuda.so.1", "libc.so.6")


def module(*names: str, glibc: str = "GLIBC_2.34") -> bytes:
    """As the table of names in a library has them."""
    return b"\x7fELF\0" + b"\0".join(
        name.encode() for name in (*names, CUDA_MODULE, glibc, "GLIBC_2.2.5", "")
    )


def test_it_goes_into_the_folder_of_the_programs(tmp_path: Path) -> None:
    place = pack_module(module(*NEEDED), "MIT License", read_pin(), tmp_path)
    assert "manylinux_2_34" in place.name, "of the newest function that it needs"
    package = install_wheel(tmp_path / "site")
    before = set(package.rglob("*"))
    with zipfile.ZipFile(place) as archive:
        archive.extractall(tmp_path / "site")
        (metadata,) = (archive.read(one).decode() for one in archive.namelist() if one.endswith("METADATA"))
    (package / "bin" / CUDA_MODULE).chmod(0o755)  # as pip does
    added = {path.relative_to(package).as_posix() for path in set(package.rglob("*")) - before}
    assert added == {f"bin/{CUDA_MODULE}", CUDA_STAMP}, "nothing of meshd-native's is replaced"
    wheel = read_wheel(package)
    assert wheel.fault(read_pin()) is None
    assert wheel.backends == ("cuda", "cpu")
    names = {Requirement(one).name for one in Parser().parsestr(metadata).get_all("Requires-Dist", [])}
    assert names == {"nvidia-cublas", "nvidia-cuda-runtime"}, "of meshd's own names pip asks no index"


@pytest.mark.parametrize("harm", ["another commit", "cut", "gone", "no stamp"])
def test_a_module_that_does_not_fit_makes_the_programs_unfit(tmp_path: Path, harm: str) -> None:
    """For ggml loads it, whatever it is."""
    package, pin = install_wheel(tmp_path), read_pin()
    library = package / "bin" / CUDA_MODULE
    library.write_bytes(b"x" * 9)
    library.chmod(0o755)
    commit = "f" * 40 if harm == "another commit" else pin.commit
    stamp = {"commit": commit, "binaries": {CUDA_MODULE: 8 if harm == "cut" else 9}}
    (package / CUDA_STAMP).write_text(json.dumps(stamp))
    match harm:
        case "gone":
            library.unlink()
        case "no stamp":
            (package / CUDA_STAMP).unlink()
        case _:
            pass
    fault = read_wheel(package).fault(pin) or ""
    assert "meshd-native-cuda13" in fault and "uninstall" in fault
    assert ("f" * 12 if harm == "another commit" else "is damaged") in fault


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ((*NEEDED, "libstdc++.so.6"), "needs libstdc\\+\\+.so.6"),
        ((*NEEDED, "libnccl.so.2", "libgomp.so.1"), "needs libgomp.so.1, libnccl.so.2"),
        (NEEDED[1:], "does not need libggml-base.so"),
    ],
)
def test_a_module_of_another_kind_of_build_is_refused(
    tmp_path: Path, names: tuple[str, ...], what: str
) -> None:
    with pytest.raises(UserError, match=what):
        pack_module(module(*names), "MIT License", read_pin(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_wheel_fits_systems_as_old_as_meshd_natives_and_no_older(tmp_path: Path) -> None:
    place = pack_module(module(*NEEDED, glibc="GLIBC_2.17"), "MIT License", read_pin(), tmp_path)
    assert "manylinux_2_28" in place.name
