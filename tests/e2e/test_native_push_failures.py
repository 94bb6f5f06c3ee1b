"""Workers that push are lost, or cut from one another: the request fails, nobody hangs, no token is wrong.

With real processes and no meshd between them.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.rpc import protocol as rpc

from tests.e2e.models import greedy, smollm2
from tests.e2e.native_rig import Head
from tests.e2e.push_rig import SECRET, Chain, pushing
from tests.e2e.rpc_client import ALWAYS, RpcClient
from tests.soak import drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

TIMES = range(50)
LOST = "A worker was lost."
TOKENS = 200
LONG_PROMPT = "one two three four five six seven eight nine ten " * 40
WORKERS = 3
IN_THE_PROMPT = [
    number
    for victim in range(WORKERS)
    for number in drawn(f"a prompt of {victim}", TIMES[victim::WORKERS], 1, always=())
]


@pytest.fixture(scope="module")
def reference() -> str:
    return greedy(smollm2(), TOKENS)


def _generate(head: Head, after: int, act: Callable[[], object], *, tokens: int = TOKENS) -> tuple[str, str]:
    """Text and error of a generation in which `act` happens when so many pieces have come."""
    pieces = 0

    def on_piece(_text: str) -> None:
        nonlocal pieces
        pieces += 1
        if pieces == after:
            act()

    return head.stream(tokens=tokens, on_piece=on_piece)


@pytest.mark.parametrize("number", drawn("killed while it generates", TIMES, 1, always=()))
@pytest.mark.parametrize("victim", range(WORKERS))
def test_a_worker_killed_while_it_generates(tmp_path: Path, reference: str, victim: int, number: int) -> None:
    with pushing(tmp_path, smollm2(), WORKERS) as (head, chain):
        text, error = _generate(head, 5 + number % 7, chain.workers[victim].process.kill)
        assert reference.startswith(text), "a token that is none"
        assert error == LOST
        _stays_up(head)
        _serve_others(chain, but=victim)


@pytest.mark.parametrize("number", drawn("cut while it generates", TIMES, 1, always=()))
@pytest.mark.parametrize("side", range(WORKERS - 1))
def test_a_connection_of_peers_cut_while_it_generates(
    tmp_path: Path, reference: str, side: int, number: int
) -> None:
    with pushing(tmp_path, smollm2(), WORKERS) as (head, chain):
        text, error = _generate(head, 5 + number % 7, chain.sides[side].cut)
        assert reference.startswith(text), "a token that is none"
        assert error == LOST
        _stays_up(head)
        _serve_others(chain)


@pytest.mark.parametrize("number", IN_THE_PROMPT)
def test_a_worker_killed_in_the_prompt(tmp_path: Path, number: int) -> None:
    with pushing(tmp_path, smollm2(), WORKERS, extra=("-c", "2048", "-ub", "128")) as (head, chain):
        head.complete(tokens=1)
        victim = number % WORKERS
        timer = threading.Timer(0.02 * (number + 1), chain.workers[victim].process.kill)
        timer.start()
        text, error = head.stream(LONG_PROMPT, tokens=1000)
        timer.join()
        assert error == LOST, text
        _stays_up(head)
        _serve_others(chain, but=victim)


@pytest.mark.parametrize("side", range(WORKERS - 1))
def test_a_connection_of_peers_cut_while_idle_is_known_at_once(tmp_path: Path, side: int) -> None:
    with pushing(tmp_path, smollm2(), WORKERS) as (head, chain):
        head.complete(tokens=2)
        chain.sides[side].cut()
        assert head.report is not None
        head.report.wait("lost ")
        assert head.stream(tokens=4) == ("", LOST)
        _stays_up(head)
        said = [line for worker in chain.workers[side : side + 2] for line in worker.lines]
        assert any(line.startswith("failed ") for line in said)  # by the one that saw it first


@pytest.mark.parametrize("victim", range(WORKERS))
def test_a_worker_that_stands_still_is_lost_when_its_connections_end(
    tmp_path: Path, reference: str, victim: int
) -> None:
    """As a machine without power: meshd ends the streams, on all sides."""
    with pushing(tmp_path, smollm2(), WORKERS) as (head, chain):
        pid = chain.workers[victim].process.pid

        def stand_still() -> None:
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.2, chain.ways[victim].cut).start()

        text, error = _generate(head, 5, stand_still)
        assert reference.startswith(text)
        assert error == LOST
        _stays_up(head)
        _serve_others(chain, but=victim)


@pytest.mark.parametrize("victim", range(WORKERS))
def test_a_worker_that_stood_still_goes_on(tmp_path: Path, victim: int) -> None:
    with pushing(tmp_path, smollm2(), WORKERS) as (head, chain):
        pid = chain.workers[victim].process.pid

        def stand_still() -> None:
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.2, os.kill, (pid, signal.SIGCONT)).start()

        assert _generate(head, 5, stand_still, tokens=60) == (greedy(smollm2(), 60), "")


def _stays_up(head: Head) -> None:
    assert head.process.poll() is None, f"ended with {head.process.returncode}:\n{head.output[-2000:]}"
    assert head.stream(tokens=1) == ("", LOST)
    assert head.report is not None
    head.report.wait(
        "lost "
    )  # which one is not certain: it takes others along, and is seen later than they are


def _serve_others(chain: Chain, but: int = -1) -> None:
    """They are there for the next client at once."""
    for number, worker in enumerate(chain.workers):
        if number != but:
            assert worker.process.poll() is None, worker.output[-2000:]
            with RpcClient(worker.port, secret=SECRET) as client:
                assert client.hello() == ALWAYS | rpc.FEATURE_PUSH
