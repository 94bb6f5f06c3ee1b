"""Models of Hugging Face that came from members: compared with the hub, moved, or noted."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, UserError
from meshd.library import resolve
from meshd.library.download import Repository
from meshd.library.hub_client import HubFile
from meshd.library.interface import NotHere, NotTheSame
from meshd.library.pulled_models import (
    add_name,
    adopt,
    find_noted,
    is_pulled,
    keep_pulled,
    names_of,
    note_names,
)
from meshd.library.resolve import Resolver
from meshd.library.stores import Stores
from meshd.model.model_name import DEMO_STEM, HubName, MeshName, parse_model_name
from meshd.model.short_names import SHORT_NAMES, stem_of
from meshd.model.weights_index import fingerprint
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.model_file import ModelFile

from tests.gguf_bytes import parse
from tests.hub_server import COMMIT, Hub
from tests.unit.store.header_files import hashes_of

from .models import pulled, put, tiny, tiny_shards

NAME = HubName("me", "Tiny-GGUF", "Q8_0")


def pulled_files(stores: Stores, files: dict[str, bytes]) -> list[Path]:
    """As a pull leaves them."""
    return [put(stores.meshd / "mesh-0123456789abcdef" / name, data) for name, data in files.items()]


def adopted(name: HubName, paths: list[Path], stores: Stores) -> list[Path]:
    return adopt(name, paths, stores.hub, stores.meshd.parent, lambda _: None)


def test_the_hubs_own_file_goes_to_its_cache(hub: Hub, stores: Stores) -> None:
    hub.repositories["me/Tiny-GGUF"] = {"sub/t-Q8_0.gguf": tiny(), "t-Q4_0.gguf": tiny(fill=2)}
    [path] = adopted(NAME, pulled_files(stores, {"t-Q8_0.gguf": tiny()}), stores)
    assert path.read_bytes() == tiny() and path.is_relative_to(stores.hub) and hub.sent == 0
    assert Resolver(stores, lambda _: None).get("hf:me/Tiny-GGUF:Q8_0").paths == (path,)
    assert not list(stores.meshd.glob("mesh-*"))


async def test_hashes_move_with_it(hub: Hub, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileState, "settled_at", lambda _state, _clock: True)
    hub.repositories["me/Tiny-GGUF"] = {"t-Q8_0.gguf": tiny()}
    paths = pulled_files(stores, {"t-Q8_0.gguf": tiny()})
    file = await ModelFile.open(paths[0], cache=HashCache(stores.meshd.parent / "weights"))
    await file.index()
    file.close()
    [path] = adopted(NAME, paths, stores)
    from meshd.store.model_file import close_all, open_shards

    shards = open_shards(path)
    known = HashCache(stores.meshd.parent / "weights").load(shards[0].state, shards[0].header)
    close_all(shards)
    assert known is not None


def test_all_parts(hub: Hub, stores: Stores) -> None:
    parts = tiny_shards(3, "t-Q8_0")
    hub.repositories["me/Tiny-GGUF"] = {f"Q8_0/{name}": data for name, data in parts.items()}
    paths = adopted(NAME, pulled_files(stores, parts), stores)
    assert {path.name: path.read_bytes() for path in paths} == parts


@pytest.mark.parametrize("name", ["t-Q8_0.gguf", "other-Q8_0.gguf"])
def test_another_file_is_removed(hub: Hub, stores: Stores, name: str) -> None:
    hub.repositories["me/Tiny-GGUF"] = {"t-Q8_0.gguf": tiny()}
    with pytest.raises(NotTheSame, match="is not the file that Hugging Face has"):
        adopted(NAME, pulled_files(stores, {name: tiny(fill=7)}), stores)
    assert not list(stores.meshd.rglob("*.gguf")) and not list(stores.hub.rglob("*.gguf"))


@pytest.mark.parametrize("same", [True, False])
def test_what_was_pulled_by_another_name_as_well_stays(hub: Hub, stores: Stores, *, same: bool) -> None:
    """Somebody may run on it: it is linked, or not adopted."""
    hub.repositories["me/Tiny-GGUF"] = {"t-Q8_0.gguf": tiny() if same else tiny(fill=7)}
    [pulled_path] = paths = pulled_files(stores, {"t-Q8_0.gguf": tiny()})
    add_name(MeshName("t-Q8_0"), paths)
    said: list[str] = []
    name, cache = "hf:me/Tiny-GGUF:Q8_0", stores.meshd.parent
    kept = keep_pulled(name, paths, stores.hub, cache, lambda _: None, said.append)
    assert pulled_path.read_bytes() == tiny()
    assert Resolver(stores, lambda _: None).get("mesh:t-Q8_0").paths == (pulled_path,)
    if same:
        assert kept is not None and kept.is_relative_to(stores.hub) and kept.samefile(pulled_path)
    else:
        assert kept is None and "removed" not in said[0]


@pytest.mark.parametrize(
    "path", ["../" * 5 + "victim/t-Q8_0.gguf", "{}/victim/t-Q8_0.gguf", "..\\t-Q8_0.gguf", "a//t-Q8_0.gguf"]
)
def test_a_mirror_writes_no_link_outside_of_the_cache(
    hub: Hub, stores: Stores, tmp_path: Path, path: str
) -> None:
    """It tells the right hash of what members gave, under a path that leads elsewhere."""
    path = path.format(tmp_path)
    hub.repositories["me/Tiny-GGUF"] = {path: tiny()}
    blob = hashlib.sha256(tiny()).hexdigest()
    lfs = {"sha256": blob, "size": len(tiny()), "pointerSize": 1}
    listed = [{"rfilename": path, "size": len(tiny()), "blobId": "0" * 40, "lfs": lfs}]
    hub.api_body = json.dumps({"id": "x", "sha": COMMIT, "siblings": listed}).encode()
    with pytest.raises(NotTheSame):
        adopted(NAME, pulled_files(stores, {"t-Q8_0.gguf": tiny()}), stores)
    assert not [one for one in tmp_path.rglob("*") if one.is_symlink() or one.name == "victim"]
    with pytest.raises(LocalProtocolError, match="outside the cache"):
        Repository(NAME, stores.hub).adopt(HubFile(path, 3, blob), put(tmp_path / "f", b"abc"), COMMIT)


def test_without_the_hub_it_stays_and_is_found_by_what_it_was_called(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    paths = pulled_files(stores, {"t-Q8_0.gguf": tiny()})
    with pytest.raises(UserError):
        adopted(NAME, paths, stores)
    assert find_noted(NAME, stores.meshd) is None
    add_name(HubName("me", "Tiny-GGUF", "Q8_0"), paths)
    for name in ("hf:me/Tiny-GGUF", "hf:me/tiny-gguf:q8_0"):
        assert Resolver(stores, lambda _: None).get(name).paths == tuple(paths)
    for other in (HubName("me", "Tiny-GGUF", "Q4_0"), HubName("you", "Tiny-GGUF", "Q8_0")):
        assert find_noted(other, stores.meshd) is None


@pytest.mark.parametrize("note", [b"", b"\xff", b"glm", b"hf:", b"hf:me/Tiny-GGUF:Q8_0\n\7"])
def test_notes_that_name_nothing(stores: Stores, note: bytes) -> None:
    [path] = pulled_files(stores, {"t-Q8_0.gguf": tiny()})
    (path.parent / ".pulled-as").write_bytes(note)
    assert find_noted(NAME, stores.meshd) is None


def test_a_model_of_members_is_found_by_name_and_fingerprint(stores: Stores) -> None:
    resolver = Resolver(stores, lambda _: None)
    with pytest.raises(UserError, match="not on this machine") as caught:
        resolver.get("mesh:t-Q8_0")
    assert "meshd model pull mesh:t-Q8_0" in caught.value.hint
    [path] = pulled_files(stores, {"t-Q8_0.gguf": tiny()})

    async def fingerprint() -> str:
        file = await ModelFile.open(path, cache=HashCache(stores.meshd.parent / "weights"))
        try:
            return (await file.index()).fingerprint
        finally:
            file.close()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FileState, "settled_at", lambda _state, _clock: True)
        digits = asyncio.run(fingerprint())
    for name in (f"mesh:{digits}", f"mesh:{digits[:32]}"):
        assert resolver.get(name).paths == (path,)
    for name in ("mesh:t-Q8_0", "t-Q8_0"):
        with pytest.raises(NotHere):
            resolver.get(name)
    add_name(MeshName("t-Q8_0"), [path])
    for name in ("mesh:t-Q8_0", "mesh:T-q8_0.gguf", "t-Q8_0"):
        assert resolver.get(name).paths == (path,)
    with pytest.raises(UserError):
        resolver.get("mesh:" + "0" * 64)


def test_only_what_was_pulled_is_compared_and_moved(stores: Stores) -> None:
    assert is_pulled(pulled_files(stores, {"t-Q8_0.gguf": tiny()}))
    assert not is_pulled([put(stores.meshd.parent / "elsewhere/t-Q8_0.gguf", tiny())])


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
