"""The four splits of configs/: each divides a model's layers as its table in docs/models.md says."""

from dataclasses import replace
from pathlib import Path

import pytest
from meshd.config.load import load
from meshd.plan.choice import plan_model
from meshd.plan.wishes import HeadOptions

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

CONFIGS = Path(__file__).parents[3] / "configs"
THERE = machines([offer("a", 16)], {"head": 1.0, "a": 1.0})
LAYERS = {
    "split-head-most.toml": {"a": 5, "head": 25},
    "split-worker-most.toml": {"a": 26, "head": 4},
    "split-all-remote.toml": {"a": 30},
    "split-even.toml": {"a": 15, "head": 15},
}


def test_every_one_is_tested() -> None:
    assert {path.name for path in CONFIGS.glob("split-*.toml")} == set(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_are_where_they_should_be(name: str) -> None:
    serve = load(environ={}, file=CONFIGS / name).config.serve
    options: HeadOptions = replace(
        OPTIONS, tensor_split=serve.tensor_split, devices=serve.devices, split=serve.split
    )
    split = plan_model(MODEL, WORK, THERE, options)
    held = {share.device.node: share.layers for share in split.plan.shares if share.layers}
    assert held == LAYERS[name] and serve.min_workers == 1
