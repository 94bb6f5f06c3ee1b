"""wheels.archive: a wheel that pip can read, with the same bytes each time."""

import base64
import csv
import hashlib
import os
import random
import time
import zipfile
from pathlib import Path

import pytest
from wheels.archive import EARLIEST, Entry, Name, pack

NAME = Name("meshd_native", "1.2.3", "py3-none-manylinux_2_28_x86_64")
FILES = {
    "meshd_native/bin/program": Entry(b"\x7fELF" + bytes(5000), executable=True),
    "meshd_native/__init__.py": Entry(b'"""Of a test."""\n'),
    "meshd_native/a, b.json": Entry(b"{}"),
    f"{NAME.info}/METADATA": Entry(b"Metadata-Version: 2.4\n"),
}


def test_the_same_files_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their order, the day, the time zone and the mask."""
    first = pack(tmp_path / "first", NAME, FILES).read_bytes()
    shuffled = list(FILES.items())
    random.Random(1).shuffle(shuffled)
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    mask = os.umask(0o077)
    try:
        second = pack(tmp_path / "second", NAME, dict(reversed(shuffled))).read_bytes()
    finally:
        os.umask(mask)
        monkeypatch.undo()
        time.tzset()
    assert first == second


def test_its_times_are_those_that_are_asked_for(tmp_path: Path) -> None:
    for epoch, year in ((EARLIEST, 1980), (0, 1980), (1_735_689_600, 2025)):
        with zipfile.ZipFile(pack(tmp_path, NAME, FILES, epoch=epoch)) as archive:
            assert {member.date_time for member in archive.infolist()} == {(year, 1, 1, 0, 0, 0)}


def test_its_record_has_all_files_and_comes_last(tmp_path: Path) -> None:
    place = pack(tmp_path, NAME, FILES)
    assert place.name == "meshd_native-1.2.3-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(place) as archive:
        names = archive.namelist()
        rows = list(csv.reader(archive.read(f"{NAME.info}/RECORD").decode().splitlines()))
        contents = {name: archive.read(name) for name in names}
    assert names[-1] == f"{NAME.info}/RECORD"
    assert names[:-1] == sorted({*FILES, f"{NAME.info}/WHEEL"})
    assert [row[0] for row in rows] == names
    for path, digest, size in rows[:-1]:
        expected = base64.urlsafe_b64encode(hashlib.sha256(contents[path]).digest()).decode().rstrip("=")
        assert (digest, size) == (f"sha256={expected}", str(len(contents[path])))
    assert rows[-1][1:] == ["", ""]
    assert f"Tag: {NAME.tag}\n" in contents[f"{NAME.info}/WHEEL"].decode()


def test_only_programs_are_executable(tmp_path: Path) -> None:
    with zipfile.ZipFile(pack(tmp_path, NAME, FILES)) as archive:
        modes = {member.filename: member.external_attr >> 16 for member in archive.infolist()}
    assert {path for path, mode in modes.items() if mode & 0o111} == {"meshd_native/bin/program"}
    assert set(modes.values()) == {0o100755, 0o100644}, "plain files, no links"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../up", "a/../../up", "a\\b", f"{NAME.info}/RECORD", f"{NAME.info}/WHEEL"]
)
def test_a_path_that_is_none_of_a_wheel(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="no path of a wheel"):
        pack(tmp_path, NAME, {**FILES, path: Entry(b"")})
    assert not list(tmp_path.iterdir())
