"""This process keeps freed memory; another one that is suspended is told from one that runs or is gone."""

import os
import signal
import subprocess
import sys

import pytest
from meshd.base.processes import is_stopped, work_of

CHUNKS, CHUNK_BYTES = 400, 256 << 10
PAGES = CHUNKS * CHUNK_BYTES // 4096
_PROGRAM = f"""
import resource, sys
from meshd.base.processes import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(4):
    [bytes({CHUNK_BYTES}) for _ in range(4)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({CHUNKS} // 4):
    [b"x" * {CHUNK_BYTES} for _ in range(4)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, how], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_chunks_that_are_freed_and_taken_again_cost_no_page_faults() -> None:
    assert _faults("kept") < PAGES // 10 < _faults("usual")


_THREAD = """
import sys, threading
from pathlib import Path
from meshd.base.processes import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
kept = []
thread = threading.Thread(target=lambda: kept.append(bytes(100_000)))
thread.start()
thread.join()
unused = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if " ---p " in line]
ends = [[int(end, 16) for end in one.split("-")] for one in unused]
print(sum(32 << 20 < end - begin < 64 << 20 for begin, end in ends))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_threads_have_no_memory_of_their_own() -> None:
    """glibc reserves 64 MiB for a thread, and uses the beginning of it."""
    reserved = [
        int(subprocess.run([sys.executable, "-c", _THREAD, how], check=True, capture_output=True).stdout)
        for how in ("kept", "usual")
    ]
    assert reserved[0] < reserved[1]


_FREED = """
import resource
from pathlib import Path
from meshd.base.processes import keep_freed_memory, return_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
keep_freed_memory()
freed = [b"x" * 10_000 for _ in range(1000)]
last = b"x" * 10_000  # behind them: glibc cannot shrink the heap
del freed
before = resident()
return_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_what_the_start_freed_is_given_back_to_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", _FREED], check=True, capture_output=True)
    assert int(done.stdout) > 8_000_000


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
