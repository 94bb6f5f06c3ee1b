"""A process that stands still by a signal is told from one that runs, and from one that is gone."""

import os
import signal
import subprocess
import sys

import pytest
from meshd.base.other_process import is_stopped, work_of

COMPUTES = "import sys\nwhile True:\n    print(len(sys.stdin.readline()), sum(range(10**6)), flush=True)"


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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_reading_and_computing_are_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", COMPUTES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None

        def ask(letters: int) -> None:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write("x" * letters + "\n")
            child.stdin.flush()
            assert child.stdout.readline().startswith(str(letters + 1))

        ask(1)
        before = work_of(child.pid)
        for _ in range(10):
            ask(1000)
        after = work_of(child.pid)
        child.kill()
    assert before is not None and after is not None
    assert after.moved_bytes - before.moved_bytes >= 10_000
    assert after.processor_seconds > before.processor_seconds


def test_nothing_is_known_of_one_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert work_of(child.pid) is None
