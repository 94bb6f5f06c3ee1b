"""meshd.build.wheel: the programs of an installed meshd-native, and when they are taken."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.build import native
from meshd.build.interface import LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM
from meshd.build.native import OUR_PROGRAMS, UPSTREAM_PROGRAMS, find, not_built
from meshd.build.pin import read_pin
from meshd.build.wheel import PACKAGE, Wheel, installed_wheel, read_wheel

from tests.unit.build.stored import LIBRARY, install_wheel, program, store_ours, store_upstream


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that Python searches first; there is no other meshd-native."""
    folder = tmp_path / "site"
    folder.mkdir()
    elsewhere = [path for path in sys.path if not (Path(path) / PACKAGE).exists()]
    monkeypatch.setattr(sys, "path", [str(folder), *elsewhere])
    yield folder
    assert PACKAGE not in sys.modules


def test_without_a_build_the_wheels_programs_are_taken(site: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert installed_wheel() is None
    assert find(cache) is None
    package = install_wheel(site)
    for backend in ("auto", "cpu"):
        found = find(cache, backend)
        assert found is not None
        assert (found.pin, found.sources_sha256) == (read_pin().commit, read_pin().sources_sha256)
        assert (found.backend, found.bin_dir) == ("cpu", package / "bin")
        assert found.binaries == {
            name: package / "bin" / name for name in (*UPSTREAM_PROGRAMS, *OUR_PROGRAMS)
        }
    assert find(cache, "cuda") is None


def test_a_build_of_ones_own_comes_first(site: Path, tmp_path: Path) -> None:
    package = install_wheel(site)
    store_ours(tmp_path)
    found = find(tmp_path)
    assert found is not None and found.bin_dir == package / "bin", "half a build is none"
    upstreams = store_upstream(tmp_path)
    found = find(tmp_path)
    assert found is not None and found.bin_dir == upstreams


def test_a_folder_that_the_user_names_comes_before_both(site: Path, tmp_path: Path) -> None:
    package = install_wheel(site)
    named = program(tmp_path / "named", LLAMA_SERVER).parent
    found = native.read_bin_dir(named, tmp_path / "cache")
    assert found is not None
    assert found.binaries[LLAMA_SERVER] == named / LLAMA_SERVER
    assert found.binaries[MESH_PROGRAM] == package / "bin" / MESH_PROGRAM, "what it lacks"
    assert found.binaries[MESH_MODULE] == package / "bin" / MESH_MODULE


@pytest.mark.parametrize("part", ["commit", "sources"])
def test_a_wheel_of_another_version_is_not_taken_and_named(site: Path, tmp_path: Path, part: str) -> None:
    install_wheel(site, **{part: "f" * 64})
    assert find(tmp_path) is None
    hint = not_built("nothing").hint
    assert hint is not None
    assert "f" * 12 in hint and read_pin().commit[:12] in hint
    assert "meshd native build" in hint


@pytest.mark.parametrize(
    ("system", "backend", "is_named"),
    [
        ("x86_64", "auto", True),
        ("x86_64", "cpu", True),
        ("x86_64", "cuda", False),
        ("aarch64", "auto", False),
    ],
)
def test_without_a_wheel_its_file_is_named_where_there_is_one_for_the_machine(
    site: Path, monkeypatch: pytest.MonkeyPatch, system: str, backend: str, *, is_named: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: system)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    hint = not_built("nothing", backend).hint or ""
    assert ("install meshd_native-….whl beside meshd" in hint) is is_named and "meshd native build" in hint


@pytest.mark.parametrize(("system", "is_named"), [("x86_64", True), ("aarch64", False)])
def test_who_has_no_compiler_hears_first_of_the_wheel(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, *, is_named: bool
) -> None:
    """As `meshd demo` builds what is not there."""
    monkeypatch.setattr("platform.machine", lambda: system)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="there is no C compiler") as caught:
        asyncio.run(native.build(tmp_path / "cache", backend="cpu", progress=lambda _progress: None))
    wheel, compiler = "install meshd_native-….whl beside meshd", "build-essential"
    hint = caught.value.hint or ""
    assert hint.startswith(wheel) is is_named and compiler in hint


@pytest.mark.parametrize("harm", ["gone", "cut", "mode", "folder", "stamp"])
def test_a_damaged_wheel_is_not_taken_and_named(site: Path, tmp_path: Path, harm: str) -> None:
    package = install_wheel(site)
    library = package / "bin" / LIBRARY
    match harm:
        case "gone":
            library.unlink()
        case "cut":
            os.truncate(library, 0)
        case "mode":
            library.chmod(0o644)
        case "folder":
            library.unlink()
            library.mkdir()
        case _:
            (package / "stamp.json").unlink()
    assert find(tmp_path) is None
    assert "it is damaged" in (not_built("nothing").hint or "")


def test_a_folder_without_a_package_is_no_wheel(site: Path) -> None:
    package = install_wheel(site)
    (package / "__init__.py").unlink()
    assert installed_wheel() is None


@pytest.mark.parametrize(
    "name", ["../outside", "/bin/sh", "..", ".", "", "bin/../../outside", "\0", "x" * 5000, "\ud800"]
)
def test_a_stamp_names_no_file_elsewhere(tmp_path: Path, name: str) -> None:
    outside = program(tmp_path / PACKAGE, "outside")
    sizes = [outside.stat().st_size, Path("/bin/sh").stat().st_size, tmp_path.stat().st_size]
    for size in sizes:
        package = install_wheel(tmp_path)
        stamp = json.loads((package / "stamp.json").read_text())
        stamp["binaries"][name] = size
        (package / "stamp.json").write_text(json.dumps(stamp))
        assert read_wheel(package).programs == {}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(
    st.binary(max_size=80)
    | _VALUES.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(["commit", "sources", "backend", "binaries"]), _VALUES).map(
        lambda value: json.dumps(value).encode()
    )
    | st.just(b"[" * 60_000)
    | st.just(b'{"commit": "' + b"a" * 200_000 + b'"}')
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_stamp_says_nothing_is_taken(tmp_path: Path, stamp: bytes) -> None:
    package = install_wheel(tmp_path)
    (package / "stamp.json").write_bytes(stamp)
    wheel = read_wheel(package)
    assert wheel.programs == {}
    assert wheel.fault(read_pin()) is not None


def test_a_wheel_fits_by_both_parts() -> None:
    pin = read_pin()
    wheel = Wheel(pin.commit, pin.sources_sha256, "cpu", Path("bin"), {MESH_PROGRAM: Path("bin/mesh-server")})
    assert wheel.fault(pin) is None
    for other in (replace(pin, commit="0" * 40), replace(pin, sources_sha256="0" * 64)):
        fault = wheel.fault(other)
        assert fault is not None and "0" * 12 in fault
