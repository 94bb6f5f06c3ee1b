"""What a process has used so far: it grows while it works, and stands still while it waits."""

import subprocess
import sys
from pathlib import Path

import pytest
from meshd.process.spent import spent

WORK = """
import sys, time
print("up", flush=True)
sys.stdin.readline()
while time.process_time() < 0.2:
    pass
open(sys.argv[1], "rb").read()
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_work_shows_and_waiting_does_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    child = subprocess.Popen(
        [sys.executable, "-c", WORK, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == b"up\n"
        before = spent(child.pid)
        assert before is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"done\n"
        after = spent(child.pid)
        assert after is not None
        assert after[0] >= before[0] + 0.1
        assert after[1] >= before[1] + (1 << 20)
    finally:
        child.communicate(b"\n")
    assert spent(child.pid) is None
