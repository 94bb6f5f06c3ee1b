"""Memory that a process has used, and not what it was given."""

import mmap
import os
import sys

import pytest
from meshd.base.resident_memory import resident_bytes

SIZE = 64 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells it in /proc")
def test_memory_counts_once_it_is_used() -> None:
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        before = resident_bytes(os.getpid())
        assert before > 0
        for at in range(0, SIZE // 2, mmap.PAGESIZE):
            memory[at] = 1
        used = resident_bytes(os.getpid()) - before
        assert SIZE // 2 <= used < SIZE


def test_a_process_that_is_gone_has_none() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert resident_bytes(pid) == 0
