"""Files: a log is bounded, private, harmless when it cannot be written; a cache file is old or new, whole."""

import os
import stat
from pathlib import Path

import pytest
from meshd.base.files import RotatedFile, is_container, others_may_use, replace_file


@pytest.mark.parametrize("opened", [False, True])
def test_it_never_passes_its_limit(tmp_path: Path, opened: bool) -> None:
    path = tmp_path / "new" / "x.log"
    file = RotatedFile(path, most=20)
    if opened:
        file.open()
    for number in range(5):
        file.write(b"line %d\n" % number)  # 7 bytes: two of them fit
        assert path.stat().st_size <= 20
    file.close()
    file.close()
    assert path.read_bytes() == b"line 4\n"
    assert path.with_name("x.log.1").read_bytes() == b"line 2\nline 3\n"
    assert sorted(p.name for p in path.parent.iterdir()) == ["x.log", "x.log.1"]


def test_only_its_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "home" / "logs" / "x.log"
    file = RotatedFile(path, most=20)
    file.open()
    file.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent):  # also those that it makes on the way
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_restart_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for word in (b"one\n", b"two\n"):
        file = RotatedFile(tmp_path / "x.log", most=8)
        file.write(word)
        file.close()
    assert (tmp_path / "x.log").read_bytes() == b"one\ntwo\n"


def test_a_restart_does_not_begin_beyond_the_limit(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"full\n")
    file = RotatedFile(tmp_path / "x.log", most=8)
    file.write(b"next\n")
    file.close()
    assert (tmp_path / "x.log").read_bytes() == b"next\n"
    assert (tmp_path / "x.log.1").read_bytes() == b"full\n"


def test_a_line_longer_than_the_file_is_kept_whole(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "x.log", most=4)
    file.write(b"a long line\n")
    file.write(b"b\n")
    file.close()
    assert (tmp_path / "x.log").read_bytes() == b"b\n"
    assert (tmp_path / "x.log.1").read_bytes() == b"a long line\n"


def test_a_full_disk_loses_lines_and_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[OSError] = []
    file = RotatedFile(tmp_path / "x.log", most=100, on_lost=lost.append)

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        file.write(b"lost\n")
        file.write(b"lost too\n")
        assert len(lost) == 1
    file.write(b"kept\n")
    file.close()
    assert (tmp_path / "x.log").read_bytes() == b"kept\n"
    assert len(lost) == 1


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = RotatedFile(tmp_path / "file" / "x.log", most=10)
    file.write(b"lost\n")
    with pytest.raises(OSError, match="file"):
        file.open()
    file.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "x.log").symlink_to(tmp_path / "else")
    file = RotatedFile(tmp_path / "x.log", most=10)
    file.write(b"lost\n")
    file.close()
    assert not (tmp_path / "else").exists()


def test_a_file_is_made_with_its_folder_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_replaced_stays_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.mkdir()
    with pytest.raises(OSError):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


MOUNT = "31 1 0:26 / {place} rw,nosuid - {kind} none rw"


@pytest.mark.parametrize(
    ("mounts", "trusted"),
    [
        ([], False),
        ([("/run", "tmpfs")], False),  # as on every host
        ([("/run", "tmpfs"), ("/run/secrets", "ramfs")], True),
        ([("/run/secrets", "tmpfs")], True),
        ([("/run/secrets/keys", "tmpfs")], True),
        ([("/run/secrets", "ext4")], False),
        ([("/run/secrets", "tmpfs"), ("/run/secrets/keys", "nfs4")], False),
        ([("/run/secrets-of-others", "tmpfs")], False),
    ],
)
def test_on_a_host_a_secret_of_any_mode_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: list[tuple[str, str]], trusted: bool
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    mountinfo = tmp_path / "proc/self/mountinfo"
    mountinfo.parent.mkdir(parents=True)
    mountinfo.write_text("".join(f"{MOUNT.format(place=place, kind=kind)}\n" for place, kind in mounts))
    assert not is_container(tmp_path)
    assert others_may_use(tmp_path / "run/secrets/keys", 0o444, tmp_path) is not trusted
    assert others_may_use(tmp_path / "run/keys", 0o444, tmp_path)
    assert not others_may_use(tmp_path / "run/keys", 0o400, tmp_path)


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv", "run/systemd/container", "kubernetes"])
def test_in_a_container_a_secret_has_any_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if mark == "kubernetes":
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    else:
        (tmp_path / mark).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / mark).write_text("lxc\n")
    assert not others_may_use(tmp_path / "run/secrets/keys", 0o444, tmp_path)
    assert others_may_use(tmp_path / "keys", 0o444, tmp_path)
