"""Results go from worker to worker: the text is that of one node, and the head waits once for each token.

Real processes without meshd between them; losses and hostile peers are in test_native_push_failures.py.
"""

import os
import threading
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.rpc import protocol as rpc

from tests.e2e.models import patched, small, smollm2, stock, text_alone
from tests.e2e.native_rig import Head, Worker
from tests.e2e.push_rig import PEERS, SECRET, Chain, PushWorker, pushing
from tests.e2e.random_models import random_model
from tests.e2e.random_parts import WIDTH

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

ANSWERED = tuple(command for command, known in rpc.COMMANDS.items() if known.answer != rpc.NO_ANSWER)
# one token a letter, in the random models: several steps of 64
LONG = "The capital of France is " + ", ".join(f"not the number {number}" for number in range(29))
BYTES_A_TOKEN = 4 * WIDTH
STEPS = ("-c", "2048", "-b", "512", "-ub", "64")


@cache
def _alone(name: str) -> tuple[str, str]:
    """What one node by itself answers to the short prompt and to the long one."""
    with TemporaryDirectory() as folder:
        server = patched().binaries[LLAMA_SERVER]
        with Head(server, Path(folder), random_model(name), [], extra=STEPS) as head:
            return head.complete(), head.complete(LONG)


def _reported(head: Head) -> list[list[str]]:
    """What it said about each pair: yes or no, and why."""
    assert head.report is not None
    lines = [line.split(" ", 3) for line in head.report.lines if line.startswith("push ")]
    return [line[3:] for line in lines]


def _each_token(head: Head, chain: Chain) -> tuple[list[float], list[float]]:
    """How many answers of each worker a token waits for, and how many pushes go between each two."""
    few, many = 8, 40
    waits, pushes = [], []
    for tokens in (few, many):
        waited, pushed = chain.waited(ANSWERED), chain.pushed()
        head.complete(tokens=tokens)
        waits.append([now - before for now, before in zip(chain.waited(ANSWERED), waited, strict=True)])
        pushes.append([now - before for now, before in zip(chain.pushed(), pushed, strict=True)])
    tokens = many - few  # what the prompt takes is in both
    return (
        [(more - less) / tokens for less, more in zip(*waits, strict=True)],
        [(more - less) / tokens for less, more in zip(*pushes, strict=True)],
    )


def test_over_unix_sockets_all_goes_as_over_tcp(tmp_path: Path) -> None:
    with TemporaryDirectory(prefix="a folder, ") as name:
        sockets = Path(name)
        with PushWorker(tmp_path, sockets=sockets) as one, PushWorker(tmp_path, sockets=sockets) as two:
            one.tell(f"peer 1 {two.endpoint} {PEERS.hex()}")
            with Head(
                patched().binaries[LLAMA_SERVER],
                tmp_path,
                smollm2(),
                [one.endpoint, two.endpoint],
                secrets={one.endpoint: SECRET, two.endpoint: SECRET},
                pairs=f"{one.endpoint} {two.endpoint} 1\n",
                sockets=sockets,
            ) as head:
                assert _reported(head) == [["yes"]]
                assert head.complete() == text_alone(smollm2())
                two.process.kill()
                assert head.report is not None
                head.report.wait("lost")


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_text_is_that_of_one_node_and_the_head_waits_once_a_token(tmp_path: Path, workers: int) -> None:
    with pushing(tmp_path, smollm2(), workers) as (head, chain):
        assert _reported(head) == [["yes"]] * (workers - 1)
        assert head.complete() == text_alone(smollm2())
        assert _each_token(head, chain) == ([0.0] * (workers - 1) + [1.0], [1.0] * (workers - 1))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_a_token_that_is_chosen_on_a_worker_is_the_same_and_no_logits_cross(
    tmp_path: Path, workers: int
) -> None:
    with pushing(tmp_path, small(), workers, extra=("-bs",)) as (head, chain):
        received = []
        for tokens in (8, 40):
            before = chain.ways[-1].counts.received
            head.complete(tokens=tokens)
            received.append(chain.ways[-1].counts.received - before)
        # four numbers of a token, each behind the head of an answer
        assert received[1] - received[0] <= 32 * 48
        assert head.complete() == text_alone(small())


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", ["qwen3moe", "granitehybrid", "mamba", "gemma3", "deepseek2"])
def test_models_of_many_kinds_in_prompts_of_many_steps(tmp_path: Path, name: str, workers: int) -> None:
    with pushing(tmp_path, random_model(name), workers, extra=STEPS) as (head, chain):
        assert (head.complete(), head.complete(LONG)) == _alone(name)
        assert all(side.counts.sent[rpc.PEER_DATA] > len(LONG) * BYTES_A_TOKEN for side in chain.sides)
        assert _each_token(head, chain) == ([0.0] * (workers - 1) + [1.0], [1.0] * (workers - 1))


