"""`meshd upgrade` where wheels of programs are missing: what fits may stay, else it refuses."""

import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.build.pin import native_folder, read_pin
from meshd.build.wheel import Wheel
from meshd.cli import upgrade
from meshd.cli.upgrade import Installation

from tests.unit.cli.shell import meshd
from tests.unit.cli.test_upgrade import CUDA, NATIVE, NEWER, WHEEL, _umask, by_pip  # noqa: F401 - fixtures

pytestmark = pytest.mark.usefixtures("by_pip")


@pytest.fixture
def fake_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what was run in place of pip; nothing is installed."""
    done: list[str] = []

    def run(step: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        done.append(shlex.join(step))
        return subprocess.CompletedProcess(step, 0, f"meshd {NEWER}\n")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("MESHD_HOME", str(tmp_path / "home"))
    return done


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The new wheel carries the pin of this checkout; the installed programs may be for another one."""

    def make(*, commit: str = "", sources: str = "", cuda: str | None = None) -> None:
        with zipfile.ZipFile(tmp_path / WHEEL, "w") as archive:
            for file in (path for path in native_folder().rglob("*") if path.is_file()):
                archive.write(file, f"meshd/native/{file.relative_to(native_folder())}")
        pin = read_pin()
        programs = {"mesh-server": tmp_path}
        wheel = Wheel(
            commit or pin.commit, sources or pin.sources_sha256, "cpu", tmp_path, programs, cuda or pin.commit
        )
        monkeypatch.setattr("meshd.build.wheel.installed_wheel", lambda: wheel)
        natives = {"meshd-native": "0.0.1", "meshd-native-cuda13": "0.0.1"}
        monkeypatch.setattr(upgrade, "installation", lambda _prefix: Installation("pip", "", natives))

    return make


@pytest.mark.parametrize("check", [["--check"], []])
def test_no_upgrade_takes_a_node_its_programs(
    tmp_path: Path, fake_commands: list[str], check: list[str]
) -> None:
    """Who has no compiler could not build them."""
    (tmp_path / WHEEL).touch()  # its pin cannot be read
    ran = meshd("upgrade", *check, "--from", str(tmp_path))
    assert ran.code == 1 and fake_commands == []
    assert f"`{tmp_path}` has no `meshd_native-{NEWER}-….whl` for this machine" in ran.err
    assert "hint: put what is missing there; or uninstall the old with `--force`" in ran.err
    ran = meshd("upgrade", *check, "--force", "--from", str(tmp_path))
    assert ran.code == 0 and "then run `meshd native build`, which needs a compiler" in ran.err
    steps = [
        f"{sys.executable} -P -m pip install --upgrade {tmp_path / WHEEL}",
        f"{sys.executable} -P -m pip uninstall --yes meshd-native",
    ]
    assert (
        ran.out.splitlines()[-2:] == [f"  {step}" for step in steps] if check else steps == fake_commands[:2]
    )


@pytest.mark.parametrize(
    ("differs", "offers", "missing"),
    [
        ({}, [], []),
        ({"commit": "f" * 40}, [], ["meshd_native"]),
        ({"sources": "f" * 64}, [], ["meshd_native"]),
        ({"sources": "f" * 64}, [NATIVE], []),  # the module has nothing of those
        ({"cuda": "f" * 40}, [], ["meshd_native_cuda13"]),
        ({"cuda": "f" * 40}, [NATIVE], ["meshd_native_cuda13"]),
        ({"cuda": "f" * 40}, [NATIVE, CUDA], []),
        ({"commit": "f" * 40, "cuda": "f" * 40}, [], ["meshd_native", "meshd_native_cuda13"]),
    ],
)
def test_programs_that_fit_the_new_pin_may_stay(
    tmp_path: Path,
    pinned: Callable[..., None],
    differs: dict[str, str],
    offers: list[str],
    missing: list[str],
) -> None:
    pinned(**differs)
    for file in offers:
        (tmp_path / file).touch()
    ran = meshd("upgrade", "--check", "--from", str(tmp_path))
    assert ran.code == (1 if missing else 0)
    for name in ("meshd_native", "meshd_native_cuda13"):
        assert (f"`{name}-{NEWER}-….whl`" in ran.err) == (name in missing)
    last = meshd("upgrade", "--check", "--force", "--from", str(tmp_path)).out.splitlines()[-1]
    packages = " ".join(missing).replace("_", "-")
    assert last.endswith(
        f"uninstall --yes {packages}" if missing else str(tmp_path / (offers or [WHEEL])[-1])
    )


def test_uv_keeps_nothing_that_it_is_not_given(
    tmp_path: Path, pinned: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned()
    installed = Installation("uv", "", {"meshd-native": "0.0.1"})
    monkeypatch.setattr(upgrade, "installation", lambda _prefix: installed)
    assert meshd("upgrade", "--check", "--from", str(tmp_path)).code == 1
    last = meshd("upgrade", "--check", "--force", "--from", str(tmp_path)).out.splitlines()[-1]
    assert last == f"  uv tool install --force {tmp_path / WHEEL}"


@pytest.mark.parametrize(
    ("by", "step"),
    [
        ("pip", f"{sys.executable} -P -m pip uninstall --yes x y"),
        ("pipx", "pipx runpip meshd uninstall --yes x y"),
        ("uv-pip", f"uv pip uninstall --directory / --python {sys.executable} x y"),
    ],
)
def test_each_installer_uninstalls(by: str, step: str) -> None:
    assert [shlex.join(one) for one in upgrade.removal(Installation(by), ["x", "y"])] == [step]


@pytest.mark.parametrize("content", [b"sdist = 3", b"files = 1", b"\xff", bytes(65 << 20)])
def test_a_wheel_with_an_odd_pin_has_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / WHEEL
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("meshd/native/UPSTREAM.toml", content)
    assert upgrade.carried_pin(str(file)) is None


def test_a_wheel_of_a_page_is_not_looked_for_in_this_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planted = tmp_path / "https:" / "host"
    planted.mkdir(parents=True)
    sources = native_folder()
    with zipfile.ZipFile(planted / WHEEL, "w") as wheel:
        for path in [sources / "UPSTREAM.toml", *(sources / "mesh").rglob("*")]:
            wheel.write(path, f"meshd/native/{path.relative_to(sources)}")
    assert upgrade.carried_pin(f"https://host/{WHEEL}") is None
    assert upgrade.carried_pin(str(planted / WHEEL)) is not None


@given(st.binary())
def test_any_file_has_a_pin_or_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("wheels") / WHEEL
    file.write_bytes(content)
    assert upgrade.carried_pin(str(file)) is None
