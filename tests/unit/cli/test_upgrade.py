"""`meshd upgrade`: how meshd was installed, what there is, and the command that replaces it."""

import functools
import http.server
import importlib.metadata
import json
import os
import re
import socket
import sys
import threading
import urllib.parse
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
CUDA = NATIVE.replace("native", "native_cuda13")


class Distribution:
    """The notes of pip or uv on an installed package."""

    def __init__(self, name: str = "meshd", **notes: str) -> None:
        self.name = name
        self.version = "9.8.7"
        self._notes = notes

    def read_text(self, file: str) -> str | None:
        """One of its files."""
        return self._notes.get(file.partition(".")[0])


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Files that the tests make are written by their user only, as `meshd upgrade` wants them."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that meshd is installed so, beside other packages."""

    def pretend(noted: Distribution, *others: str) -> None:
        packages = [noted, *map(Distribution, others)]
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: noted)
        monkeypatch.setattr(importlib.metadata, "distributions", lambda: packages)

    return pretend


@pytest.fixture
def by_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if pip had installed it from a folder that is gone."""
    installed = Installation("pip", "", {"meshd-native": __version__})
    monkeypatch.setattr(upgrade, "installation", lambda _prefix: installed)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def url(text: str, **more: object) -> str:
    return json.dumps({"url": text, **more})


# -- how it was installed


@pytest.fixture
def clone(tmp_path: Path, has: Callable[..., None]) -> Path:
    """As `make build` installs it."""
    (tmp_path / "clone").mkdir()
    has(Distribution(direct_url=url((tmp_path / "clone").as_uri(), dir_info={"editable": True})))
    return tmp_path / "clone"


def test_a_checkout_is_updated_as_a_clone(clone: Path) -> None:
    ran = meshd("upgrade", "--check")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        f"installed  meshd {__version__} (from the clone {clone})\n"
        "to update, run:\n"
        f"  git -C {clone} pull && make -C {clone} build\n"
    )


def test_wheels_do_not_replace_a_clone(tmp_path: Path, clone: Path) -> None:
    ran = meshd("upgrade", "--from", str(tmp_path))
    assert ran.code == 1 and "does not replace" in ran.err and f"git -C {clone} pull" in ran.err


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
    assert installation(tmp_path) == Installation(by, "/a/new one/", {"meshd-native": "9.8.7"})


def test_a_package_of_debian_is_told_from_those_of_python(tmp_path: Path, has: Callable[..., None]) -> None:
    has(Distribution(), "meshd-native")  # a part of the same .deb
    (tmp_path / "packaged-as").write_text("deb\n")
    assert installation(tmp_path) == Installation("deb")


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (url("https://example.org/v1/meshd-1.whl", archive_info={}), ("https://example.org/v1/", False)),
        (url("file:///home/me/meshd", dir_info={"editable": True}), ("/home/me/meshd", True)),
        (url("file:///home/me/meshd", dir_info={}), ("/home/me/meshd", False)),
        (url("https://example.org/me/meshd.git", vcs_info={"vcs": "git"}), ("", False)),
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
    ("tag", "system", "machine", "needs"),
    [
        ("any", "linux", "x86_64", (0, 0)),
        ("manylinux_2_28_x86_64", "linux", "x86_64", (2, 28)),
        ("manylinux_2_36_x86_64", "linux", "x86_64", (2, 36)),
        ("manylinux_2_37_x86_64", "linux", "x86_64", None),
        ("manylinux2014_x86_64", "linux", "x86_64", (0, 0)),
        ("musllinux_1_2_x86_64", "linux", "x86_64", None),
        ("manylinux_2_28_aarch64", "linux", "x86_64", None),
        ("manylinux_2_28_aarch64", "linux", "aarch64", (2, 28)),
        ("macosx_13_0_arm64", "darwin", "arm64", (13, 0)),
        ("macosx_13_0_x86_64", "linux", "x86_64", None),
        ("manylinux_2_28_x86_64", "darwin", "x86_64", None),
        ("amd64", "linux", "x86_64", (0, 0)),
        ("all", "linux", "riscv64", (0, 0)),
    ],
)
def test_only_files_for_this_machine_count(
    tag: str, system: str, machine: str, needs: tuple[int, int] | None
) -> None:
    assert fits(tag, system, machine, (2, 36) if system == "linux" else None) == needs


def test_a_machine_without_glibc_takes_files_for_musl() -> None:
    assert fits("manylinux_2_28_x86_64", "linux", "x86_64", None) is None
    assert fits("musllinux_1_2_x86_64", "linux", "x86_64", None) == (1, 2)


def test_one_file_of_each_package_is_installed(tmp_path: Path, by_pip: None) -> None:
    best = NATIVE.replace("2_28", "2_34")
    for name in (
        WHEEL,
        NATIVE,
        best,
        NATIVE.replace("2_28", "2_9"),
        NATIVE.replace("2_28", "2_37"),
        NATIVE.replace("manylinux_2_28", "musllinux_3_2"),
    ):
        (tmp_path / name).touch()
    last = meshd("upgrade", "--check", "--from", str(tmp_path)).out.splitlines()[-1]
    assert last.endswith(f" --upgrade {tmp_path / WHEEL} {tmp_path / best}")


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
        f"  {sys.executable} -P -m pip install --upgrade {tmp_path / WHEEL} {tmp_path / NATIVE}",
    ]


def test_what_is_not_newer_is_left(tmp_path: Path, by_pip: None) -> None:
    (tmp_path / f"meshd-{__version__}-py3-none-any.whl").touch()
    (tmp_path / "meshd-0.0.1-py3-none-any.whl").touch()
    ran = meshd("upgrade", "--from", str(tmp_path))
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "nothing to do")


def test_an_upgrade_that_failed_half_way_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_pip: None
) -> None:
    installed = Installation("pip", "", {"meshd-native": "0.0.1", "meshd-native-cuda13": __version__})
    monkeypatch.setattr(upgrade, "installation", lambda _prefix: installed)
    wheel, native = (name.replace(NEWER, __version__) for name in (WHEEL, NATIVE))
    (tmp_path / wheel).touch()
    ran = meshd("upgrade", "--from", str(tmp_path))
    assert (ran.code, len(ran.out.splitlines())) == (1, 2)
    assert f"`meshd_native-{__version__}-….whl` and `meshd_native_cuda13-{__version__}-….whl`" in ran.err
    for file in (native, CUDA.replace(NEWER, __version__)):
        (tmp_path / file).touch()
    last = meshd("upgrade", "--check", "--from", str(tmp_path)).out.splitlines()[-1]
    assert f" --upgrade {tmp_path / wheel} {tmp_path / native} " in last
    (tmp_path / wheel).rename(tmp_path / "meshd-0.0.1-py3-none-any.whl")
    assert meshd("upgrade", "--from", str(tmp_path)).out.endswith("nothing to do\n")


def test_without_a_place_no_index_is_asked(by_pip: None) -> None:
    ran = meshd("upgrade")
    assert ran.code == 1 and "no package index has them" in ran.err and "meshd upgrade --from DIR" in ran.err


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("/does/not/exist", "no such file or directory"),
        ("http://example.org/", "give a page by https://"),
        ("ftp://example.org/", "give a page by https://"),
        ("file:///tmp/", "give a page by https://"),
        ("http://127.0.0.1:1/", "cannot read `http://127.0.0.1:1/`"),
        ("http://127.0.0.1:port/", "cannot read `http://127.0.0.1:port/`"),
        ("http://127.0.0.1:1/a b", "cannot read `http://127.0.0.1:1/a b`"),
        ("http://127.0.0.1:1/\u00fc", "cannot read `http://127.0.0.1:1/\u00fc`"),
        (f"https://{'a' * 70}.example/", "cannot read `https://aaa"),
        ("https://[", "cannot use `https://[`"),
        ("/a\0b", "embedded null byte"),
        ("~nobody-of-that-name/wheels", "cannot read `~nobody-of-that-name/wheels`"),
    ],
)
def test_a_place_that_cannot_be_read_is_told_with_the_remedy(by_pip: None, origin: str, words: str) -> None:
    ran = meshd("upgrade", "--from", origin)
    assert ran.code == 1 and words in ran.err and "hint: give" in ran.err


@pytest.mark.parametrize(
    "place", ["me:secret@example.org/", "me:secret@[", "secret@h:port/", ":secret@\u2100/"]
)
def test_a_password_in_a_url_is_not_repeated(by_pip: None, place: str) -> None:
    ran = meshd("upgrade", "--from", f"https://{place}")
    assert ran.code == 1 and "with a user name or password" in ran.err and "secret" not in ran.out + ran.err


def test_a_place_without_meshd_is_told(tmp_path: Path, by_pip: None) -> None:
    ran = meshd("upgrade", "--from", str(tmp_path))
    assert ran.code == 1 and f"there is no meshd in `{tmp_path}`" in ran.err


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """A page that lists a folder, as a web server writes it."""
    for name in (WHEEL, NATIVE, "a&b.txt"):
        (tmp_path / name).touch()
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Write no log; redirect `/to/URL`, and answer `/nonsense` by no HTTP."""

    def do_GET(self) -> None:
        """Answer."""
        if self.path == "/nonsense":
            self.wfile.write(b"HTTP/1.0 nonsense\r\n\r\n")
        elif self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", urllib.parse.unquote(self.path.removeprefix("/to/")))
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""


