"""Hidden states as half floats: their bytes, who takes them so, and that the others get them as ever.

Real processes without meshd between them. What halves do to a model is measured by tests/e2e/perplexity.py.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.rpc import protocol as rpc

from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.half_able import half_able
from tests.e2e.models import patched, smollm2, stock, text_alone
from tests.e2e.native_rig import Head, Worker
from tests.e2e.push_rig import pushing

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

WIDTH = 576  # of SmolLM2's hidden state
F32_BYTES, HALF_BYTES = 4 * WIDTH, 2 * (WIDTH + 1)
HALVES = (rpc.SET_TENSOR_F16, rpc.GET_TENSOR_F16, rpc.PUSH_TENSOR_F16, rpc.TAKE_TENSOR_F16)
OUTPUT_ON_HEAD = ("-ot", "token_embd.weight=CPU")
FEW, MANY = 4, 20
LONG = "The capital of France is " + ", ".join(f"not number {number}" for number in range(40))


@contextmanager
def _one_worker(folder: Path, activations: str) -> Iterator[tuple[Head, CountingProxy]]:
    with (
        Worker(patched().binaries[RPC_SERVER], folder) as worker,
        CountingProxy(worker.port) as proxy,
        Head(
            patched().binaries[LLAMA_SERVER],
            folder,
            smollm2(),
            [proxy.endpoint],
            activations=activations,
            extra=OUTPUT_ON_HEAD,
        ) as head,
    ):
        yield head, proxy


def _a_token(head: Head, proxy: CountingProxy) -> tuple[float, float]:
    """Bytes of tensors to the worker, and all bytes from it."""
    seen = []
    for tokens in (FEW, MANY):
        before = _tensor_bytes(proxy), proxy.counts.received
        head.complete(tokens=tokens)
        seen.append((_tensor_bytes(proxy) - before[0], proxy.counts.received - before[1]))
    return (seen[1][0] - seen[0][0]) / (MANY - FEW), (seen[1][1] - seen[0][1]) / (MANY - FEW)


def _tensor_bytes(proxy: CountingProxy) -> int:
    return proxy.counts.sent[rpc.SET_TENSOR] + proxy.counts.sent[rpc.SET_TENSOR_F16]


def test_a_token_has_half_the_bytes_each_way(tmp_path: Path) -> None:
    with _one_worker(tmp_path, "") as (head, proxy):
        assert head.complete() == text_alone(smollm2())
        sent, received = _a_token(head, proxy)
        assert not any(proxy.counts.calls[command] for command in HALVES)
    with _one_worker(tmp_path, "f16") as (head, proxy):
        assert head.report is not None
        assert f"activations {proxy.endpoint} f16" in head.report.lines
        less_sent, less_received = _a_token(head, proxy)
        calls = proxy.counts.calls
        assert calls[rpc.GET_TENSOR_F16] >= MANY and not calls[rpc.GET_TENSOR]
        assert calls[rpc.SET_TENSOR_F16] == calls[rpc.GET_TENSOR_F16]
    assert received == 8 + F32_BYTES and less_received == 8 + HALF_BYTES
    assert sent - less_sent == F32_BYTES - HALF_BYTES


def test_a_prompt_has_half_the_bytes_of_hidden_states(tmp_path: Path) -> None:
    with _one_worker(tmp_path, "f16") as (head, proxy):
        before = proxy.counts.sent[rpc.SET_TENSOR_F16]
        head.complete(LONG, tokens=1)
        states, rest = divmod(proxy.counts.sent[rpc.SET_TENSOR_F16] - before, HALF_BYTES)
        assert states > 160 and rest == 314  # tokens; and a header: the request's, and the tensor's


@pytest.mark.parametrize("value", ["f8", "F16", ""])
def test_another_word_than_f32_or_f16_stops_the_start(tmp_path: Path, value: str) -> None:
    with Worker(patched().binaries[RPC_SERVER], tmp_path) as worker:
        ends = [worker.endpoint]
        server = patched().binaries[LLAMA_SERVER]
        if not value:  # not set at all
            with Head(server, tmp_path, smollm2(), ends, activations="f32") as head:
                assert head.report is not None
                assert not any(line.startswith("activations") for line in head.report.lines)
            return
        with Head(server, tmp_path, smollm2(), ends, activations=value, ready=False) as head:
            assert head.wait_end() != 0
            assert f"GGML_RPC_ACTIVATIONS is '{value}', neither f32 nor f16" in head.output


# From worker to worker.


@pytest.mark.parametrize("workers", [2, 3])
def test_pushes_have_half_the_bytes(tmp_path: Path, workers: int) -> None:
    with pushing(tmp_path, smollm2(), workers, activations="f16") as (head, chain):
        before = [side.counts.sent[rpc.PEER_DATA] for side in chain.sides]
        pushes = chain.pushed()
        head.complete(tokens=MANY)
        moved = [now.counts.sent[rpc.PEER_DATA] - was for now, was in zip(chain.sides, before, strict=True)]
        pushes = [now - was for now, was in zip(chain.pushed(), pushes, strict=True)]
        states = [(size - 17 * count) / HALF_BYTES for size, count in zip(moved, pushes, strict=True)]
        assert states == [states[0]] * (workers - 1) and states[0].is_integer() and states[0] >= MANY
        for way in chain.ways[:-1]:
            assert way.counts.calls[rpc.PUSH_TENSOR_F16] and not way.counts.calls[rpc.PUSH_TENSOR]
        for way in chain.ways[1:]:
            assert way.counts.calls[rpc.TAKE_TENSOR_F16] and not way.counts.calls[rpc.TAKE_TENSOR]


def test_without_a_way_they_go_through_the_head_as_halves(tmp_path: Path) -> None:
    with pushing(tmp_path, smollm2(), 2, without=[0], activations="f16") as (head, chain):
        text = head.complete(tokens=MANY)
        first, second = (way.counts.calls for way in chain.ways)
        assert first[rpc.GET_TENSOR_F16] == second[rpc.SET_TENSOR_F16] >= MANY
        assert not first[rpc.PUSH_TENSOR] and not first[rpc.PUSH_TENSOR_F16]
        assert not first[rpc.GET_TENSOR]
        assert second[rpc.GET_TENSOR] >= MANY  # logits: they are never halves
    with pushing(tmp_path, smollm2(), 2, activations="f16") as (head, chain):
        assert head.complete(tokens=MANY) == text  # halves of halves are the same


# Who does not know how.


def test_a_stock_worker_gets_them_as_ever(tmp_path: Path) -> None:
    with (
        Worker(stock().binaries[RPC_SERVER], tmp_path, stock=True) as worker,
        Head(
            patched().binaries[LLAMA_SERVER], tmp_path, smollm2(), [worker.endpoint], activations="f16"
        ) as head,
    ):
        assert head.complete() == text_alone(smollm2())
        assert head.report is not None
        assert f"activations {worker.endpoint} f32" in head.report.lines


def _without_f16(command: int, body: bytes) -> bytes:
    """What a server without this patch answers to HELLO."""
    if command != rpc.HELLO:
        return body
    (features,) = struct.unpack_from("<H", body, 26)
    return body[:26] + struct.pack("<H", features & ~rpc.FEATURE_F16)


def test_an_older_worker_gets_them_as_ever(tmp_path: Path) -> None:
    with (
        Worker(patched().binaries[RPC_SERVER], tmp_path) as worker,
        half_able(worker.port, (), change=_without_f16) as older,
        CountingProxy(int(older.endpoint.split(":")[1])) as proxy,
        Head(
            patched().binaries[LLAMA_SERVER], tmp_path, smollm2(), [proxy.endpoint], activations="f16"
        ) as head,
    ):
        assert head.complete() == text_alone(smollm2())
        assert not any(proxy.counts.calls[command] for command in HALVES)


def test_one_that_takes_halves_and_one_that_does_not(tmp_path: Path) -> None:
    with (
        Worker(patched().binaries[RPC_SERVER], tmp_path) as worker,
        CountingProxy(worker.port) as proxy,
        Worker(stock().binaries[RPC_SERVER], tmp_path, stock=True) as other,
        Head(
            patched().binaries[LLAMA_SERVER],
            tmp_path,
            smollm2(),
            [proxy.endpoint, other.endpoint],
            activations="f16",
            extra=("-ts", "1,1"),
        ) as head,
    ):
        assert head.complete(tokens=MANY)
        assert proxy.counts.calls[rpc.SET_TENSOR_F16] == proxy.counts.calls[rpc.GET_TENSOR_F16] >= MANY


def _too_large(broken: list[bool], command: int, body: bytes) -> bytes:
    """The first exponent is one that there is not."""
    return b"\xff\xff" + body[2:] if broken and command == rpc.GET_TENSOR_F16 else body


def test_an_answer_that_is_none_loses_the_worker(tmp_path: Path) -> None:
    broken: list[bool] = []
    with (
        Worker(patched().binaries[RPC_SERVER], tmp_path) as worker,
        half_able(worker.port, (), change=partial(_too_large, broken)) as liar,
        Head(
            patched().binaries[LLAMA_SERVER],
            tmp_path,
            smollm2(),
            [liar.endpoint],
            activations="f16",
            extra=OUTPUT_ON_HEAD,
        ) as head,
    ):
        assert head.complete(tokens=4)
        broken.append(True)
        text, error = head.stream(tokens=4)
        assert (text, error) == ("", "A worker was lost.")
        assert head.report is not None
        assert head.report.wait("lost").endswith("it sent half floats that are none")
