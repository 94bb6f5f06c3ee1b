"""What a plan reads of a model that is here, of one whose header is, and of one whose header came for it."""

import asyncio
import os
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.daemon.planned_model import PlannedModel, planned_model
from meshd.store.hash_cache import HashCache

from tests.gguf_bytes import parse
from tests.unit.library.models import put, tiny, tiny_shards
from tests.unit.store.header_files import with_holes


def read(path: Path) -> PlannedModel:
    return asyncio.run(planned_model(path, HashCache(path.parent / "hashes")))


def test_of_a_whole_model(tmp_path: Path) -> None:
    found = read(put(tmp_path / "a.gguf", tiny()))
    assert (found.name, list(found.headers), found.index) == ("a.gguf", [parse(tiny())], None)


def test_of_a_model_that_is_served_without_its_layers_all_hashes_are_known(tmp_path: Path) -> None:
    found = read(with_holes(tmp_path, tiny(), stem="far-Q4_0"))
    assert found.name == "far-Q4_0.gguf" and list(found.headers) == [parse(tiny())]
    assert found.index is not None and len(found.index.tensors) == len(parse(tiny()).tensors)


def test_of_headers_that_came_for_a_plan_whatever_lies_behind_them(tmp_path: Path) -> None:
    shards = tiny_shards(3)
    paths = []
    for name, data in shards.items():
        header = data[: parse(data).data_offset]
        paths.append(put(tmp_path / name.replace(".gguf", ".header"), header))
        os.truncate(paths[-1], len(data))
    found = read(paths[0])
    assert list(found.headers) == [parse(data) for data in shards.values()] and found.index is None
    assert found.name == next(iter(shards))
    paths[1].unlink()
    with pytest.raises(UserError, match="missing"):
        read(paths[0])
