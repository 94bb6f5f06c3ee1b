"""What came from members is found by the names of its pulls, whatever a member calls its file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.library import resolve
from meshd.library.interface import NotHere
from meshd.library.pulled_models import add_name, names_of, note_names
from meshd.library.resolve import Resolver
from meshd.library.stores import Stores
from meshd.model.model_name import DEMO_STEM, MeshName, parse_model_name
from meshd.model.short_names import SHORT_NAMES, stem_of
from meshd.model.weights_index import fingerprint
from meshd.store.hash_cache import FileState, HashCache

from tests.gguf_bytes import parse
from tests.unit.store.header_files import hashes_of

from .models import pulled, put, tiny

DIGITS = fingerprint([parse(tiny())], [hashes_of(tiny())])
STEMS = [*(stem_of(name) for name in SHORT_NAMES.values()), DEMO_STEM, "glm", "qwen3", "smollm2", "any-Q8_0"]


@pytest.fixture
def resolver(stores: Stores) -> Resolver:
    return Resolver(stores, lambda _: None)


def from_members(stores: Stores, stem: str, *names: str) -> Path:
    """Its hashes are known, as after each pull."""
    path = pulled(stores.meshd / f"mesh-0123456789abcdef/{stem}.gguf", tiny(), *names)
    HashCache(stores.meshd.parent / "weights").save(FileState.at(path), parse(tiny()), hashes_of(tiny()))
    return path


@pytest.mark.parametrize("stem", STEMS)
def test_a_members_name_for_its_file_means_nothing(resolver: Resolver, stores: Stores, stem: str) -> None:
    path = from_members(stores, stem, f"mesh:{DIGITS}")
    assert resolver.local(f"mesh:{DIGITS}").paths == (path,)
    texts = [*SHORT_NAMES, "smollm2", stem, f"mesh:{stem}", f"ollama:{stem}", "hf:unsloth/GLM-4.7-Flash-GGUF"]
    for text in (*texts, *(str(name) for name in SHORT_NAMES.values())):
        with pytest.raises(NotHere):
            resolver.local(text)
    assert [one.name for one in stores.listed()] == [str(path)]


@pytest.mark.parametrize("short", sorted(SHORT_NAMES))
def test_a_short_name_is_not_that_of_a_file_that_was_pulled(
    resolver: Resolver, stores: Stores, short: str
) -> None:
    """A name of members was compared with nothing; a short name promises Hugging Face's file."""
    stem = stem_of(SHORT_NAMES[short])
    path = from_members(stores, stem, f"mesh:{stem}", f"mesh:{short}")
    for text in (stem, f"mesh:{stem}", f"mesh:{short}"):
        assert resolver.local(text).paths == (path,)
    with pytest.raises(NotHere):
        resolver.local(short)
    mine = put(stores.folder / f"{stem}.gguf", tiny(fill=2))
    assert resolver.local(short).paths == (mine,)


@pytest.mark.parametrize("text", ["ollama:far:7b", "ollama:hf.co/me/far:q4", "far:7b", "Far-Q8_0", "smollm2"])
def test_it_is_found_by_the_name_of_its_pull(resolver: Resolver, stores: Stores, text: str) -> None:
    path = from_members(stores, "something-else-Q8_0", text)
    assert resolver.local(text).paths == (path,)
    assert [one for one in stores.listed() if resolver.local(one.name).paths == (path,)]


def test_the_demos_model_of_members_is_found_by_its_fingerprint(
    resolver: Resolver, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = from_members(stores, DEMO_STEM, f"mesh:{DIGITS}")
    monkeypatch.setattr(resolve, "DEMO_FINGERPRINT", DIGITS)
    assert resolver.local("smollm2").paths == (path,)


def test_a_folder_of_the_user_that_is_called_so_is_no_pull(resolver: Resolver, stores: Stores) -> None:
    path = put(stores.folder / "mesh-up/mine-Q8_0.gguf", tiny())
    assert resolver.local("mine-Q8_0").paths == (path,)
    assert [one.name for one in stores.listed()] == ["mine-Q8_0"]


def test_a_list_has_the_name_of_the_pull_where_it_means_one(resolver: Resolver, stores: Stores) -> None:
    path = from_members(stores, "a-Q8_0", "mesh:Nice-Q8_0.gguf")
    assert [one.name for one in stores.listed()] == ["Nice-Q8_0"]
    other = put(stores.folder / "nice-q8_0.gguf", tiny(fill=2))
    assert [one.name for one in stores.listed()] == [str(other), str(path)]


def test_names_are_added_and_the_newest_are_kept(tmp_path: Path) -> None:
    path = pulled(tmp_path / "mesh-0/a.gguf", tiny(), "mesh:one")
    for number in range(20):
        add_name(MeshName(f"n{number}"), [path])
        add_name(MeshName("again"), [path])
    names = list(map(str, names_of([path])))
    assert len(names) == 8 and {"mesh:n19", "mesh:again"} <= set(names)
    note_names(path, [MeshName("x")])  # it is no folder: no error


@given(st.binary(max_size=200))
def test_any_note_is_names_or_none(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("noted")
    (folder / ".pulled-as").write_bytes(data)
    for name in names_of([folder / "a.gguf"]):
        assert parse_model_name(str(name)) == name