def test_a_page_with_links_is_a_place_too(page: str, by_pip: None) -> None:
    ran = meshd("upgrade", "--check", "--from", page)
    install = f"  {sys.executable} -P -m pip install --upgrade"
    assert ran.out.splitlines()[-1] == f"{install} {page}{WHEEL} {page}{NATIVE}"
    assert meshd("upgrade", "--check", "--from", f"{page}to/{page}").out.splitlines()[-1] in ran.out


def test_a_page_that_is_gone_or_no_http_is_told(page: str, by_pip: None) -> None:
    for path, words in (("gone", "File not found"), ("nonsense", "nonsense")):
        ran = meshd("upgrade", "--from", page + path)
        assert ran.code == 1 and f"cannot read `{page}{path}`" in ran.err and words in ran.err


@pytest.mark.parametrize(
    "url", ["http://example.org/", "ftp://127.0.0.1:1/", "https://me:secret@127.0.0.1:1/"]
)
def test_each_redirect_of_a_page_is_to_a_safe_one(page: str, by_pip: None, url: str) -> None:
    target = urllib.parse.quote(url, safe="")
    ran = meshd("upgrade", "--from", f"{page}to/{page}to/{target}")
    assert ran.code == 1 and "error: cannot use" in ran.err and "secret" not in ran.out + ran.err


