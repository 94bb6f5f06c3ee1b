"""The models of a machine: each once, the largest first, the complete ones."""

from pathlib import Path

from meshd.library.stores import own_models

from tests.unit.library.members.exchange_scene import stores_of
from tests.unit.library.models import put, tiny, tiny_shards


def test_each_model_counts_once(tmp_path: Path) -> None:
    stores = stores_of(tmp_path)
    small = put(tmp_path / "own/small-Q4_0.gguf", tiny())
    put(tmp_path / "own/large-Q4_0.gguf", tiny() + bytes(9))
    shards = tiny_shards(3)
    for name, data in shards.items():
        put(tmp_path / "cache/models" / name, data)
    first, *_ = sorted(tmp_path.glob("cache/models/*.gguf"))
    link = tmp_path / "elsewhere/again.gguf"
    link.parent.mkdir()
    link.symlink_to(small)
    found = own_models(stores, [first, link, small, tmp_path / "gone.gguf"])
    sizes = {"tiny-Q4_K_M": sum(map(len, shards.values())), "large-Q4_0": len(tiny()) + 9}
    sizes["small-Q4_0"] = len(tiny())
    assert {one.stem: one.size for one in found} == sizes and len(found) == 3
    assert [one.size for one in found] == sorted(sizes.values(), reverse=True)


def test_what_lacks_a_file_is_none(tmp_path: Path) -> None:
    name, data = next(iter(tiny_shards(2).items()))
    file = put(tmp_path / "own" / name, data)
    assert own_models(stores_of(tmp_path), [file]) == []
