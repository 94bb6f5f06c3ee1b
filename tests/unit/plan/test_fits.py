"""Where models with short names fit."""

from dataclasses import replace

import pytest
from meshd.model.short_names import short_layers
from meshd.plan.machines import Machines, NodeOffer
from meshd.plan.over_offers import Fit, ModelFit, fits
from meshd.wire.lease import LEASE_ID_BYTES, OfferedDevice, WorkerOffer

from .plain_options import PLAIN

GIB = 1 << 30


def device(kind: str, free: int, name: str = "") -> OfferedDevice:
    return OfferedDevice(name or {"cpu": "CPU", "gpu": "CUDA0"}[kind], kind, "", free * GIB, free * GIB, "")


def worker(node: str, *devices: OfferedDevice) -> NodeOffer:
    offer = WorkerOffer(devices, has_model=False, machine=node, lease_id=bytes(LEASE_ID_BYTES))
    return NodeOffer(node, offer)


def fit(name: str, own: tuple[OfferedDevice, ...], *offers: NodeOffer) -> tuple[Fit, Fit]:
    """Here, and in the mesh."""
    models = [layers for layers in short_layers({}) if layers.name == name]
    [found] = fits(models, Machines(tuple(offers), own), PLAIN)
    assert found == ModelFit(name, found.here, found.mesh)
    return found.here, found.mesh


OWN = (device("cpu", 16), device("gpu", 12))


@pytest.mark.parametrize(
    ("name", "own", "offers", "expected"),
    [
        ("qwen3-4b", OWN, (), (Fit.GPU, Fit.GPU)),
        ("qwen3-4b", (device("cpu", 16),), (), (Fit.CPU, Fit.CPU)),
        ("qwen3-4b", (device("cpu", 16),), (worker("a", device("gpu", 8)),), (Fit.CPU, Fit.GPU)),
        ("glm", OWN, (), (Fit.PARTLY_CPU, Fit.PARTLY_CPU)),
        ("glm", OWN, (worker("a", device("gpu", 12)),), (Fit.PARTLY_CPU, Fit.GPU)),
        ("glm", OWN, (worker("a", device("cpu", 64)),), (Fit.PARTLY_CPU, Fit.PARTLY_CPU)),
        ("glm", (device("cpu", 8),), (worker("a", device("cpu", 24)),), (Fit.NO, Fit.CPU)),
        ("llama-3.3-70b", OWN, (worker("a", device("gpu", 24)),), (Fit.NO, Fit.PARTLY_CPU)),
        ("llama-3.3-70b", OWN, (worker("a", device("gpu", 48)),), (Fit.NO, Fit.GPU)),
        ("gpt-oss-120b", OWN, (worker("a", device("gpu", 24)),), (Fit.NO, Fit.NO)),
        ("gpt-oss-120b", OWN, tuple(worker(n, device("gpu", 24)) for n in "abc"), (Fit.NO, Fit.GPU)),
    ],
)
def test_where_a_model_fits(
    name: str, own: tuple[OfferedDevice, ...], offers: tuple[NodeOffer, ...], expected: tuple[Fit, Fit]
) -> None:
    assert fit(name, own, *offers) == expected


def test_wishes_for_a_split_do_not_count() -> None:
    models = [layers for layers in short_layers({}) if layers.name == "qwen3-4b"]
    options = replace(PLAIN, tensor_split=(1.0, 1.0, 1.0), min_workers=3, workers=("far",))
    assert fits(models, Machines((), OWN), options) == [ModelFit("qwen3-4b", Fit.GPU, Fit.GPU)]


def test_a_head_that_computes_nothing_needs_workers() -> None:
    models = [layers for layers in short_layers({}) if layers.name == "qwen3-4b"]
    machines = Machines((worker("a", device("gpu", 8)),), (device("cpu", 16),))
    assert fits(models, machines, replace(PLAIN, devices=("none",))) == [
        ModelFit("qwen3-4b", Fit.NO, Fit.GPU)
    ]