def test_links_that_are_not_safe_or_no_urls_are_left(tmp_path: Path, page: str, by_pip: None) -> None:
    newer = WHEEL.replace(NEWER, "2000.0.0")
    places = ("file:///", "ftp://h/", "http://example.org/", "https://[", "https://me:pw@h/", "data:,")
    good = "https://example.org/a/" + WHEEL
    links = [*(place + newer for place in places), good, NATIVE]
    (tmp_path / "index.html").write_text("".join(f'<a href="{link}">' for link in links))
    ran = meshd("upgrade", "--check", "--from", page)
    assert ran.out.splitlines()[-1].endswith(f" --upgrade {good} {page}{NATIVE}")


def test_a_page_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch, by_pip: None) -> None:
    monkeypatch.setattr(upgrade, "_PAGE_SECONDS", 0.5)
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        answer, _ = server.accept()
        with answer:
            answer.sendall(b"HTTP/1.0 200 OK\r\nX: ")
            while not over.wait(0.05):
                answer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        watch = threading.Timer(10, over.set)  # ends the test if meshd does not
        watch.start()
        ran = meshd("upgrade", "--from", f"http://127.0.0.1:{server.getsockname()[1]}/")
        gave_up = not over.is_set()
        watch.cancel()
        over.set()
        thread.join()
    assert gave_up and ran.code == 1 and "it takes more than" in ran.err


