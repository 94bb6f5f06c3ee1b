"""Models of many kinds, split over one to four workers: greedy text as on one node, and no weight sent."""

from pathlib import Path

import pytest
from meshd.bench.llama import arguments_of
from meshd.fleet.fleet import LocalNode

from tests.e2e.alone import alone
from tests.e2e.models import stock_text
from tests.e2e.nodes import (
    PROMPT,
    SAME_BATCHES,
    SAME_THREADS,
    THREADS,
    Fleet,
    api_of,
    child_pid,
    model_of,
    play,
)
from tests.e2e.random_models import MODELS, random_model
from tests.e2e.random_parts import LAYERS
from tests.soak import SOAK, drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

# With several, llama.cpp's greedy text depends in the last bits on what the others hold, on one node as well.
ONE_SLOT = ("-np", "1")
TOKENS = 24
# one token a letter: longer than a window and than one step of 512
LONG = "The capital of France is " + ", ".join(f"not the number {number}" for number in range(29))
CHANGED = len(LONG) - 60  # of this letter only the first step's cache or state tells the second one
MOST_WORKERS = 4
# with a matrix for embeddings and another one for logits
UNTIED = ("llama", "gpt-oss", "qwen3moe", "deepseek2", "rwkv7", "qwen3next")
EMBEDDINGS = 36_864  # bytes, at least
HYBRID = "granitehybrid"  # layer 0 has attention, layer 1 a state


# in a soak each number with each model; else each model with one of two numbers, all of it drawn
COUNTS = drawn("numbers of workers", range(1, MOST_WORKERS + 1), 2, always=())
NAMES = drawn("the order of models", MODELS, len(MODELS), always=())
SPLITS = {count: NAMES if SOAK else NAMES[number :: len(COUNTS)] for number, count in enumerate(COUNTS)}


@pytest.mark.parametrize("name", MODELS)
def test_the_text_depends_on_the_whole_prompt(name: str) -> None:
    """Otherwise the others would show nothing."""
    model = random_model(name)
    changed = f"{LONG[:CHANGED]}*{LONG[CHANGED + 1 :]}"
    texts = [alone(model, TOKENS, prompt) for prompt in (PROMPT, LONG, changed)]
    assert len(set(texts)) == len(texts)
    assert all(len(set(text.split())) > TOKENS / 3 for text in texts), texts


@pytest.mark.parametrize("workers", SPLITS)
def test_text_of_a_split_is_that_of_one_node(tmp_path: Path, workers: int) -> None:
    """One head that is started again with each model, on the same workers."""
    names = SPLITS[workers]

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token = await _start_workers(fleet, names, workers)
            wrong = {}
            for name in names:
                options = ("--min-workers", str(workers), *SAME_THREADS, *SAME_BATCHES, *ONE_SLOT)
                head = await fleet.head(random_model(name), *options, token=token)
                if texts := await _different_texts(fleet, head, name, devices=workers + 1):
                    wrong[name] = texts
                await head.stop()
                fleet.forget(head)
            assert wrong == {}

    play(check(), seconds=590)


def test_a_head_that_computes_nothing_sends_numbers_of_tokens(tmp_path: Path) -> None:
    """Embeddings, layers and output are on the workers: rows of neither embeddings nor logits cross."""
    names = drawn("models with embeddings on a worker", UNTIED, 3, always=())

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token = await _start_workers(fleet, names, 2)
            wrong = {}
            for name in names:
                options = (
                    "--min-workers",
                    "2",
                    "--device",
                    "none",
                    "--set",
                    "serve.output=worker",
                    *SAME_THREADS,
                )
                head = await fleet.head(random_model(name), *options, *SAME_BATCHES, *ONE_SLOT, token=token)
                if texts := await _different_texts(fleet, head, name, devices=2):
                    wrong[name] = texts
                split = model_of(await head.status()).split
                [on_head] = [part.bytes for part in split if part.node == "head"]
                assert on_head < EMBEDDINGS, split
                await head.stop()
                fleet.forget(head)
            assert wrong == {}

    play(check(), seconds=590)


def test_attention_stays_on_the_head_when_a_recurrent_layer_follows_on_a_worker(tmp_path: Path) -> None:
    """Where the scheduler takes it along, the layer's whole cache crosses with every token."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token = await _start_workers(fleet, [HYBRID], 1)
            options = ("--tensor-split", f"{LAYERS - 1},1", *SAME_THREADS, *SAME_BATCHES, *ONE_SLOT)
            head = await fleet.head(random_model(HYBRID), *options, token=token)
            assert await _different_texts(fleet, head, HYBRID, devices=2) == []

    play(check())


def test_a_windowed_model_needs_no_checkpoints_and_answers_like_one_machine(tmp_path: Path) -> None:
    """A prompt many times as long as its windows, which keep the whole context; one machine's are short.

    What is computed at once rounds otherwise than it does apart: both have the same micro batches, which the
    plan would choose by the time that a message takes.
    """
    model, prompt = random_model("gemma3"), "one, two, three, " * 100
    same = ("-c", "8192", "-t", str(THREADS), "-ub", "128", "-ctxcp", "0")
    reference = stock_text(model, TOKENS, prompt, same)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(model, model)
            # of several slots the first token has one, whose cells another one's last bits depend on
            options = ("--device", "none", "--min-workers", "2", *SAME_THREADS, "-np", "1", "-ub", "128")
            head = await fleet.head(model, *options, token=token)
            status = await fleet.ready(head)
            assert "--swa-full" in arguments_of(child_pid(status, "llama-server"))
            assert await api_of(status).complete(prompt, TOKENS) == reference

    play(check())


async def _start_workers(fleet: Fleet, names: list[str], count: int) -> str:
    """Each has the files of all models; returns a token."""
    files = ("--model", *(str(random_model(name)) for name in names))
    token, _ = await fleet.workers(*[None] * count, options=files)
    return token


async def _different_texts(fleet: Fleet, head: LocalNode, name: str, *, devices: int) -> list[str]:
    """Return the texts that differ from one node's, when `devices` have a share of the layers."""
    status = await fleet.ready(head)
    view = model_of(status)
    assert len([part for part in view.split if part.layers]) == devices, view.split
    assert view.weights_network_bytes == 0, name
    api, different = api_of(status), []
    for prompt in (PROMPT, LONG, PROMPT):  # the last time, what was answered before must not matter
        text = await api.complete(prompt, TOKENS)
        if text != alone(random_model(name), TOKENS, prompt):
            different.append(text)
    return different
