"""Workers load their weights from their own files: nothing of them is sent, and nothing read on the head."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_BENCH, LLAMA_SERVER, RPC_SERVER
from meshd.model.weights_index import encode_index, join_indexes
from meshd.rpc import protocol as rpc

from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.models import (
    copy_to,
    deep,
    fine_tune,
    header_of,
    patched,
    small,
    small_sharded,
    smollm2,
    text_alone,
)
from tests.e2e.native_rig import Handed, Head, Report, Worker, index_of
from tests.e2e.random_models import MODELS, random_model
from tests.e2e.residency import drop, read_ahead_bytes, resident_bytes

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

SECRET = bytes(range(1, 33))
MIB = 1 << 20
SMOLLM2_TENSORS = 272  # all of them: the output is the tied embedding, which the last device has as well


@pytest.mark.parametrize("workers", [1, 3])
def test_a_load_asks_each_worker_four_questions_over_one_connection(tmp_path: Path, workers: int) -> None:
    """HELLO, the weights, all operations of the model, and what the warm-up made.

    Allocations are answered behind those.
    """
    binaries = patched().binaries
    with ExitStack() as stack:
        started = [
            stack.enter_context(Worker(binaries[RPC_SERVER], tmp_path, weights=[smollm2()]))
            for _ in range(workers)
        ]
        proxies = [stack.enter_context(CountingProxy(worker.port)) for worker in started]
        stack.enter_context(
            Head(
                binaries[LLAMA_SERVER],
                tmp_path,
                smollm2(),
                [proxy.endpoint for proxy in proxies],
                index=encode_index(index_of([smollm2()])),
            )
        )
        for proxy in proxies:
            calls = proxy.counts.calls
            waited = {rpc.HELLO: 1, rpc.SET_TENSOR_GGUF: 1, rpc.SUPPORTED_OPS: 1, rpc.GET_TENSOR: 1}
            assert {command: calls[command] for command in waited} == waited
            assert calls[rpc.ALLOC_BUFFER_AS] == 3
            assert set(calls) - set(waited) <= {
                rpc.ALLOC_BUFFER_AS,
                rpc.BUFFER_CLEAR,
                rpc.SET_TENSOR,
                rpc.GRAPH_COMPUTE,
                rpc.GRAPH_RECOMPUTE,
            }
            assert proxy.counts.connections == 1
            assert proxy.counts.sent[rpc.SUPPORTED_OPS] < 16_384


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_asked_about_once_and_never_while_tokens_are_made(tmp_path: Path, name: str) -> None:
    """Prompts of several lengths, and a cache that grows: neither makes a kind of operation that is new."""
    binaries, model = patched().binaries, random_model(name)
    with (
        Worker(binaries[RPC_SERVER], tmp_path, weights=[model]) as worker,
        CountingProxy(worker.port) as proxy,
        Head(
            binaries[LLAMA_SERVER],
            tmp_path,
            model,
            [proxy.endpoint],
            index=encode_index(index_of([model])),
        ) as head,
    ):
        assert proxy.counts.calls[rpc.SUPPORTED_OPS] == 1
        head.complete(tokens=260)
        head.complete("x " * 60, tokens=20)
        head.complete("y z " * 70, tokens=3)
        assert proxy.counts.calls[rpc.SUPPORTED_OPS] == 1
        assert proxy.counts.sent[rpc.SUPPORTED_OPS] < 32_768


@pytest.mark.parametrize("load_mode", ["none", "mmap"])
def test_one_worker_loads_all_itself(tmp_path: Path, load_mode: str) -> None:
    binaries = patched().binaries
    copy = copy_to(smollm2(), tmp_path, "elsewhere/another name.bin")
    with (
        Worker(binaries[RPC_SERVER], tmp_path, weights=[copy], secret=SECRET) as worker,
        CountingProxy(worker.port, secret=True) as proxy,
        Head(
            binaries[LLAMA_SERVER],
            tmp_path,
            smollm2(),
            [proxy.endpoint],
            index=encode_index(index_of([smollm2()])),
            secrets={proxy.endpoint: SECRET},
            load_mode=load_mode,
        ) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter(local=SMOLLM2_TENSORS)}
        assert head.report is not None
        assert head.report.lines[0] == f"worker {proxy.endpoint} patched"
        assert f"loaded {SMOLLM2_TENSORS} 96576768" in worker.lines
        assert proxy.counts.weights == 0
        assert sum(proxy.counts.sent.values()) + proxy.counts.received < 1_000_000
        assert proxy.counts.calls[rpc.SET_TENSOR_GGUF] == 1
        assert head.complete() == text_alone(smollm2())
        assert proxy.counts.weights == 0


@pytest.mark.parametrize("load_mode", ["auto", "dio", "mlock", "mmap+mlock"])
def test_the_other_load_modes_work_as_well(tmp_path: Path, load_mode: str) -> None:
    binaries = patched().binaries
    index = encode_index(index_of([small()]))
    with (
        Worker(binaries[RPC_SERVER], tmp_path, weights=[small()]) as worker,
        Head(
            binaries[LLAMA_SERVER], tmp_path, small(), [worker.endpoint], index=index, load_mode=load_mode
        ) as head,
    ):
        assert set(head.placements()[worker.endpoint]) == {"local"}
        assert head.complete() == text_alone(small())


def test_more_tensors_than_one_message_asks_for(tmp_path: Path) -> None:
    binaries = patched().binaries
    index = encode_index(index_of([deep()]))
    with (
        Worker(binaries[RPC_SERVER], tmp_path, weights=[deep()]) as worker,
        CountingProxy(worker.port) as proxy,
        Head(binaries[LLAMA_SERVER], tmp_path, deep(), [proxy.endpoint], index=index) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter(local=1082)}  # the embedding is the head's
        assert proxy.counts.calls[rpc.SET_TENSOR_GGUF] == 2
        assert proxy.counts.weights == 0
        assert head.complete() == text_alone(deep())


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("model", [smollm2, small], ids=["smollm2", "small"])
def test_several_workers_answer_as_one_node(tmp_path: Path, workers: int, model: Callable[[], Path]) -> None:
    file = model()
    binaries = patched().binaries
    with ExitStack() as stack:
        started = [
            stack.enter_context(Worker(binaries[RPC_SERVER], tmp_path, weights=[file]))
            for _ in range(workers)
        ]
        proxies = [stack.enter_context(CountingProxy(worker.port)) for worker in started]
        index = encode_index(index_of([file]))
        endpoints = [proxy.endpoint for proxy in proxies]
        head = stack.enter_context(Head(binaries[LLAMA_SERVER], tmp_path, file, endpoints, index=index))
        placed = head.placements()
        assert set(placed) == set(endpoints)
        assert all(set(ways) == {"local"} for ways in placed.values())
        assert [proxy.counts.weights for proxy in proxies] == [0] * workers
        assert head.complete() == text_alone(file)


def test_a_model_in_several_files(tmp_path: Path) -> None:
    binaries = patched().binaries
    shards = small_sharded()
    assert len(shards) > 1
    copies = [copy_to(shard, tmp_path, f"copy-{shard.name}") for shard in shards]
    with (
        Worker(binaries[RPC_SERVER], tmp_path, weights=copies) as worker,
        CountingProxy(worker.port) as proxy,
        Head(
            binaries[LLAMA_SERVER],
            tmp_path,
            shards[0],
            [proxy.endpoint],
            index=encode_index(index_of(shards)),
        ) as head,
    ):
        assert set(head.placements()[proxy.endpoint]) == {"local"}
        assert proxy.counts.weights == 0
        assert head.complete() == text_alone(shards[0])


def test_a_worker_with_several_models_finds_the_right_one(tmp_path: Path) -> None:
    binaries = patched().binaries
    files = [small(), fine_tune(), smollm2()]
    with Worker(binaries[RPC_SERVER], tmp_path, weights=files) as worker:
        index = encode_index(join_indexes([index_of([file]) for file in (small(), smollm2())]))
        for file in (smollm2(), small()):
            with Head(binaries[LLAMA_SERVER], tmp_path, file, [worker.endpoint], index=index) as head:
                assert set(head.placements()[worker.endpoint]) == {"local"}
                assert head.complete() == text_alone(file)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel in Linux's ways")
@pytest.mark.parametrize("load_mode", ["none", "mmap"])
def test_the_head_reads_none_of_the_workers_weights(tmp_path: Path, load_mode: str) -> None:
    binaries = patched().binaries
    here, there = (copy_to(smollm2(), tmp_path, name) for name in ("head.gguf", "worker.gguf"))
    index = encode_index(index_of([here]))
    tensors = header_of(here).tensors
    remote = [(tensor.offset, tensor.size) for tensor in tensors if tensor.name != "token_embd.weight"]
    drop(here)
    before = resident_bytes(here, remote)
    assert before == 0, "the kernel keeps this file in memory, whatever it is told: nothing can be shown here"
    with (
        Worker(binaries[RPC_SERVER], tmp_path, weights=[there]) as worker,
        Head(
            binaries[LLAMA_SERVER], tmp_path, here, [worker.endpoint], index=index, load_mode=load_mode
        ) as head,
    ):
        head.complete()
        numbers = dict(
            line.split(": ") for line in Path(f"/proc/{head.process.pid}/io").read_text().splitlines()
        )
        read_ahead = resident_bytes(here, remote)
    assert sum(size for _, size in remote) > 60 * MIB
    if load_mode == "mmap":
        assert read_ahead == 0
    else:  # reading the header made the kernel read ahead, and reading the embedding behind it takes that up
        assert read_ahead <= 2 * read_ahead_bytes(here)
    embedding = next(tensor.size for tensor in tensors if tensor.name == "token_embd.weight")
    asked = int(numbers["rchar"])
    assert asked < 8 * MIB + (embedding if load_mode == "none" else 0)


def test_llama_bench_takes_part(tmp_path: Path) -> None:
    binaries = patched().binaries
    with Worker(binaries[RPC_SERVER], tmp_path, weights=[small()]) as worker:
        handed = Handed()
        report = Report(handed)
        index = handed.text(encode_index(index_of([small()])))
        argv = [str(binaries[LLAMA_BENCH]), "-m", str(small()), "--rpc", worker.endpoint, "-dev", "RPC0"]
        argv += ["-p", "4", "-n", "4", "-r", "1", "-t", "1", "-o", "json"]
        env = {"GGML_RPC_WEIGHTS_FD": str(index), "GGML_RPC_REPORT_FD": str(report.number)}
        process = subprocess.Popen(
            argv, env=env, pass_fds=handed.numbers, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        handed.close()
        report.start()
        output, _ = process.communicate(timeout=120)
        report.join()
    assert process.returncode == 0
    assert b"avg_ts" in output
    ways = {line.split(" ")[2] for line in report.lines if line.startswith("tensor ")}
    assert ways == {"local"}
    assert report.lines[-1] == "done"
