"""Chunks that are freed and taken again cost no page faults."""

import subprocess
import sys

import pytest

CHUNKS, CHUNK_BYTES = 400, 256 << 10
PAGES = CHUNKS * CHUNK_BYTES // 4096
_PROGRAM = f"""
import resource, sys
from meshd.base.freed_memory import keep_freed_memory
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
