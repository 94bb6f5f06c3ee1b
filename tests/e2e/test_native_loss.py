"""A worker is lost: llama-server answers with an error, stays up, and lets no token out that is not one.

In every state: while it loads, computes a prompt, generates, idles, and is stopped. With real processes and
no meshd between them. llama-server does not decide whether a worker that says nothing is slow or gone: it
waits until somebody closes the connection. For a worker that is stopped or silent this shows only what
follows when the connection is closed, which the test does after a second. That meshd notices by itself is
shown by test_mesh_lost_workers.py and test_mesh_hung.py.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER

from tests.e2e.losses import Loss, noted
from tests.e2e.lossy import KINDS, Lossy
from tests.e2e.models import greedy, patched, smollm2
from tests.e2e.native_rig import PROMPT, Head, Worker, wait_until
from tests.soak import drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

TIMES = range(50)  # which worker it is, and at what moment
TOKENS = 200
SHAPE = ("-c", "2048", "-b", "128", "-ub", "128")
LOST = "A worker was lost."
LONG_PROMPT = "one two three four five six seven eight nine ten " * 40
PROMPT_STEP = 20_000  # bytes towards a worker; the prompt's hidden states are 1.8 MB
LOAD_STEP = 0.04  # seconds; a load takes one on an idle machine
LINE = "llama-server"  # what has to notice the loss


@dataclass(frozen=True, slots=True)
class Split:
    """A head with its layers on two workers."""

    head: Head
    workers: list[Worker]
    lines: list[Lossy]


@contextmanager
def _split(folder: Path, *, ready: bool = True) -> Iterator[Split]:
    binaries = patched().binaries
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(binaries[RPC_SERVER], folder)) for _ in range(2)]
        lines = [stack.enter_context(Lossy(worker)) for worker in workers]
        head = Head(
            binaries[LLAMA_SERVER],
            folder,
            smollm2(),
            [line.endpoint for line in lines],
            # what the other worker still computes of a micro-batch when one is lost is short
            extra=("-ts", "1,1", *SHAPE),
            ready=ready,
        )
        yield Split(stack.enter_context(head), workers, lines)


@pytest.fixture(scope="module")
def reference() -> str:
    return greedy(smollm2(), TOKENS, extra=SHAPE)


EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def _again(state: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("number", drawn(f"lost {state}", TIMES, 1, always=()))


@EACH_KIND
@_again("load")
def test_lost_while_it_loads(tmp_path: Path, kind: str, number: int) -> None:
    """At any moment: it ends with an error that says so, or it was ready already."""
    with noted(LINE, "load", kind) as loss, _split(tmp_path, ready=False) as split:
        line = split.lines[number % 2]
        timer = threading.Timer(LOAD_STEP * (number % 30), line.lose, [kind])
        timer.start()
        code = split.head.wait_ready_or_end()
        timer.join()
        if code is None:
            _says_so(split.head, line, loss)
        else:
            loss.since(line.told_at)
            loss.aborted = code != 1
            assert code == 1, f"ended with {code}:\n{split.head.output[-2000:]}"
            assert "was lost" in split.head.output or "worker cannot be reached" in split.head.output


@EACH_KIND
@_again("prompt")
def test_lost_in_the_prompt(tmp_path: Path, kind: str, number: int) -> None:
    with noted(LINE, "prompt", kind) as loss, _split(tmp_path) as split:
        split.head.complete(tokens=1)
        line = split.lines[number % 2]
        least = line.counts.up + PROMPT_STEP * (1 + number % 40)

        def lose() -> None:
            wait_until(lambda: line.counts.up >= least, "a part of the prompt has gone to the worker")
            line.lose(kind)

        losing = threading.Thread(target=lose)
        losing.start()
        text, error = split.head.stream(LONG_PROMPT, tokens=TOKENS)
        losing.join()
        _note_end(split.head, error, loss)
        loss.since(line.told_at)
        loss.wrong = bool(text)
        assert (text, error) == ("", LOST)
        _says_so(split.head, line, loss)


@EACH_KIND
@_again("decode")
def test_lost_while_it_generates(tmp_path: Path, reference: str, kind: str, number: int) -> None:
    with noted(LINE, "decode", kind) as loss, _split(tmp_path) as split:
        line = split.lines[number % 2]
        pieces = 0

        def on_piece(_text: str) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 5 + number % 7:
                line.lose(kind)

        text, error = split.head.stream(tokens=TOKENS, on_piece=on_piece)
        _note_end(split.head, error, loss)
        loss.since(line.told_at)
        loss.wrong = not reference.startswith(text)
        assert error == LOST
        _says_so(split.head, line, loss)


@EACH_KIND
@_again("idle")
def test_lost_while_idle(tmp_path: Path, kind: str, number: int) -> None:
    with noted(LINE, "idle", kind) as loss, _split(tmp_path) as split:
        line = split.lines[number % 2]
        line.lose(kind)
        told_at = line.told_at
        text, error = split.head.stream(tokens=4)
        _note_end(split.head, error, loss)
        loss.since(told_at)
        assert (text, error) == ("", LOST)
        _says_so(split.head, line, loss)


@EACH_KIND
@_again("shutdown")
def test_lost_while_it_is_stopped(tmp_path: Path, kind: str, number: int) -> None:
    """Before the signal that ends it, with it, or after it."""
    with noted(LINE, "shutdown", kind) as loss, _split(tmp_path) as split:
        split.head.complete(tokens=1)
        line = split.lines[number % 2]
        if number % 3:
            split.head.process.terminate()
        line.lose(kind)
        if not number % 3:
            split.head.process.terminate()
        code = split.head.wait_end()
        loss.since(line.told_at)
        loss.aborted = code != 0
        assert code == 0, f"ended with {code}:\n{split.head.output[-2000:]}"


def test_an_end_point_where_nobody_listens_is_an_error(tmp_path: Path) -> None:
    with Worker(patched().binaries[RPC_SERVER], tmp_path) as worker:
        endpoint = worker.endpoint
    with Head(patched().binaries[LLAMA_SERVER], tmp_path, smollm2(), [endpoint], ready=False) as head:
        assert head.wait_end() == 1
        assert f"RPC worker cannot be reached: {endpoint}" in head.output


def test_a_worker_that_stood_still_goes_on(tmp_path: Path, reference: str) -> None:
    """Nothing is lost by silence alone: the process that detects a fault closes the connection."""
    with _split(tmp_path) as split:
        pieces = 0
        pid = split.workers[1].process.pid

        def on_piece(_text: str) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 5:
                os.kill(pid, signal.SIGSTOP)
                threading.Timer(0.2, os.kill, (pid, signal.SIGCONT)).start()

        assert split.head.stream(tokens=TOKENS, on_piece=on_piece) == (reference, "")


def _note_end(head: Head, error: str, loss: Loss) -> None:
    """A stream that ends without an error may be that of a process that does."""
    if error != LOST:
        with contextlib.suppress(subprocess.TimeoutExpired):
            loss.aborted = head.process.wait(5.0) != 0


def _says_so(head: Head, line: Lossy, loss: Loss) -> None:
    """It goes on answering, and reports the fault at once."""
    code = head.process.poll()
    loss.aborted = code is not None
    assert code is None, f"ended with {code}:\n{head.output[-2000:]}"
    assert head.report is not None
    told_at = line.told_at
    assert head.stream(tokens=4) == ("", LOST)
    loss.since(told_at)
    assert head.report.wait("lost ").startswith(f"lost {line.endpoint} ")
    status, answer = head.request("POST", "/completion", json.dumps({"prompt": PROMPT}).encode())
    assert (status, json.loads(answer)["error"]["message"]) == (500, LOST)
