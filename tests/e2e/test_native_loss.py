"""A worker is lost: llama-server answers with an error, stays up, and lets no token out that is not one.

In every state: while it connects, loads, computes a prompt, generates, and idles. With real processes and no
meshd between them.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER

from tests.e2e.models import patched, smollm2
from tests.e2e.native_rig import DEADLINE, PROMPT, Head, Worker
from tests.e2e.nodes import counts

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

TIMES = counts(2, 50)
LOST = "A worker was lost."
LONG_PROMPT = "one two three four five six seven eight nine ten " * 40


@contextmanager
def _split(folder: Path, *, ready: bool = True) -> Iterator[tuple[Head, list[Worker]]]:
    """A head with its layers on two workers."""
    binaries = patched().binaries
    with (
        Worker(binaries[RPC_SERVER], folder) as one,
        Worker(binaries[RPC_SERVER], folder) as two,
        Head(
            binaries[LLAMA_SERVER],
            folder,
            smollm2(),
            [one.endpoint, two.endpoint],
            extra=("-ts", "1,1", "-c", "2048"),
            ready=ready,
        ) as head,
    ):
        yield head, [one, two]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    with _split(tmp_path_factory.mktemp("reference")) as (head, _):
        return head.complete(tokens=200)


@pytest.mark.parametrize("number", range(TIMES))
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_while_it_generates(tmp_path: Path, reference: str, victim: int, number: int) -> None:
    with _split(tmp_path) as (head, workers):
        pieces = 0

        def told(_text: str) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 5 + number % 7:
                workers[victim].process.kill()

        text, error = head.stream(tokens=200, told=told)
        assert reference.startswith(text), "a token that is none"
        assert error == LOST
        _stays_up(head, workers[victim])


@pytest.mark.parametrize("number", range(TIMES))
def test_killed_in_the_prompt(tmp_path: Path, number: int) -> None:
    with _split(tmp_path) as (head, workers):
        head.complete(tokens=1)
        timer = threading.Timer(0.02 * (number + 1), workers[number % 2].process.kill)
        timer.start()
        text, error = head.stream(LONG_PROMPT, tokens=1000)
        timer.join()
        assert error == LOST, text
        _stays_up(head, workers[number % 2])


@pytest.mark.parametrize("number", range(TIMES))
def test_killed_while_idle(tmp_path: Path, number: int) -> None:
    with _split(tmp_path) as (head, workers):
        victim = workers[number % 2]
        victim.process.kill()
        victim.process.wait(DEADLINE)
        assert head.stream(tokens=4) == ("", LOST)
        _stays_up(head, victim)


@pytest.mark.parametrize("number", range(max(TIMES, 6)))
def test_killed_while_it_loads(tmp_path: Path, number: int) -> None:
    """At any moment: it ends with an error that says so, or it was ready already."""
    with _split(tmp_path, ready=False) as (head, workers):
        timer = threading.Timer(0.04 * number, workers[number % 2].process.kill)
        timer.start()
        code = head.wait_ready_or_end()
        timer.join()
        if code is None:
            assert head.stream(tokens=4) == ("", LOST)
            _stays_up(head, workers[number % 2])
        else:
            assert code == 1, f"ended with {code}:\n{head.output[-2000:]}"
            assert "was lost" in head.output or "worker cannot be reached" in head.output


def test_an_end_point_where_nobody_listens_is_an_error(tmp_path: Path) -> None:
    with Worker(patched().binaries[RPC_SERVER], tmp_path) as worker:
        endpoint = worker.endpoint
    with Head(patched().binaries[LLAMA_SERVER], tmp_path, smollm2(), [endpoint], ready=False) as head:
        assert head.wait_end() == 1
        assert f"RPC worker cannot be reached: {endpoint}" in head.output


def test_a_worker_that_stood_still_goes_on(tmp_path: Path, reference: str) -> None:
    """Nothing is lost by silence alone: whoever sees that it is a fault closes the connection."""
    with _split(tmp_path) as (head, workers):
        pieces = 0
        pid = workers[1].process.pid

        def told(_text: str) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 5:
                os.kill(pid, signal.SIGSTOP)
                threading.Timer(0.2, os.kill, (pid, signal.SIGCONT)).start()

        assert head.stream(tokens=200, told=told) == (reference, "")


def _stays_up(head: Head, victim: Worker) -> None:
    """It goes on answering, and says at once what is the matter."""
    assert head.process.poll() is None, f"ended with {head.process.returncode}:\n{head.output[-2000:]}"
    assert head.report is not None
    assert head.report.wait("lost ").startswith(f"lost {victim.endpoint} ")
    status, answer = head.request("POST", "/completion", json.dumps({"prompt": PROMPT}).encode())
    assert (status, json.loads(answer)["error"]["message"]) == (500, LOST)
