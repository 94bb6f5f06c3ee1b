"""Pid files: read what was written, and nothing else."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshd.process.orphans import PidRecord, read_pid_file, remove_pid_file, write_pid_file

RECORD = PidRecord(name="rpc-server of alice's head", pid=12, group=11, owner=10)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "x.pid"
    write_pid_file(path, RECORD)
    assert read_pid_file(path) == RECORD
    remove_pid_file(path)
    remove_pid_file(path)
    assert read_pid_file(path) is None


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    write_pid_file(tmp_path / "gone" / "x.pid", RECORD)
    remove_pid_file(tmp_path / "gone" / "x.pid")


@pytest.mark.parametrize("data", [b"", b"12", b"a b c d\n", b"1 2 3\n", b"\xff\xfe", b"1 2 x name\n"])
def test_damaged(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.pid"
    path.write_bytes(data)
    assert read_pid_file(path) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.pid"
    path.write_bytes(data)
    read_pid_file(path)
