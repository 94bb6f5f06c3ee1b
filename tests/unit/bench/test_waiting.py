"""Test what `python -m tests.bench.waiting` reads of processes, and says of its samples."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from meshd.base.wakeful_loop import Waiting

from tests.bench.waiting import PLAIN, Sample, children_of, set_up_name, table, thread_seconds, used

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux's schedstat")


def test_time_of_threads_grows_with_what_they_do() -> None:
    before = thread_seconds(os.getpid())
    began = time.thread_time()
    while time.thread_time() - began < 0.05:
        pass
    cores = used(before, thread_seconds(os.getpid()), 0.1)
    assert cores[0] >= 0.4
    assert used(before, before, 0.1) == []


def test_children_are_found_by_their_parent() -> None:
    program = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        assert child.pid in {pid for _name, pid in children_of(os.getpid())}
        child.communicate()
    assert child.pid not in {pid for _name, pid in children_of(os.getpid())}


def test_rates_are_shown_beside_those_of_polling() -> None:
    samples = {
        PLAIN: [Sample(300.0, {PLAIN: [0.9, 0.1]})],
        set_up_name(1, Waiting.POLL): [
            Sample(rate, {"daemon": [1.0], "child": [0.5, 0.5]}) for rate in (190, 210, 200)
        ],
        set_up_name(1, Waiting.TIMED): [Sample(198.0, {"daemon": [0.25], "child": []})],
    }
    assert table(samples).splitlines()[2:] == [
        "| llama-server | 300.0 | 300.0 to 300.0 | 1.00 | llama-server 1.00 |",
        "| 1 worker, poll | 200.0 (1.000) | 190.0 to 210.0 | 2.00 | daemon 1.00; child 1.00 |",
        "| 1 worker, timed | 198.0 (0.990) | 198.0 to 198.0 | 0.25 | daemon 0.25; child 0.00 |",
    ]
