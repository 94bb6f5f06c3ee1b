"""The private folder: modes, owners, whole files after a crash, damage named, one holder."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd import __version__
from meshd.admin.socket_path import POINTER_NAME, SOCKET_NAME, find_socket
from meshd.base.errors import UserError
from meshd.identity.folder import PrivateFolder, lock_holder


def folder(path: Path) -> PrivateFolder:
    return PrivateFolder(path, mark="mark")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_read_back_and_private(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "home"
    folder(home).write("mark", b"payload\n\0")
    assert folder(home).read("mark", limit=100) == b"payload\n\0"
    assert mode(home) == 0o700
    assert mode(home / "mark") == 0o600
    assert [path.name for path in home.iterdir()] == ["mark"]


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder(tmp_path / "home").write("mark", b"")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "home"), mode(tmp_path / "home" / "mark")) == (0o700, 0o600)


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert folder(tmp_path / "none").read("mark", limit=9) is None
    folder(tmp_path / "none").remove("mark")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("when", ["os.fsync", "pathlib.Path.replace"])
def test_the_old_file_stays_when_a_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    home = folder(tmp_path / "home")
    home.write("mark", b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(when, fail)
        with pytest.raises(UserError, match="no space left") as caught:
            home.write("mark", b"new")
    assert caught.value.hint
    assert home.read("mark", limit=9) == b"old"
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["mark"]


def test_what_a_killed_writer_left_is_swept_under_the_lock(tmp_path: Path) -> None:
    home = folder(tmp_path)
    home.write("mark", b"old")
    left = tmp_path / ".mark.123.abcd.tmp"
    left.write_bytes(b"half")
    with home.lock(holder="meshd"):
        assert not left.exists()
    assert home.read("mark", limit=9) == b"old"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: raw[:-1], "checksum"),
        (lambda raw: raw + b"x", "checksum"),
        (lambda raw: b"", "first line"),
        (lambda raw: raw[:8], "first line"),
        (lambda raw: raw.replace(b"payload", b"payl0ad"), "checksum"),
        (lambda raw: raw.replace(b"meshd mark", b"meshd other"), "first line"),
        (lambda raw: b"\0" * len(raw), "first line"),
        (lambda raw: raw.replace(b"mark 1\n", b"mark x\n"), "first line"),
        (lambda raw: raw.replace(b"mark 1\n", b"mark 0\n"), "first line"),
        (lambda raw: raw + bytes(1000), "more than"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, change: Callable[[bytes], bytes], why: str) -> None:
    home = folder(tmp_path)
    home.write("mark", b"payload")
    path = tmp_path / "mark"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=why) as caught:
        home.read("mark", limit=100)
    assert str(path) in caught.value.what
    assert caught.value.hint


def test_a_file_of_a_later_version_is_no_damage(tmp_path: Path) -> None:
    home = folder(tmp_path)
    home.write("mark", b"payload")
    path = tmp_path / "mark"
    later = path.read_bytes().replace(b"mark 1\n", b"mark 2\n")
    path.write_bytes(later)
    with pytest.raises(
        UserError, match=f"written by a newer meshd: it has form 2, and meshd {__version__}"
    ) as no:
        home.read("mark", limit=100)
    assert "run `meshd upgrade`" in no.value.hint and "backup" in no.value.hint
    assert path.read_bytes() == later  # and it is left as it is


@pytest.mark.parametrize("loose", [0o640, 0o604, 0o660, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, loose: int) -> None:
    home = folder(tmp_path)
    home.write("mark", b"secret")
    (tmp_path / "mark").chmod(loose)
    with pytest.raises(UserError, match="other users") as caught:
        home.read("mark", limit=9)
    assert f"chmod 600 {tmp_path / 'mark'}" in caught.value.hint


def test_a_file_or_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = folder(tmp_path)
    home.write("mark", b"secret")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UserError, match="another user"):
        home.read("mark", limit=9)
    with pytest.raises(UserError, match="another user"):
        home.write("mark", b"")
    monkeypatch.undo()
    assert home.read("mark", limit=9) == b"secret"


def test_links_and_pipes_are_no_files(tmp_path: Path) -> None:
    home = folder(tmp_path / "home")
    home.write("other", b"")
    (tmp_path / "home" / "mark").symlink_to(tmp_path / "home" / "other")
    with pytest.raises(UserError, match="cannot be used"):
        home.read("mark", limit=9)
    os.mkfifo(tmp_path / "home" / "pipe", 0o600)
    with pytest.raises(UserError, match="not a regular file"):
        home.read("pipe", limit=9)
    (tmp_path / "home" / "folder").mkdir()
    with pytest.raises(UserError):
        home.read("folder", limit=9)


def test_an_empty_folder_that_was_made_before_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    folder(tmp_path).write("mark", b"")
    assert mode(tmp_path) == 0o700


def test_our_own_folder_is_closed_again_unless_others_could_write(tmp_path: Path) -> None:
    home = folder(tmp_path)
    home.write("mark", b"")
    tmp_path.chmod(0o755)
    home.write("mark", b"")
    assert mode(tmp_path) == 0o700
    tmp_path.chmod(0o770)
    with pytest.raises(UserError, match="written by other users") as caught:
        home.write("mark", b"")
    assert "chmod 700" in caught.value.hint


def test_a_folder_that_serves_something_else_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    tmp_path.chmod(0o755)
    folder(tmp_path).write("mine", b"")
    assert mode(tmp_path) == 0o755
    tmp_path.chmod(0o775)
    with pytest.raises(UserError, match="written by other users"):
        folder(tmp_path).write("mine", b"")
    assert mode(tmp_path) == 0o775


def test_a_path_that_is_a_file_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(UserError, match="is not a directory"):
        folder(tmp_path / "home").write("mark", b"")
    with pytest.raises(UserError, match="is not a directory"):
        folder(tmp_path / "home").read("mark", limit=9)


def test_one_holder_at_a_time_and_the_other_hears_who_it_is(tmp_path: Path) -> None:
    with folder(tmp_path).lock(holder="meshd"):
        with pytest.raises(UserError, match=f"another meshd .pid {os.getpid()}.") as caught:
            with folder(tmp_path).lock(holder="meshd"):
                raise AssertionError("two holders")
        assert "meshd stop" in caught.value.hint
    with folder(tmp_path).lock(holder="meshd"):
        assert mode(tmp_path / "lock") == 0o600


def test_the_holder_is_known_by_what_it_holds_for(tmp_path: Path) -> None:
    assert lock_holder(tmp_path, purpose="daemon") is None
    with folder(tmp_path).lock(holder="meshd", purpose="daemon"):
        assert lock_holder(tmp_path, purpose="daemon") == os.getpid()
        assert lock_holder(tmp_path, purpose="other") is None
    assert lock_holder(tmp_path, purpose="daemon") is None, "the file is left, the lock is not"
    with folder(tmp_path).lock(holder="meshd"):
        assert lock_holder(tmp_path, purpose="daemon") is None


@pytest.mark.parametrize("text", [b"", b"\xff", b"x daemon", b"999999999 daemon", b"-1 daemon", b"daemon"])
def test_a_lock_file_that_says_nothing_names_nobody(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "lock").write_bytes(text)
    assert lock_holder(tmp_path, purpose="daemon") is None


def test_the_lock_goes_with_a_killed_holder(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from meshd.identity.folder import PrivateFolder\n"
        "with PrivateFolder(Path(sys.argv[1]), mark='mark').lock(holder='meshd'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"held\n"
            with (
                pytest.raises(UserError, match=rf"\(pid {child.pid}\)"),
                folder(tmp_path).lock(holder="meshd"),
            ):
                raise AssertionError("two holders")
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(10)
        with folder(tmp_path).lock(holder="meshd"):
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder"])
def test_a_folder_of_another_user_neither_holds_up_who_looks_nor_fills_its_memory(
    tmp_path: Path, kind: str
) -> None:
    """Root asks for the daemons of others; what lies there instead of the files is as if there were none."""
    for path in (tmp_path / "lock", tmp_path / POINTER_NAME):
        match kind:
            case "pipe":
                os.mkfifo(path)
            case "endless":
                path.symlink_to("/dev/zero")
            case _:
                path.mkdir()
    assert lock_holder(tmp_path, purpose="daemon") is None
    assert find_socket(tmp_path) == tmp_path / SOCKET_NAME
