"""What the patches promise holds on a GPU as well: two workers share one, and the head has none.

For each backend that a build was made for (gpus.py), CUDA on a card, Vulkan on a card or on lavapipe.
"""

import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.model.weights_index import encode_index
from meshd.rpc import protocol as rpc

from tests.conformance.run import run as run_to_end
from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.gpus import BACKENDS, Gpu, gpu, listed, model, text_alone
from tests.e2e.models import cache_folder
from tests.e2e.native_rig import DEADLINE, Head, Worker, index_of
from tests.e2e.nodes import PROMPT, Fleet, api_of
from tests.e2e.rpc_client import RpcClient

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

# nobody waits for these: no answer, or one that is read with the next
UNWAITED = {
    rpc.ALLOC_BUFFER_AS,
    rpc.FREE_BUFFER,
    rpc.BUFFER_CLEAR,
    rpc.SET_TENSOR,
    rpc.GRAPH_COMPUTE,
    rpc.INIT_TENSOR,
    rpc.GRAPH_RECOMPUTE,
}
MIB = 1 << 20
LOST = "A worker was lost."
SMOLLM2 = cache_folder() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FLEET_SECONDS = 280.0
ON_TCP = ("--links", "tcp")  # all on one machine: other links would only be tried as well


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if isinstance(found := gpu(name), str):
        pytest.skip(found)
    return name


@pytest.fixture
def card(backend: str) -> Gpu:
    found = gpu(backend)
    assert isinstance(found, Gpu)
    return found


@pytest.fixture(params=["random", "smollm2"])
def file(request: pytest.FixtureRequest) -> Path:
    if request.param == "random":
        return model()
    if not SMOLLM2.is_file():
        pytest.skip("SmolLM2 is not in the cache: `meshd demo` fetches it")
    return SMOLLM2


class Split:
    """Workers on one GPU, a listener before each, and a head with its layers on them."""

    def __init__(self, stack: ExitStack, card: Gpu, folder: Path, file: Path, workers: int) -> None:
        binaries = card.native.binaries
        self.workers = [
            stack.enter_context(Worker(binaries[RPC_SERVER], folder, weights=[file], device=card.device.name))
            for _ in range(workers)
        ]
        self.proxies = [stack.enter_context(CountingProxy(worker.port)) for worker in self.workers]
        endpoints = [proxy.endpoint for proxy in self.proxies]
        index = encode_index(index_of([file]))
        self.head = stack.enter_context(Head(binaries[LLAMA_SERVER], folder, file, endpoints, index=index))


def test_the_card_is_listed_with_its_memory(card: Gpu) -> None:
    assert card.device.kind == "gpu"
    assert card.device.description
    assert 0 < card.device.free_bytes <= card.device.total_bytes
    assert any(device.name == "CPU" and device.kind == "cpu" for device in listed(card.native))


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_load_themselves_and_write_what_one_node_does(
    tmp_path: Path, backend: str, card: Gpu, file: Path, workers: int
) -> None:
    with ExitStack() as stack:
        split = Split(stack, card, tmp_path, file, workers)
        placed = split.head.placements()
        assert [set(ways) for ways in placed.values()] == [{"local"}] * workers
        assert [proxy.counts.weights for proxy in split.proxies] == [0] * workers
        assert split.head.complete() == text_alone(backend, file, tmp_path.parent)
        assert [proxy.counts.weights for proxy in split.proxies] == [0] * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_a_load_asks_no_more_of_a_gpu_than_of_a_processor(tmp_path: Path, card: Gpu, workers: int) -> None:
    """HELLO, the weights, one list of operations, and what the warm-up made: nothing about sizes."""
    with ExitStack() as stack:
        split = Split(stack, card, tmp_path, model(), workers)
        waited = {rpc.HELLO: 1, rpc.SET_TENSOR_GGUF: 1, rpc.SUPPORTED_OPS: 1, rpc.GET_TENSOR: 1}
        seen = [Counter(proxy.counts.calls) for proxy in split.proxies]
        for calls in seen:
            assert {command: calls[command] for command in waited} == waited, seen
            assert set(calls) - set(waited) <= UNWAITED, seen
        assert [proxy.counts.connections for proxy in split.proxies] == [1] * workers


