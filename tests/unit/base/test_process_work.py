"""What another process has done so far."""

import subprocess
import sys

import pytest
from meshd.base.process_work import work_of

COMPUTES = "import sys\nwhile True:\n    print(len(sys.stdin.readline()), sum(range(10**6)), flush=True)"


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
