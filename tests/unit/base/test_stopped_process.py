"""A process that stands still by a signal is told from one that runs, and from one that is gone."""

import os
import signal
import subprocess
import sys

import pytest
from meshd.base.stopped_process import is_stopped


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_stopped_process_is_seen_as_such() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        _wait(child.pid, stopped=True)
        assert is_stopped(child.pid)
        child.send_signal(signal.SIGCONT)
        _wait(child.pid, stopped=False)
        assert not is_stopped(child.pid)
    finally:
        child.communicate(b"\n")
    assert not is_stopped(child.pid)


def _wait(pid: int, *, stopped: bool) -> None:
    """Until the kernel says so of a child."""
    if sys.platform == "linux":
        os.waitid(os.P_PID, pid, (os.WSTOPPED if stopped else os.WCONTINUED) | os.WNOWAIT)
