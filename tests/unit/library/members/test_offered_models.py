"""Which models of a machine members hear of."""

import json
import os
from collections.abc import Collection
from pathlib import Path

import pytest
from meshd.library.interface import ModelSource
from meshd.library.members.give import OWN_SOURCES, OfferedModels, OpenModel
from meshd.store.hash_cache import FileState, HashCache, PieceCache

from tests.gguf_bytes import parse
from tests.unit.library.members.exchange_scene import CACHES, stores_of
from tests.unit.library.members.told_member import index_of
from tests.unit.library.models import cached, in_ollama, put, tiny, tiny_shards
from tests.unit.store.header_files import hashes_of, with_holes


def offered(folder: Path, sources: Collection[ModelSource]) -> OfferedModels:
    pieces = PieceCache(folder / "pieces", HashCache(folder / "weights"))
    return OfferedModels(lambda: stores_of(folder), folder / "weights", pieces, sources=sources)


def filled(folder: Path) -> None:
    """A model in each store, and some that are not whole."""
    cached(folder / "hub", "me/Tiny-GGUF", {"tiny-Q8_0.gguf": tiny()})
    in_ollama(folder / "ollama", "registry.ollama.ai/me/small/1b", tiny(fill=2))
    put(folder / "lm/a/b/lm-Q4_0.gguf", tiny(fill=3))
    put(folder / "own/mine-Q4_0.gguf", tiny(fill=4))
    put(folder / "cache/models/ours-Q4_0.gguf", tiny(fill=5))
    put(folder / "cache/models/cut-Q4_0.gguf", tiny(fill=6)[:-10])
    put(folder / "cache/models/text-Q4_0.gguf", b"no model")
    put(folder / "cache/models/.parts/00/half-Q4_0.gguf", tiny(fill=7))
    for name, data in list(tiny_shards(3).items())[:2]:
        put(folder / "cache/models" / name, data)


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (OWN_SOURCES, {"ours-Q4_0"}),
        (CACHES, {"tiny-Q8_0", "me-small-1b", "ours-Q4_0"}),
        (tuple(ModelSource), {"tiny-Q8_0", "me-small-1b", "ours-Q4_0", "lm-Q4_0", "mine-Q4_0"}),
        ((), set()),
    ],
)
def test_what_the_user_allows(tmp_path: Path, sources: Collection[ModelSource], names: set[str]) -> None:
    filled(tmp_path)
    found = offered(tmp_path, sources).listed()
    assert {one.entry.names[0] for one in found} == names
    assert len({one.entry.key for one in found}) == len(names)


def test_names_with_a_scheme_are_told_too(tmp_path: Path) -> None:
    filled(tmp_path)
    names = {one.entry.names for one in offered(tmp_path, CACHES).listed()}
    assert ("tiny-Q8_0", "hf:me/Tiny-GGUF:Q8_0") in names and ("me-small-1b", "ollama:me/small:1b") in names
    assert str(tmp_path) not in json.dumps(sorted(names))


def test_what_the_node_was_started_with(tmp_path: Path) -> None:
    mine = put(tmp_path / "elsewhere/mine-Q4_0.gguf", tiny())
    parts = [put(tmp_path / "elsewhere" / name, data) for name, data in tiny_shards(2).items()]
    given, off = offered(tmp_path, CACHES), offered(tmp_path, ())
    for one in (given, off):
        one.add([mine, parts[1], tmp_path / "gone.gguf"])
    assert [one.entry.names for one in given.listed()] == [("mine-Q4_0",), ("tiny-Q4_K_M",)]
    assert given.listed()[1].entry.files == 2 and off.listed() == ()


def test_a_model_of_a_cache_with_which_the_node_was_started_keeps_its_names(tmp_path: Path) -> None:
    filled(tmp_path)
    (hub,) = [one for one in stores_of(tmp_path).all_models() if one.name.startswith("hf:")]
    given = offered(tmp_path, OWN_SOURCES)
    given.add(hub.paths)
    names = {one.entry.names for one in given.listed()}
    assert names == {("ours-Q4_0",), ("tiny-Q8_0", "hf:me/Tiny-GGUF:Q8_0")}


def test_keys_mean_the_same_model_in_one_process_and_nothing_in_another(tmp_path: Path) -> None:
    filled(tmp_path)
    first, second = offered(tmp_path, CACHES), offered(tmp_path, CACHES)
    keys = [one.entry.key for one in first.listed()]
    first.changed()
    assert [one.entry.key for one in first.listed()] == keys
    assert not set(keys) & {one.entry.key for one in second.listed()}
    found = first.by_key(keys[0])
    assert found is not None and found.entry.key == keys[0] and first.by_key(bytes(16)) is None
    assert first.by_content(b"") is None


def test_a_header_is_offered_to_nobody(tmp_path: Path) -> None:
    """Nor if the node was started with it."""
    path = with_holes(tmp_path / "cache/models/header-0", tiny())
    given = offered(tmp_path, tuple(ModelSource))
    assert given.listed() == ()
    given.add([path])
    given.changed()
    assert given.listed() == ()


def test_a_model_is_found_by_what_has_become_known_since_the_list(tmp_path: Path) -> None:
    data = tiny(fill=5)
    path = put(tmp_path / "cache/models/ours-Q4_0.gguf", data)
    here = offered(tmp_path, OWN_SOURCES)
    [model] = here.listed()
    index = index_of(data)
    assert here.by_content(index.content) is None and here.by_content(b"") is None
    assert here.index_of(model) is None and here.tensors_of(model) is None
    PieceCache(tmp_path / "pieces", HashCache(tmp_path / "weights")).save([FileState.at(path)], index)
    assert here.by_content(index.content) == model
    assert here.by_content(bytes(len(index.content))) is None
    assert here.index_of(model) == index
    assert here.by_key(model.entry.key) == model and here.by_key(bytes(16)) is None
    HashCache(tmp_path / "weights").save(FileState.at(path), parse(data), hashes_of(data))
    assert here.tensors_of(model) == b"".join(hashes_of(data))
    here.changed()
    [told] = here.listed()
    assert told.entry.content == index.content and here.by_content(index.content) == told


def test_a_model_that_is_given_is_open_until_it_is_closed(tmp_path: Path) -> None:
    put(tmp_path / "cache/models/ours-Q4_0.gguf", tiny(fill=5))
    [model] = offered(tmp_path, OWN_SOURCES).listed()
    opened = OpenModel(model)
    assert opened.descriptors == [] and opened.labels == ("ours-Q4_0.gguf",)
    opened.open()
    [descriptor] = opened.descriptors
    assert opened.states == model.states
    assert os.pread(descriptor, 4, 0) == b"GGUF"
    opened.close()
    opened.close()
    assert opened.descriptors == []
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)
