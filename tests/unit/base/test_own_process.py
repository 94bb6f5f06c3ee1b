"""Chunks that are freed and taken again cost no page faults."""

import subprocess
import sys

import pytest

CHUNKS, CHUNK_BYTES = 400, 256 << 10
PAGES = CHUNKS * CHUNK_BYTES // 4096
_PROGRAM = f"""
import resource, sys
from meshd.base.own_process import keep_freed_memory
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
from meshd.base.own_process import keep_freed_memory
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
