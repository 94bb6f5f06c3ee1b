"""`meshd upgrade`: how meshd was installed, what there is, and the command that replaces it."""

import functools
import http.server
import importlib.metadata
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd import __version__
from meshd.base.errors import UserError
from meshd.cli import upgrade
from meshd.cli.upgrade import Installation, Offer, commands, fits, installation, offered, read_origin
from meshd.wire.versions import release_of

from tests.unit.cli.shell import meshd

NEWER = "1000.0.0"
WHEEL = f"meshd-{NEWER}-py3-none-any.whl"
NATIVE = f"meshd_native-{NEWER}-py3-none-manylinux_2_28_x86_64.whl"
ROOT = Path(__file__).parents[3]


class Distribution:
    """What pip or uv has noted of an installed package."""

    def __init__(self, name: str = "meshd", **notes: str) -> None:
        self.name = name
        self._notes = notes

    def read_text(self, file: str) -> str | None:
        """One of its files."""
        return self._notes.get(file.partition(".")[0])


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that meshd is installed so, beside other packages."""

    def pretend(noted: Distribution, *others: str) -> None:
        packages = [noted, *map(Distribution, others)]
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: noted)
        monkeypatch.setattr(importlib.metadata, "distributions", lambda: packages)
        monkeypatch.setattr(upgrade, "_is_of_a_package", lambda _file: False)

    return pretend


@pytest.fixture
def by_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if pip had installed it from a folder that is gone."""
    monkeypatch.setattr(upgrade, "installation", lambda _prefix: Installation("pip", "", ("meshd-native",)))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def url(text: str, **more: object) -> str:
    return json.dumps({"url": text, **more})


# -- how it was installed


@pytest.fixture
def in_a_clone(has: Callable[..., None]) -> None:
    """As `make build` installs it."""
    has(Distribution(direct_url=url(ROOT.as_uri(), dir_info={"editable": True})))


def test_a_checkout_is_updated_as_a_clone(in_a_clone: None) -> None:
    ran = meshd("upgrade", "--check")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        f"installed  meshd {__version__} (from the clone {ROOT})\n"
        "to update, run:\n"
        f"  git -C {ROOT} pull && make -C {ROOT} build\n"
    )


def test_wheels_do_not_replace_a_clone(tmp_path: Path, in_a_clone: None) -> None:
    ran = meshd("upgrade", "--from", str(tmp_path))
    assert ran.code == 1 and "does not replace" in ran.err and f"git -C {ROOT} pull" in ran.err


@pytest.mark.parametrize(
    ("file", "notes", "by"),
    [
        ("uv-receipt.toml", {"INSTALLER": "uv\n"}, "uv"),
        ("pipx_metadata.json", {"INSTALLER": "pip\n"}, "pipx"),
        ("", {"INSTALLER": "uv\n"}, "uv-pip"),
        ("", {"INSTALLER": "pip\n"}, "pip"),
        ("", {}, "pip"),
    ],
)
def test_its_installer_is_found(
    tmp_path: Path, has: Callable[..., None], file: str, notes: dict[str, str], by: str
) -> None:
    if file:
        (tmp_path / file).touch()
    has(
        Distribution(direct_url=url("file:///a/new%20one/meshd.whl", archive_info={}), **notes),
        "meshd_native",
        "x",
    )
    assert installation(tmp_path) == Installation(by, "/a/new one/", ("meshd-native",))


def test_a_package_of_debian_is_told_from_those_of_python(
    tmp_path: Path, has: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    has(Distribution())
    monkeypatch.setattr(upgrade, "_is_of_a_package", lambda file: file.name == "__init__.py")
    assert installation(tmp_path).by == "deb"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (url("https://example.org/v1/meshd-1.whl", archive_info={}), ("https://example.org/v1/", False)),
        (url("file:///home/me/meshd", dir_info={"editable": True}), ("/home/me/meshd", True)),
        (url("file:///home/me/meshd", dir_info={}), ("/home/me/meshd", False)),
        (None, ("", False)),
        ("{}", ("", False)),
        ('{"url": 3}', ("", False)),
        ("[]", ("", False)),
    ],
)
def test_where_it_came_from_is_read(text: str | None, origin: tuple[str, bool]) -> None:
    assert read_origin(text) == origin


JSON = st.recursive(st.none() | st.text(), lambda value: st.dictionaries(st.text(), value))