def test_decoding_asks_nothing_but_for_results(tmp_path: Path, card: Gpu) -> None:
    """Also when what is attended to has grown beyond 256 cells."""
    with ExitStack() as stack:
        split = Split(stack, card, tmp_path, model(), 1)
        counts = split.proxies[0].counts
        before = Counter(counts.calls)
        split.head.complete("a" * 240, tokens=40)  # a letter is a token here
        asked = counts.calls - before
        assert asked[rpc.GET_TENSOR] >= 40
        assert set(asked) <= {rpc.GET_TENSOR, *UNWAITED}, asked


def test_a_limit_of_memory_fails_the_load_and_not_the_worker(tmp_path: Path, card: Gpu) -> None:
    binaries = card.native.binaries
    limit = 2 * MIB
    with Worker(
        binaries[RPC_SERVER], tmp_path, weights=[model()], device=card.device.name, memory=str(limit)
    ) as worker:
        with Head(binaries[LLAMA_SERVER], tmp_path, model(), [worker.endpoint], ready=False) as head:
            assert head.wait_end() == 1, head.output[-2000:]
            assert "it has no memory for a buffer of" in head.output
        with RpcClient(worker.port) as client:
            client.hello()
            assert client.memory() == (limit, limit)


def test_more_than_the_card_has_fails_the_load_and_not_the_worker(
    tmp_path: Path, backend: str, card: Gpu
) -> None:
    """A cache of 256 MiB of tokens, half a TiB: no card has it."""
    binaries = card.native.binaries
    index = encode_index(index_of([model()]))
    with Worker(binaries[RPC_SERVER], tmp_path, weights=[model()], device=card.device.name) as worker:
        huge = ("-c", str(256 * MIB))
        with Head(
            binaries[LLAMA_SERVER],
            tmp_path,
            model(),
            [worker.endpoint],
            index=index,
            extra=huge,
            ready=False,
        ) as head:
            assert head.wait_end() == 1, head.output[-2000:]
            assert "it has no memory for a buffer of" in head.output, head.output[-2000:]
        with Head(binaries[LLAMA_SERVER], tmp_path, model(), [worker.endpoint], index=index) as head:
            assert head.complete() == text_alone(backend, model(), tmp_path.parent)


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_while_it_generates(tmp_path: Path, card: Gpu, victim: int) -> None:
    with ExitStack() as stack:
        split = Split(stack, card, tmp_path, model(), 2)
        reference = split.head.complete(tokens=100)
        pieces = 0

        def on_piece(_text: str) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 8:
                split.workers[victim].process.kill()

        text, error = split.head.stream(tokens=200, on_piece=on_piece)
        assert reference.startswith(text), "a token that is none"
        assert error == LOST
        assert split.head.process.poll() is None, split.head.output[-2000:]
        split.workers[victim].process.wait(DEADLINE)
        assert split.head.stream(tokens=4) == ("", LOST)


def test_two_heads_at_the_same_time_on_one_card(tmp_path: Path, card: Gpu) -> None:
    with ExitStack() as stack:
        splits = [Split(stack, card, tmp_path, model(), 1) for _ in range(2)]
        [reference] = {split.head.complete(tokens=60) for split in splits}
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda split=split: texts.append(split.head.complete(tokens=60)))
            for split in splits
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == [reference, reference]


def test_two_heads_of_a_mesh_lease_one_card(tmp_path: Path, backend: str, card: Gpu) -> None:
    """Real daemons: a worker lends the card to both, and has it whole again when they are gone."""
    native = ("--native-bin", str(card.native.bin_dir), *ON_TCP)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", "--device", card.device.name, *native, model=model())
            token = await worker.token()
            options = ("--device", "none", "--ctx-size", "512", *native)
            texts = set()
            for name in ("one", "two"):
                head = await fleet.head(model(), *options, token=token, name=name)
                status = await fleet.ready(head)
                assert status.model is not None
                assert {part.device for part in status.model.split if part.layers} == {card.device.name}
                texts.add(await api_of(status).complete(PROMPT, 24))
            assert len((await worker.status()).children) == 2
            assert len(texts) == 1

    run_to_end(check(), seconds=FLEET_SECONDS)
