"""Folders of GGUF files, and walks that stay within bounds."""

from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.library import disk
from meshd.library.disk import files_below, folders_in
from meshd.library.interface import ModelSource
from meshd.library.stores import lm_studio_folders, models_below, of_path, only_model, own_models

from tests.unit.library.members.exchange_scene import stores_of
from tests.unit.library.models import put, tiny, tiny_shards


def test_the_only_model_of_a_folder(tmp_path: Path) -> None:
    path = put(tmp_path / "a-Q8_0.gguf", tiny())
    put(tmp_path / "mmproj-F16.gguf", b"x")
    put(tmp_path / "README.md", b"x")
    found = only_model(tmp_path)
    assert (found.paths, found.quant, found.size) == ((path,), "Q8_0", len(tiny()))


def test_shards_are_one_model(tmp_path: Path) -> None:
    for name, data in tiny_shards(4).items():
        put(tmp_path / name, data)
    found = only_model(tmp_path)
    assert len(found.paths) == 4 and found.complete


def test_several_models_are_listed(tmp_path: Path) -> None:
    for name in ("a.gguf", "sub/b.gguf"):
        put(tmp_path / name, tiny())
    with pytest.raises(UserError, match=r"several models: `a\.gguf`, `sub/b\.gguf`") as caught:
        only_model(tmp_path)
    assert str(tmp_path / "a.gguf") in caught.value.hint


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no model"):
        only_model(tmp_path)


def test_lm_studios_layout(home: Path) -> None:
    path = put(home / ".lmstudio/models/publisher/repo-GGUF/repo-Q4_K_M.gguf", tiny())
    assert lm_studio_folders()[0] == home / ".lmstudio/models"
    [found] = models_below(home / ".lmstudio/models", ModelSource.LM_STUDIO)
    assert (found.paths, found.stem, found.source) == ((path,), "repo-Q4_K_M", ModelSource.LM_STUDIO)


def test_a_walk_has_a_depth_and_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a/b/c/d/deep.gguf", b"x")
    put(tmp_path / "a/b/near.gguf", b"x")
    assert [path.name for path, _ in files_below(tmp_path, depth=3)] == ["near.gguf"]
    assert len(files_below(tmp_path, depth=9)) == 2
    for number in range(50):
        put(tmp_path / "many" / f"{number}.gguf", b"x")
    monkeypatch.setattr(disk, "MAX_ENTRIES", 20)
    assert len(files_below(tmp_path, depth=2)) <= 20
    assert len(folders_in(tmp_path, "m")) == 1


def test_a_walk_follows_no_loop(tmp_path: Path) -> None:
    put(tmp_path / "a/m.gguf", b"x")
    (tmp_path / "a/loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a/gone.gguf").symlink_to(tmp_path / "nothing")
    (tmp_path / "a/linked.gguf").symlink_to(tmp_path / "a/m.gguf")
    assert [path.name for path, _ in files_below(tmp_path, depth=9)] == ["linked.gguf", "m.gguf"]


def test_what_is_not_there(tmp_path: Path) -> None:
    assert files_below(tmp_path / "x", depth=3) == [] and folders_in(tmp_path / "x", "") == []
    assert disk.size_of(tmp_path / "x") == 0


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


def test_a_model_is_called_as_it_is_listed(tmp_path: Path) -> None:
    stores = stores_of(tmp_path)
    path = put(tmp_path / "own/mine-Q4_0.gguf", tiny())
    link = tmp_path / "elsewhere/again.gguf"
    link.parent.mkdir()
    link.symlink_to(path)
    [listed] = stores.listed()
    for here in (path, link):
        assert stores.named(of_path(here)) == listed
    other = of_path(put(tmp_path / "elsewhere/other.gguf", tiny(fill=2)))
    assert stores.named(other) is other
    nowhere = replace(other, paths=())
    assert stores.named(nowhere) is nowhere


@pytest.mark.parametrize(("count", "more"), [(2, ""), (12, ""), (13, " and 1 more"), (15, " and 3 more")])
def test_of_many_models_in_a_folder_some_are_named(tmp_path: Path, count: int, more: str) -> None:
    for number in range(count):
        put(tmp_path / f"m{number:02}.gguf", tiny())
    with pytest.raises(UserError, match="several models") as caught:
        only_model(tmp_path)
    named = caught.value.what.partition("several models: ")[2]
    assert named.count(".gguf") == min(count, 12) and named.endswith(more or "`")