@given(st.text() | JSON.map(json.dumps) | st.text().map(url) | st.just(url("http://[")))
def test_any_note_of_an_origin_is_read_or_left_alone(text: str) -> None:
    read_origin(text)


def test_what_was_installed_from_a_clone_is_updated_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(upgrade, "installation", lambda _prefix: Installation("pipx", str(tmp_path)))
    last = meshd("upgrade").out.splitlines()[-1]
    again = f"pipx install --force '{tmp_path}[build]'"
    assert last == f"  git -C {tmp_path} pull && {again} && meshd native build"


# -- what there is


@pytest.mark.parametrize(
    ("tag", "system", "machine", "fit"),
    [
        ("any", "linux", "x86_64", True),
        ("manylinux_2_28_x86_64", "linux", "x86_64", True),
        ("manylinux_2_28_aarch64", "linux", "x86_64", False),
        ("manylinux_2_28_aarch64", "linux", "aarch64", True),
        ("macosx_13_0_arm64", "darwin", "arm64", True),
        ("macosx_13_0_x86_64", "linux", "x86_64", False),
        ("manylinux_2_28_x86_64", "darwin", "x86_64", False),
        ("amd64", "linux", "x86_64", True),
        ("all", "linux", "riscv64", True),
    ],
)
def test_only_files_for_this_machine_count(tag: str, system: str, machine: str, fit: bool) -> None:
    assert fits(tag, system, machine) is fit


def test_the_newest_release_and_its_programs_are_offered(tmp_path: Path, by_pip: None) -> None:
    for name in (
        "meshd-9.0.0-py3-none-any.whl",
        WHEEL,
        "meshd-1001.0.0rc1-py3-none-any.whl",
        "meshd-1002.0.0.tar.gz",
        "other-1002.0.0-py3-none-any.whl",
        NATIVE,
        "meshd_native-9.0.0-py3-none-manylinux_2_28_x86_64.whl",
        NATIVE.replace("x86_64", "aarch64"),
    ):
        (tmp_path / name).touch()
    ran = meshd("upgrade", "--check", "--from", str(tmp_path))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[1:] == [
        f"newest     meshd {NEWER} in {tmp_path}",
        "to upgrade, run:",
        f"  {sys.executable} -m pip install --upgrade {tmp_path / WHEEL} {tmp_path / NATIVE}",
    ]
    (tmp_path / NATIVE).unlink()
    ran = meshd("upgrade", "--check", "--from", str(tmp_path))
    assert ran.out.endswith(f"{WHEEL}\n")
    assert f"no meshd-native {NEWER} for this machine there: run `meshd native build` afterwards" in ran.err


def test_what_is_not_newer_is_left(tmp_path: Path, by_pip: None) -> None:
    (tmp_path / f"meshd-{__version__}-py3-none-any.whl").touch()
    (tmp_path / "meshd-0.0.1-py3-none-any.whl").touch()
    ran = meshd("upgrade", "--from", str(tmp_path))
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "nothing to do")


def test_without_a_place_no_index_is_asked(by_pip: None) -> None:
    ran = meshd("upgrade")
    assert ran.code == 1 and "no package index has them" in ran.err and "meshd upgrade --from DIR" in ran.err


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("/does/not/exist", "no such file or directory"),
        ("http://example.org/", "give a page by https://"),
        ("ftp://example.org/", "give a page by https://"),
        ("http://127.0.0.1:1/", "cannot read `http://127.0.0.1:1/`"),
    ],
)
def test_a_place_that_cannot_be_read_is_told_with_the_remedy(by_pip: None, origin: str, words: str) -> None:
    ran = meshd("upgrade", "--from", origin)
    assert ran.code == 1 and words in ran.err and "hint: give" in ran.err


