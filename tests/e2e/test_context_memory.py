"""Test that the planner says of a context what llama.cpp allocates for it, in models of every kind."""

import re
from functools import partial
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER
from meshd.model.cache import ContextShape
from meshd.model.layers import read_layers

from tests.e2e.models import header_of, stock
from tests.e2e.native_rig import Head, wait_until
from tests.e2e.random_models import MODELS, random_model

pytestmark = pytest.mark.native

_CACHE = re.compile(r"(?:KV|RS) buffer size = +(\d+\.\d\d) MiB")
_ROUNDING = 0.005  # MiB, of each buffer that the log names
_SHAPES = (
    ContextShape(tokens=4096),
    ContextShape(tokens=2048, parallel=2),
    ContextShape(tokens=2048, flash_attention=False),
    ContextShape(tokens=4096, parallel=4),
    ContextShape(tokens=4096, parallel=4, unified=True),
)


def _told_all(head: Head) -> bool:
    return "listening on" in head.output  # its log has a thread of its own


@pytest.mark.parametrize("name", MODELS)
def test_caches_and_states_have_the_size_that_the_planner_expects(tmp_path: Path, name: str) -> None:
    model = random_model(name)
    cache = read_layers([header_of(model)], name=name).cache
    assert cache.exact
    for shape in _SHAPES:
        options = ["-c", str(shape.tokens), "-np", str(shape.parallel), "-v"]
        options += ["-fa", "on" if shape.flash_attention else "off"]
        options += ["-kvu"] if shape.unified else []
        with Head(stock().binaries[LLAMA_SERVER], tmp_path, model, [], extra=options) as head:
            wait_until(partial(_told_all, head), "llama-server has written its log")
            buffers = [float(size) for size in _CACHE.findall(head.output)]
        assert buffers
        expected = sum(cache.layer_bytes(shape)) / 2**20
        assert sum(buffers) == pytest.approx(expected, abs=_ROUNDING * len(buffers)), (shape, buffers)
