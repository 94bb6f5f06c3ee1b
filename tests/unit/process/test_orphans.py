"""Pid files: what stands in them, and that none is no fault."""

from pathlib import Path

from meshd.process.orphans import PidRecord, remove_pid_file, write_pid_file

RECORD = PidRecord(name="rpc-server of alice's head", pid=12, group=11, owner=10)


def test_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x.pid"
    write_pid_file(path, RECORD)
    assert path.read_text() == "12 11 10 rpc-server of alice's head\n"
    assert path.stat().st_mode & 0o077 == 0
    remove_pid_file(path)
    remove_pid_file(path)
    assert not path.exists()


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    write_pid_file(tmp_path / "gone" / "x.pid", RECORD)
    remove_pid_file(tmp_path / "gone" / "x.pid")