@given(st.text(alphabet=st.sampled_from("meshd_-nativ0123456789.whlpycuo"), max_size=40))
def test_only_files_of_meshd_are_taken_for_its_own(name: str) -> None:
    match = upgrade.WHEEL_NAME.fullmatch(name)
    assert match is None or name.startswith("meshd")


# -- whom a place belongs to


@pytest.fixture
def belongs_to_another(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Pretend that another user, who is not root, owns a path."""
    lstat = Path.lstat

    def pretend(alien: Path) -> None:
        def of_another(path: Path) -> os.stat_result:
            about = lstat(path)
            return os.stat_result((*about[:4], 4242, *about[5:10])) if path == alien else about

        monkeypatch.setattr(Path, "lstat", of_another)

    return pretend


@pytest.fixture
def place(tmp_path: Path, by_pip: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a new wheel, from which the installed one came."""
    folder = tmp_path / "above" / "place"
    folder.mkdir(parents=True)
    (folder / WHEEL).touch()
    monkeypatch.setattr(upgrade, "installation", lambda _prefix: Installation("pip", f"{folder}/"))
    assert meshd("upgrade", "--check").code == 0
    return folder


def not_trusted(path: Path, *words: str) -> None:
    """`meshd upgrade` refuses because of `path`, and prints no command."""
    ran = meshd("upgrade", "--check")
    assert ran.code == 1 and "to up" not in ran.out, ran
    for word in ("cannot trust", f"`{path}` ", *words):
        assert word in ran.err, ran


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_place_that_others_can_write_is_refused(place: Path, mode: int) -> None:
    place.chmod(mode)
    remedy = (
        "hint: copy trusted wheels"
        if mode == 0o1777
        else f"hint: check what is there, and run `chmod go-w {place}`"
    )
    not_trusted(place, f"can be written by other users (mode {mode:04o})", remedy)
    assert "--from DIR" in meshd("upgrade", "--from", str(place)).err


def test_a_place_that_others_can_replace_is_refused(place: Path) -> None:
    place.parent.chmod(0o777)
    not_trusted(place.parent, "can be written")
    place.parent.chmod(0o1777)  # what is ours stays ours there, as in /tmp
    assert meshd("upgrade", "--check").code == 0


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_file_that_others_can_write_is_refused(place: Path, mode: int) -> None:
    (place / WHEEL).chmod(mode)
    not_trusted(place / WHEEL, "can be written", "chmod go-w")


def test_a_file_of_another_user_is_refused(place: Path, belongs_to_another: Callable[[Path], None]) -> None:
    belongs_to_another(place / WHEEL)
    not_trusted(place / WHEEL, "belongs to another user (uid 4242)", "hint: copy trusted wheels")


@pytest.mark.parametrize("above", [False, True])
def test_a_place_of_another_user_is_refused(
    place: Path, belongs_to_another: Callable[[Path], None], above: bool
) -> None:
    alien = place.parent if above else place
    belongs_to_another(alien)
    not_trusted(alien, "belongs to another user")


def test_a_link_counts_as_what_it_leads_to(place: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    newer = tmp_path / "open" / WHEEL.replace(NEWER, "2000.0.0")
    newer.touch()
    (place / WHEEL.replace(NEWER, "3000.0.0")).symlink_to(newer)
    assert meshd("upgrade", "--check").out.endswith(f" {newer}\n")
    newer.parent.chmod(0o777)
    not_trusted(newer.parent, "can be written")


def test_only_files_count(place: Path) -> None:
    (place / WHEEL.replace(NEWER, "2000.0.0")).mkdir()
    (place / "notes").touch()
    (place / WHEEL.replace(NEWER, "2000.0.3")).symlink_to("notes")  # no installer takes a file called so
    (place / WHEEL.replace(NEWER, "2000.0.1")).symlink_to("nothing")
    (place / WHEEL.replace(NEWER, "2000.0.2")).symlink_to(WHEEL.replace(NEWER, "2000.0.2"))
    assert meshd("upgrade", "--check").out.endswith(f" {place / WHEEL}\n")


@pytest.mark.parametrize("editable", [True, False])
def test_a_clone_of_another_user_is_refused(
    clone: Path,
    has: Callable[..., None],
    belongs_to_another: Callable[[Path], None],
    editable: bool,
) -> None:
    (clone / "pyproject.toml").touch()
    has(Distribution(direct_url=url(clone.as_uri(), dir_info={"editable": editable})))
    clone.chmod(0o775)  # as git makes it for many users
    assert "git -C" in meshd("upgrade").out
    clone.chmod(0o777)
    not_trusted(clone, "can be written", "install from a clone of your own")
    clone.chmod(0o755)
    belongs_to_another(clone)
    not_trusted(clone, "belongs to another user", "hint: install from a clone of your own")


def test_the_command_for_a_clone_follows_no_link(
    tmp_path: Path, clone: Path, has: Callable[..., None]
) -> None:
    (tmp_path / "link").symlink_to(clone)  # its owner could change it before the command is run
    has(Distribution(direct_url=url((tmp_path / "link").as_uri(), dir_info={"editable": True})))
    assert meshd("upgrade").out.endswith(f"  git -C {clone} pull && make -C {clone} build\n")


def test_a_clone_that_is_gone_is_told(has: Callable[..., None]) -> None:
    for folder, words in (("/does/not/exist", "no such file"), ("/a%00b", "embedded null byte")):
        has(Distribution(direct_url=url(f"file://{folder}", dir_info={"editable": True})))
        ran = meshd("upgrade")
        assert ran.code == 1 and "cannot read `" in ran.err and words in ran.err


# -- what is run


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("uv", ["uv tool install --force M --with N"]),
        ("pipx", ["pipx install --force M", "pipx inject --force meshd N"]),
        ("uv-pip", [f"uv pip install --directory / --python {sys.executable} M N"]),
        ("pip", [f"{sys.executable} -P -m pip install --upgrade M N"]),
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
    for name in (WHEEL, NATIVE):
        (folder / name).touch()
    script.write_text(
        f'#!/bin/sh\nif [ "$3" = meshd ]; then cat {tmp_path}/version; '
        f'else echo "$PWD: $@" > {tmp_path}/called; exit $(cat {tmp_path}/code); fi\n'
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
    assert (installer / "called").read_text() == (
        f"/: -P -m pip install --upgrade {wheels / WHEEL} {wheels / NATIVE}\n"
    )
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


def test_a_package_of_debian_is_not_taken_from_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "installation", lambda _prefix: Installation("deb"))
    ran = meshd("upgrade", "--from", "https://127.0.0.1:1/")
    assert ran.code == 1 and "hint: download the .deb" in ran.err and "cannot read" not in ran.err


def test_offers_come_with_numbers_of_a_release(tmp_path: Path) -> None:
    (tmp_path / WHEEL).touch()
    [offer] = offered(str(tmp_path), re.compile(r"(meshd)-(.*)-py3-none-(any).whl"))
    assert (offer.release, offer.version) == (release_of(NEWER), NEWER)
    with pytest.raises(UserError):
        offered(str(tmp_path / WHEEL), upgrade.WHEEL_NAME)