def test_a_place_without_meshd_is_told(tmp_path: Path, by_pip: None) -> None:
    ran = meshd("upgrade", "--from", str(tmp_path))
    assert ran.code == 1 and f"there is no meshd in `{tmp_path}`" in ran.err


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """A page that lists a folder, as a web server writes it."""
    (tmp_path / WHEEL).touch()
    (tmp_path / "a&b.txt").touch()
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Write no log."""

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""


def test_a_page_with_links_is_a_place_too(page: str, by_pip: None) -> None:
    ran = meshd("upgrade", "--check", "--from", page)
    assert ran.out.splitlines()[-1] == f"  {sys.executable} -m pip install --upgrade {page}{WHEEL}"


@given(st.text(alphabet=st.sampled_from("meshd_-nativ0123456789.whlpycuo"), max_size=40))
def test_only_files_of_meshd_are_taken_for_its_own(name: str) -> None:
    match = upgrade._WHEEL.fullmatch(name)
    assert match is None or name.startswith("meshd")


# -- what is run


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("uv", ["uv tool install --force M --with N"]),
        ("pipx", ["pipx install --force M", "pipx inject --force meshd N"]),
        ("uv-pip", [f"uv pip install --python {sys.executable} M N"]),
        ("pip", [f"{sys.executable} -m pip install --upgrade M N"]),
        ("deb", ["sudo apt install M"]),
    ],
)
def test_each_installer_gets_files_and_never_the_name_of_meshd(by: str, expected: list[str]) -> None:
    newest, native = Offer("meshd", (1, 0, 0), "M"), Offer("meshd-native", (1, 0, 0), "N")
    steps = [" ".join(step) for step in commands(Installation(by), newest, [native])]
    assert steps == expected
    assert all("meshd" not in step or "inject" in step for step in steps)  # there it names the environment


@pytest.fixture
def installer(tmp_path: Path, by_pip: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for Python: what it was called with, and its version of meshd afterwards, are files."""
    script, folder = tmp_path / "python", tmp_path / "wheels"
    folder.mkdir()
    (folder / WHEEL).touch()
    script.write_text(
        f'#!/bin/sh\nif [ "$2" = -m ]; then cat {tmp_path}/version; else echo "$@" > {tmp_path}/called; '
        f"exit $(cat {tmp_path}/code); fi\n"
    )
    script.chmod(0o755)
    (tmp_path / "version").write_text(f"meshd {NEWER}\nwire protocol 1\n")
    (tmp_path / "code").write_text("0")
    monkeypatch.setattr(sys, "executable", str(script))
    return tmp_path


def test_the_command_is_run_and_its_result_checked(installer: Path) -> None:
    wheels = installer / "wheels"
    ran = meshd("upgrade", "--from", str(wheels))
    assert ran.code == 0 and ran.out.endswith(f"installed  meshd {NEWER}\n")
    assert (installer / "called").read_text() == f"-m pip install --upgrade {wheels / WHEEL}\n"
    (installer / "version").write_text(f"meshd {__version__}\n")
    ran = meshd("upgrade", "--from", str(wheels))
    assert ran.code == 1 and f"meshd {NEWER} was installed, but" in ran.err


def test_a_command_that_fails_is_told(installer: Path) -> None:
    (installer / "code").write_text("7")
    ran = meshd("upgrade", "--from", str(installer / "wheels"))
    assert ran.code == 1 and "failed (exit code 7)" in ran.err and "run `meshd upgrade` again" in ran.err
    (installer / "python").unlink()
    ran = meshd("upgrade", "--from", str(installer / "wheels"))
    assert ran.code == 1 and "cannot run" in ran.err


@pytest.mark.parametrize(
    ("name", "system"),
    [
        (f"meshd_{NEWER}-1+debian12_amd64.deb", {"ID": "debian", "VERSION_ID": "12"}),
        (f"meshd_{NEWER}-1+ubuntu24.04_amd64.deb", {"ID": "ubuntu", "VERSION_ID": "24.04"}),
        (f"meshd_{NEWER}-1_amd64.deb", {"ID": "debian"}),
    ],
)
def test_a_package_of_debian_is_left_to_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, system: dict[str, str]
) -> None:
    monkeypatch.setattr(upgrade, "installation", lambda _prefix: Installation("deb"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: system)
    for file in (name, name.replace("amd64", "arm64"), "meshd_2000.0.0-1+debian99_amd64.deb"):
        (tmp_path / file).touch()
    ran = meshd("upgrade", "--from", str(tmp_path))
    assert (ran.code, ran.out.splitlines()[-1]) == (0, f"  sudo apt install {tmp_path / name}")


def test_offers_come_with_numbers_of_a_release(tmp_path: Path) -> None:
    (tmp_path / WHEEL).touch()
    [offer] = offered(str(tmp_path), re.compile(r"(meshd)-(.*)-py3-none-(any).whl"))
    assert (offer.release, offer.version) == (release_of(NEWER), NEWER)
    with pytest.raises(UserError):
        offered(str(tmp_path / WHEEL), upgrade._WHEEL)
