"""Patched and stock builds of one commit work together, both ways."""

from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.model.weights_index import encode_index
from meshd.rpc import protocol as rpc

from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.models import patched, small, stock, text_alone
from tests.e2e.native_rig import Head, Worker, index_of
from tests.e2e.rpc_client import ALWAYS, RpcClient

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build


def test_patched_head_stock_worker(tmp_path: Path) -> None:
    with (
        Worker(stock().binaries[RPC_SERVER], tmp_path, stock=True) as worker,
        CountingProxy(worker.port) as proxy,
        Head(
            patched().binaries[LLAMA_SERVER],
            tmp_path,
            small(),
            [proxy.endpoint],
            index=encode_index(index_of([small()])),
        ) as head,
    ):
        assert set(head.placements()[proxy.endpoint]) == {"network stock-worker"}
        assert head.report is not None
        assert head.report.lines[0] == f"worker {proxy.endpoint} stock"
        assert proxy.counts.calls[rpc.SET_TENSOR_GGUF] == 0
        assert head.complete() == text_alone(small())


def test_stock_head_patched_worker(tmp_path: Path) -> None:
    with (
        Worker(patched().binaries[RPC_SERVER], tmp_path, weights=[small()]) as worker,
        CountingProxy(worker.port) as proxy,
        Head(stock().binaries[LLAMA_SERVER], tmp_path, small(), [proxy.endpoint]) as head,
    ):
        assert proxy.counts.weights > 5_000_000
        assert head.complete() == text_alone(small())


def test_patched_head_with_a_patched_and_a_stock_worker(tmp_path: Path) -> None:
    with (
        Worker(stock().binaries[RPC_SERVER], tmp_path, stock=True) as plain,
        Worker(patched().binaries[RPC_SERVER], tmp_path, weights=[small()]) as worker,
        Head(
            patched().binaries[LLAMA_SERVER],
            tmp_path,
            small(),
            [plain.endpoint, worker.endpoint],
            index=encode_index(index_of([small()])),
        ) as head,
    ):
        ways = head.placements()
        assert set(ways[plain.endpoint]) == {"network stock-worker"}
        assert set(ways[worker.endpoint]) == {"local"}
        assert head.complete() == text_alone(small())


def test_secrets_are_sent_to_their_endpoint_only(tmp_path: Path) -> None:
    with (
        Worker(stock().binaries[RPC_SERVER], tmp_path, stock=True) as plain,
        Worker(patched().binaries[RPC_SERVER], tmp_path, secret=bytes(32)) as worker,
        Head(
            patched().binaries[LLAMA_SERVER],
            tmp_path,
            small(),
            [plain.endpoint, worker.endpoint],
            secrets={worker.endpoint: bytes(32)},
        ) as head,
    ):
        assert head.complete() == text_alone(small())


@pytest.mark.parametrize("weights", [False, True])
def test_what_hello_says(tmp_path: Path, weights: bool) -> None:
    files = [small()] if weights else []
    with Worker(patched().binaries[RPC_SERVER], tmp_path, weights=files) as worker:
        with RpcClient(worker.port) as client:
            assert client.hello() == ALWAYS | (rpc.FEATURE_LOAD if weights else 0)
        with RpcClient(worker.port) as client:
            assert client.hello(extended=False) is None  # a stock client sees zeroes


def test_stock_workers_answer_nothing_about_extensions(tmp_path: Path) -> None:
    with Worker(stock().binaries[RPC_SERVER], tmp_path, stock=True) as worker:
        with RpcClient(worker.port) as client:
            assert client.hello() is None


def test_the_table_behind_hello_is_what_the_questions_say(tmp_path: Path) -> None:
    with Worker(patched().binaries[RPC_SERVER], tmp_path, memory=str(512 << 20)) as worker:
        with RpcClient(worker.port) as client:
            client.hello(features=rpc.FEATURE_INFO)
            [device] = client.devices()
            assert (device.free, device.total) == client.memory()
            assert device.total == 512 << 20
            assert (device.alloc_rule, device.wants_init) == (1, False), (
                "the CPU takes a tensor's bytes, no more"
            )


def test_what_the_cpu_can_do_with_weights_comes_behind_that(tmp_path: Path) -> None:
    mul_mat, mul, f32, q4_1 = 29, 7, 1 << 0, 1 << 3
    with Worker(patched().binaries[RPC_SERVER], tmp_path) as worker:
        with RpcClient(worker.port) as client:
            client.hello(features=rpc.FEATURE_INFO | rpc.FEATURE_OPS)
            client.devices()
            table = client.weight_ops()
            known, types = table[mul_mat]
            assert known & types & f32 and known & types & q4_1
            known, types = table[mul]
            assert (known, types) == (f32, f32)  # nothing is said of others, so they are asked about
            assert client.memory()
