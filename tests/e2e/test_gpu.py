"""The native part on a real GPU of this machine: workers that lend it load and compute as processors do.

Skipped where no build for a GPU is in the cache. Nothing of meshd runs but in the last test.
"""

import contextlib
import http.client
import threading
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from meshd.model.cache import ContextShape
from meshd.model.layer_work import USUAL, operations
from meshd.model.weights_index import encode_index
from meshd.rpc import mesh_protocol as wire

from tests.conformance.run import run as run_to_end
from tests.e2e.gpus import BACKENDS, Gpu, gpu_or_skip, listed, model, text_alone
from tests.e2e.mesh_rig import CountedPair, MeshHead, MeshServer
from tests.e2e.mesh_server_scene import LOST
from tests.e2e.models import cache_folder, header_of
from tests.e2e.native_rig import DEADLINE, index_of
from tests.e2e.nodes import PROMPT, Fleet, api_of
from tests.e2e.random_models import MODELS, random_model
from tests.e2e.trial_lines import trial

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

MIB = 1 << 20
WARM_UP = MIB  # bytes at most that a load sends besides weights
SMOLLM2 = cache_folder() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FLEET_SECONDS = 280.0
COUNTING = "1, 2, 3, 4, 5, 6,"
ON_TCP = ("--links", "tcp")  # all on one machine: other links would only be tried as well
# what a token may ask for: no memory, no weights, nothing about the device
OF_A_TOKEN = {wire.WRITE, wire.FILL, wire.COPY, wire.GRAPH, wire.COMPUTE, wire.READ, wire.DATA, wire.PROGRESS}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    gpu_or_skip(name)
    return name


@pytest.fixture
def card(backend: str) -> Gpu:
    return gpu_or_skip(backend)


@pytest.fixture(params=["random", "smollm2"])
def file(request: pytest.FixtureRequest) -> Path:
    if request.param == "random":
        return model()
    if not SMOLLM2.is_file():
        pytest.skip("SmolLM2 is not in the cache: `meshd demo` fetches it")
    return SMOLLM2


class Split:
    """Workers that lend one GPU, each behind a pair that counts, and a head with its layers on them."""

    def __init__(
        self,
        stack: ExitStack,
        card: Gpu,
        folder: Path,
        file: Path,
        workers: int = 1,
        *,
        memory: str = "",
        extra: tuple[str, ...] = (),
        ready: bool = True,
    ) -> None:
        self.pairs = [stack.enter_context(closing(CountedPair())) for _ in range(workers)]
        device = ("--device", card.device.name)
        self.workers = [
            stack.enter_context(
                MeshServer(card.programs, folder, pair, weights=[file], memory=memory, extra=device)
            )
            for pair in self.pairs
        ]
        self.head = stack.enter_context(
            MeshHead(
                card.programs,
                folder,
                file,
                self.pairs,
                binary=card.llama_server,
                index=encode_index(index_of([file])),
                extra=extra,
                ready=ready,
            )
        )


def test_the_card_is_listed_with_its_memory(card: Gpu) -> None:
    assert card.device.kind == "gpu"
    assert card.device.description
    assert 0 < card.device.free_bytes <= card.device.total_bytes
    assert any(device.name == "CPU" and device.kind == "cpu" for device in listed(card.native))


def test_it_computes_what_models_need(card: Gpu) -> None:
    """Vulkan on lavapipe as well, which is no GPU, but another implementation of all kernels."""
    program = card.programs.server
    assert trial(program, "none", ["sums:64"]) == (1, {})
    headers = [header_of(random_model(name)) for name in MODELS]
    words = [word for header in headers for word in operations([header], ContextShape(1024))]
    wanted = list(dict.fromkeys([*words, *USUAL]))
    code, found = trial(program, card.device.name, wanted)
    assert (code, list(found)) == (0, wanted)
    assert {verdict for verdict, _ in found.values()} <= {"right", "lacks"}


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_load_themselves_and_write_what_one_node_does(
    tmp_path: Path, backend: str, card: Gpu, file: Path, workers: int
) -> None:
    with ExitStack() as stack:
        split = Split(stack, card, tmp_path, file, workers)
        assert [set(pair.loaded) for pair in split.pairs] == [{"loaded"}] * workers
        assert all(pair.bytes[wire.WRITE] < WARM_UP for pair in split.pairs)
        assert split.head.complete() == text_alone(backend, file, tmp_path.parent)


