"""Test what may be removed, and what goes with it."""

from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.library import hub_cache
from meshd.library.remove import Removal, plan_removal, remove
from meshd.library.resolve import Resolver
from meshd.library.stores import Stores
from meshd.model.model_name import DEMO_STEM, HubName

from tests.conformance.run import run
from tests.unit.store.header_files import opens, with_holes

from .models import cached, in_ollama, pulled, put, tiny, tiny_shards


def plan(stores: Stores, name: str | Path) -> Removal:
    return plan_removal(name, Resolver(stores, lambda _: None), stores)


def test_one_quantisation_goes_and_the_others_stay(stores: Stores) -> None:
    files = {"t-Q8_0.gguf": tiny(), "t-Q4_0.gguf": tiny(fill=2), "README.md": b"x"}
    cached(stores.hub, "me/T", files, commit="a" * 40)
    snapshot = cached(stores.hub, "me/T", files)
    blob = (snapshot / "t-Q8_0.gguf").resolve()
    planned = plan(stores, "hf:me/T:Q8_0")
    assert planned.size == len(tiny()) and planned.names == ("hf:me/T:Q8_0",)
    remove(planned)
    assert not blob.exists()
    left = sorted(path.name for path in (stores.hub / "models--me--T").rglob("*") if path.is_symlink())
    assert left == ["README.md", "README.md", "t-Q4_0.gguf", "t-Q4_0.gguf"]
    assert [one.name for one in stores.listed()] == ["hf:me/T:Q4_0"]


def test_the_last_one_takes_the_folder_with_it(stores: Stores) -> None:
    cached(stores.hub, "me/T", tiny_shards(4))
    planned = plan(stores, "hf:me/T:Q4_K_M")
    assert planned.size == sum(map(len, tiny_shards(4).values()))
    remove(planned)
    assert not (stores.hub / "models--me--T").exists()


@pytest.mark.parametrize("kind", ["mesh", "noted", "header", "headers"])
def test_the_folder_of_a_model_of_members_goes_with_it(stores: Stores, kind: str) -> None:
    if kind == "header":
        with_holes(stores.meshd / "header-0", tiny())
    elif kind == "headers":
        shards = tiny_shards(2).values()
        run(opens(with_holes(stores.meshd / "header-0", *shards)))  # which makes links
    else:
        names = ["mesh:tiny-Q4_0", "hf:me/T"] if kind == "noted" else ["tiny-Q4_0"]
        pulled(stores.meshd / "mesh-0/tiny-Q4_0.gguf", tiny(), *names)
    beside = put(stores.meshd / "other-Q4_0.gguf", tiny())
    remove(plan(stores, "mesh:tiny-Q4_0"))
    assert list(stores.meshd.iterdir()) == [beside]


def test_what_others_put_there_stays(stores: Stores) -> None:
    path = pulled(stores.meshd / "mesh-0/tiny-Q4_0.gguf", tiny(), "mesh:tiny-Q4_0")
    mine = put(path.parent / "notes.txt", b"mine")
    remove(plan(stores, "mesh:tiny-Q4_0"))
    assert mine.exists() and not path.exists()


def test_a_repository_goes_with_its_pieces(stores: Stores) -> None:
    snapshot = cached(stores.hub, "me/T", {"t-Q8_0.gguf": tiny()})
    put(snapshot.parents[1] / "blobs" / f"{'c' * 64}.incomplete", b"123")
    other = cached(stores.hub, "me/Other", {"t-Q8_0.gguf": tiny()})
    planned = plan(stores, "hf:me/T")
    assert planned.size == len(tiny()) + 3
    remove(planned)
    assert hub_cache.of_repository(stores.hub, HubName("me", "T")) == []
    assert (other / "t-Q8_0.gguf").exists()


def test_a_file_outside_that_a_link_names_stays(stores: Stores, home: Path) -> None:
    outside = put(home / "precious.gguf", tiny())
    snapshot = cached(stores.hub, "me/T", {})
    snapshot.mkdir(parents=True)
    (snapshot / "t-Q8_0.gguf").symlink_to(outside)
    remove(plan(stores, "hf:me/T:Q8_0"))
    assert outside.read_bytes() == tiny()


def test_the_model_of_the_demo(stores: Stores) -> None:
    path = put(stores.meshd / f"{DEMO_STEM}.gguf", tiny())
    remove(plan(stores, "smollm2"))
    assert not path.exists()


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("ollama:t", "belongs to Ollama", "run `ollama rm t`"),
        ("studio", "belongs to LM Studio", "remove it there"),
        ("own", "was not downloaded by meshd", "`rm "),
        ("hf:me/T", "is not on this machine", "meshd model ls"),
        ("hf:me/T:Q8_0", "is not on this machine", "meshd model pull"),
    ],
)
def test_what_is_refused(stores: Stores, home: Path, name: str, words: str, hint: str) -> None:
    blob = in_ollama(stores.ollama[0], "registry.ollama.ai/library/t/latest", tiny())
    studio = put(home / ".lmstudio/models/me/x/studio.gguf", tiny())
    own = put(home / ".models/own.gguf", tiny())
    with pytest.raises(UserError, match=words) as caught:
        plan(stores, name)
    assert hint in caught.value.hint
    assert blob.exists() and studio.exists() and own.exists()


def test_a_path_of_the_users_is_refused(stores: Stores, tmp_path: Path) -> None:
    path = put(tmp_path / "m.gguf", tiny())
    with pytest.raises(UserError, match="was not downloaded by meshd"):
        plan(stores, path)