def _pushes(chain: Chain) -> list[bool]:
    """Whether each worker but the last one pushes."""
    return [way.counts.calls[rpc.PUSH_TENSOR] > 0 for way in chain.ways[:-1]]


def test_a_pair_without_a_way_copies_through_the_head(tmp_path: Path) -> None:
    with pushing(tmp_path, smollm2(), 3, without=[0]) as (head, chain):
        assert head.complete() == text_alone(smollm2())
        assert _reported(head) == [["no the worker cannot reach it"], ["yes"]]
        assert _pushes(chain) == [False, True]
        assert "neighbour 1 no there is no way to it" in chain.workers[0].lines
        assert "neighbour 2 yes" in chain.workers[1].lines


def _tell_late(chain: Chain, number: int, command: int) -> None:
    if command == rpc.PEER_CHECK:
        threading.Timer(0.1, chain.tell, [number]).start()


def test_the_way_may_be_told_after_it_was_asked_for(tmp_path: Path) -> None:
    with pushing(tmp_path, smollm2(), 3, untold=[0, 1], on_command=_tell_late) as (head, chain):
        assert _reported(head) == [["yes"]] * 2
        assert head.complete() == text_alone(smollm2())
        assert _pushes(chain) == [True, True]


def test_a_pair_whose_worker_is_not_told_in_time_copies_through_the_head(tmp_path: Path) -> None:
    with pushing(tmp_path, smollm2(), 2, untold=[0]) as (head, chain):
        assert _reported(head) == [["no the worker cannot reach it"]]
        assert head.complete() == text_alone(smollm2())
        assert _pushes(chain) == [False]


@pytest.mark.parametrize("kind", ["stock", "no peers", "no way in"])
def test_a_worker_that_knows_no_peers_gets_its_share_through_the_head(tmp_path: Path, kind: str) -> None:
    with PushWorker(tmp_path) as first, _other(tmp_path, kind) as second:
        first.tell(f"peer 7 {second.endpoint} {PEERS.hex()}")
        first.stop_telling()
        with Head(
            patched().binaries[LLAMA_SERVER],
            tmp_path,
            smollm2(),
            [first.endpoint, second.endpoint],
            secrets={first.endpoint: SECRET} | ({} if kind == "stock" else {second.endpoint: SECRET}),
            pairs=f"{first.endpoint} {second.endpoint} 7\n",
            extra=("-ts", "1,1"),
        ) as head:
            announced = kind == "no way in"
            assert _reported(head) == [["no the worker cannot reach it" if announced else "no not announced"]]
            assert head.complete() == text_alone(smollm2())


def _other(folder: Path, kind: str) -> Worker:
    if kind == "stock":
        return Worker(stock().binaries[RPC_SERVER], folder, stock=True)
    server = patched().binaries[RPC_SERVER]
    if kind == "no peers":
        return Worker(server, folder, secret=SECRET)
    return PushWorker(folder, secret=SECRET)  # it may push, and nobody to it


def test_a_stock_head_takes_workers_that_have_peers(tmp_path: Path) -> None:
    """It knows no secret, so they have none; they only know neighbours."""
    reading, writing = os.pipe()
    os.close(writing)
    with (
        Worker(patched().binaries[RPC_SERVER], tmp_path, neighbours=reading) as worker,
        Head(stock().binaries[LLAMA_SERVER], tmp_path, smollm2(), [worker.endpoint]) as head,
    ):
        assert head.complete() == text_alone(smollm2())


def test_a_pair_of_no_two_workers_is_said_and_left_alone(tmp_path: Path) -> None:
    with PushWorker(tmp_path) as first, PushWorker(tmp_path) as second:
        ends = [first.endpoint, second.endpoint]
        first.tell(f"peer 1 {second.endpoint} {PEERS.hex()}")
        with Head(
            patched().binaries[LLAMA_SERVER],
            tmp_path,
            smollm2(),
            ends,
            secrets=dict.fromkeys(ends, SECRET),
            pairs=f"{ends[0]} {ends[0]} 2\n{ends[0]} 127.0.0.1:1 3\n{ends[0]} {ends[1]} 1\n",
            extra=("-ts", "1,1"),
        ) as head:
            assert _reported(head) == [["no not two workers"]] * 2 + [["yes"]]
            assert head.complete() == text_alone(smollm2())


@pytest.mark.parametrize("pairs", ["a b\n", "a b 65536\n", "a b c\n", "a b 1 2\n", "\n"])
def test_pairs_that_are_none_stop_the_start(tmp_path: Path, pairs: str) -> None:
    with Worker(patched().binaries[RPC_SERVER], tmp_path) as worker:
        ends = [worker.endpoint]
        with Head(
            patched().binaries[LLAMA_SERVER], tmp_path, smollm2(), ends, pairs=pairs, ready=False
        ) as head:
            assert head.wait_end() != 0
            assert "GGML_RPC_PEERS_FD: line 1 is not two endpoints and a number" in head.output