def test_two_workers_write_what_a_processor_does(tmp_path: Path, backend: str, card: Gpu) -> None:
    """Where the choice is clear: elsewhere even two kinds of processors round to different words."""
    if not SMOLLM2.is_file():
        pytest.skip("SmolLM2 is not in the cache: `meshd demo` fetches it")
    with ExitStack() as stack:
        split = Split(stack, card, tmp_path, SMOLLM2, 2)
        expected = text_alone(backend, SMOLLM2, tmp_path.parent, on_cpu=True, prompt=COUNTING)
        assert expected.startswith(" 7, 8, 9, 10,")
        assert split.head.complete(COUNTING) == expected


def test_decoding_asks_nothing_but_for_results(tmp_path: Path, card: Gpu) -> None:
    """Also when what is attended to has grown beyond 256 cells."""
    with ExitStack() as stack:
        split = Split(stack, card, tmp_path, model())
        before = Counter(split.pairs[0].messages)
        split.head.complete("a" * 240, tokens=40)  # a letter is a token here
        asked = split.pairs[0].messages - before
        assert asked[wire.READ] == asked[wire.DATA] >= 40
        assert set(asked) <= OF_A_TOKEN, asked


def test_a_limit_of_memory_fails_the_load_with_its_reason(tmp_path: Path, card: Gpu) -> None:
    with ExitStack() as stack:
        split = Split(stack, card, tmp_path, model(), memory=str(2 * MIB), ready=False)
        assert split.head.wait_end() == 1, split.head.output[-2000:]
        assert split.head.report is not None
        assert split.head.report.wait("exceeded 0 0 ").endswith(f" {2 * MIB}")
        assert split.workers[0].process.wait(DEADLINE) == 0


def test_more_than_the_card_has_fails_the_load_and_not_the_worker(tmp_path: Path, card: Gpu) -> None:
    """A cache of 256 MiB of tokens, half a TiB: no card has it."""
    with ExitStack() as stack:
        huge = ("-c", str(256 * MIB))
        split = Split(stack, card, tmp_path, model(), extra=huge, ready=False)
        assert split.head.wait_end() == 1, split.head.output[-2000:]
        assert split.head.report is not None
        split.head.report.wait("exceeded 0 0 ")
        assert split.workers[0].process.wait(DEADLINE) == 0


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_while_it_generates(tmp_path: Path, card: Gpu, victim: int) -> None:
    with ExitStack() as stack:
        split = Split(stack, card, tmp_path, model(), 2)
        reference = split.head.complete(tokens=200)
        pieces: list[str] = []

        def on_piece(text: str) -> None:
            pieces.append(text)
            if len(pieces) == 8:
                split.workers[victim].process.kill()

        with contextlib.suppress(OSError, http.client.HTTPException):
            split.head.stream(tokens=200, on_piece=on_piece)
        assert split.head.wait_end() == LOST, split.head.output[-2000:]
        assert len(pieces) >= 8
        assert reference.startswith("".join(pieces)), "a token that is none"
        assert split.head.report is not None
        split.head.report.wait(f"lost {victim} ")


def test_two_heads_at_the_same_time_on_one_card(tmp_path: Path, card: Gpu) -> None:
    with ExitStack() as stack:
        splits = [Split(stack, card, tmp_path, model()) for _ in range(2)]
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


def _one_folder(card: Gpu, folder: Path) -> Path:
    """Return a folder with all programs of the build, as a user would name it."""
    folder.mkdir()
    for path in card.native.binaries.values():
        (folder / path.name).symlink_to(path)
    return folder


def test_two_heads_of_a_mesh_lease_one_card(tmp_path: Path, card: Gpu) -> None:
    """Real daemons: a worker lends the card to both, and has it whole again when they are gone."""
    native = ("--native-bin", str(_one_folder(card, tmp_path / "bin")), *ON_TCP)

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
