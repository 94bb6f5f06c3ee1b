"""wheels.cuda: the wheel of the module, and the libraries that it may need. No CUDA is compiled here."""

import json
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.build.pin import read_pin
from meshd.build.wheel import CUDA_MODULE, CUDA_STAMP, Wheel, read_wheel
from packaging.requirements import Requirement
from wheels.cuda import ARCHITECTURES, machine_code, pack_module

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


def test_the_wheel_says_for_which_gpus_a_driver_compiles(tmp_path: Path) -> None:
    package = install_wheel(tmp_path / "site")
    assert read_wheel(package).compiles_for([75, 121]) == [], "there is no module"
    for kinds, compiled in ((machine_code(ARCHITECTURES), [100, 103, 110, 121]), ((), [])):
        place = pack_module(module(*NEEDED), "MIT License", read_pin(), tmp_path, kinds=kinds)
        with zipfile.ZipFile(place) as archive:
            archive.extractall(tmp_path / "site")
        found = read_wheel(package).compiles_for([75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121])
        assert found == compiled, "an older wheel does not say"


@pytest.mark.parametrize(
    ("architectures", "code"),
    [
        ("75-real;90;120-real", ["75", "90", "120a"]),
        ("90-virtual;121;100f-real;90a", ["121a", "100f", "90a"]),
        ("native", []),
        ("all-major", []),
        ("", []),
    ],
)
def test_machine_code_is_what_upstream_makes_of_architectures(architectures: str, code: list[str]) -> None:
    assert machine_code(architectures) == code


@pytest.mark.parametrize(
    ("code", "kind", "compiles"),
    [("90", 91, False), ("91", 90, True), ("100f", 103, False), ("100a", 103, True), ("100a", 100, False)],
)
def test_machine_code_runs_on_later_gpus_of_its_major_version(code: str, kind: int, compiles: bool) -> None:
    wheel = Wheel("", "", "cpu", Path(), {}, "", (code,))
    assert wheel.compiles_for([kind]) == ([kind] if compiles else [])


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_stamp_says_of_machine_code(tmp_path: Path, said: object) -> None:
    package = install_wheel(tmp_path)
    (package / CUDA_STAMP).write_text(json.dumps({"commit": "", "machine_code": said}))
    assert read_wheel(package).compiles_for([75]) in ([], [75])


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
