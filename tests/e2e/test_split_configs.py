"""The configurations of configs/ are started as a user does, and answer."""

from pathlib import Path

import pytest

from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, Fleet, api_of, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]
CONFIGS = Path(__file__).parents[2] / "configs"
LAYERS = {
    "split-head-most.toml": {"worker-0": 5, "head": 25},
    "split-worker-most.toml": {"worker-0": 26, "head": 4},
    "split-all-remote.toml": {"worker-0": 30},
    "split-even.toml": {"worker-0": 15, "head": 15},
}


def test_each_loads_and_answers(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            for name, layers in LAYERS.items():
                head = await fleet.head(smollm2(), "--config", str(CONFIGS / name), token=token)
                status = await fleet.ready(head)
                assert {part.node: part.layers for part in model_of(status).split if part.layers} == layers
                assert await api_of(status).complete(PROMPT, 4)
                await head.stop()
                fleet.forget(head)

    play(check())


def test_fixed_layers_are_where_they_should_be(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2(), smollm2())
            layers = ("--layers", "worker-1=4-13", "--layers", "head=0-3,worker-0=14-29")
            head = await fleet.head(smollm2(), *layers, "--ctx-size", "max", token=token)
            status = await fleet.ready(head)
            held = [(part.node, part.layers) for part in model_of(status).split if part.layers]
            assert held == [("head", 4), ("worker-1", 10), ("worker-0", 16)]
            answers = model_of(status).answers
            assert answers is not None and answers.tokens == 8192, "as it was trained"
            assert await api_of(status).complete(PROMPT, 4)

    play(check())
