"""From what a user gives to a file."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.library import resolve
from meshd.library.interface import ModelSource, NotHere
from meshd.library.resolve import Resolver
from meshd.library.stores import Stores
from meshd.model.model_name import DEMO_STEM
from meshd.model.short_names import SHORT_NAMES, stem_of
from meshd.model.weights_index import fingerprint
from meshd.store.hash_cache import FileState, HashCache

from tests.gguf_bytes import parse
from tests.hub_server import Hub
from tests.unit.store.header_files import hashes_of, with_holes

from .models import cached, in_ollama, pulled, put, tiny, tiny_shards


@pytest.fixture
def resolver(stores: Stores) -> Resolver:
    return Resolver(stores, lambda _: None)


def test_a_path_is_itself(resolver: Resolver, tmp_path: Path) -> None:
    path = put(tmp_path / "m.gguf", tiny())
    assert resolver.get(path).paths == (path,)
    assert resolver.get(str(path)).paths == (path,)


def test_a_folder_is_its_only_model(resolver: Resolver, tmp_path: Path) -> None:
    path = put(tmp_path / "x/m.gguf", tiny())
    assert resolver.get(tmp_path / "x").paths == (path,)


def test_a_path_that_looks_like_a_repository(resolver: Resolver) -> None:
    with pytest.raises(UserError, match="there is no model file") as caught:
        resolver.get(Path("unsloth/Qwen3-4B-GGUF"))
    assert "`hf:unsloth/Qwen3-4B-GGUF`" in caught.value.hint


def test_a_folder_without_a_slash(
    resolver: Resolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "x/m.gguf", tiny())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="`x` is a directory") as caught:
        resolver.get("x")
    assert caught.value.hint == "give its path: `./x/`"


def test_a_fingerprint_is_found_in_any_store(
    resolver: Resolver, home: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test the hashes that are known; a name with `mesh:` means only what came from members."""
    path = put(home / ".models/mine-Q8_0.gguf", tiny())
    hashes = hashes_of(tiny())
    HashCache(stores.meshd.parent / "weights").save(FileState.at(path), parse(tiny()), hashes)
    digits = fingerprint([parse(tiny())], [hashes])
    for text in (f"mesh:{digits}", f"mesh:{digits[:32]}"):
        assert resolver.get(text).paths == (path,)
    with pytest.raises(NotHere):
        resolver.local("mesh:mine-Q8_0")
    with pytest.raises(NotHere):
        resolver.local("smollm2")
    monkeypatch.setattr(resolve, "DEMO_FINGERPRINT", digits)
    assert resolver.local("smollm2").paths == (path,)


@pytest.mark.parametrize("text", ["/nonexistent/m.gguf", "./m.gguf", "x/" + "y" * 300])
def test_a_path_that_leads_nowhere(resolver: Resolver, text: str) -> None:
    with pytest.raises(UserError, match="no model file") as caught:
        resolver.local(text)
    assert caught.value.hint


def test_the_caches_model_needs_no_hub(resolver: Resolver, stores: Stores) -> None:
    snapshot = cached(stores.hub, "me/Tiny-GGUF", {"t-Q4_K_M.gguf": tiny()})
    assert resolver.get("hf:me/Tiny-GGUF").paths == (snapshot / "t-Q4_K_M.gguf",)


def test_what_the_cache_lacks_is_downloaded(resolver: Resolver, stores: Stores, hub: Hub) -> None:
    hub.repositories["me/Tiny-GGUF"] = {"t-Q4_K_M.gguf": tiny(), "t-Q8_0.gguf": tiny(fill=2)}
    with pytest.raises(UserError, match="not on this machine") as caught:
        resolver.local("hf:me/Tiny-GGUF:Q8_0")
    assert caught.value.hint == "run `meshd model pull hf:me/Tiny-GGUF:Q8_0`"
    found = resolver.get("hf:me/Tiny-GGUF:Q8_0")
    assert found.name == "hf:me/Tiny-GGUF:Q8_0" and found.paths[0].read_bytes() == tiny(fill=2)
    asked = len(hub.asked)
    assert resolver.get("hf:me/Tiny-GGUF:Q8_0") == found
    assert len(hub.asked) == asked


def test_an_ambiguous_quantisation_of_the_cache(resolver: Resolver, stores: Stores) -> None:
    cached(stores.hub, "me/Tiny-GGUF", {"a-Q8_0.gguf": tiny(), "b-Q8_0.gguf": tiny(fill=2)})
    with pytest.raises(UserError, match=r"fits several models: `hf:me/Tiny-GGUF:a-Q8_0.gguf`"):
        resolver.get("hf:me/Tiny-GGUF:Q8_0")


def test_ollamas_models(resolver: Resolver, stores: Stores) -> None:
    blob = in_ollama(stores.ollama[0], "registry.ollama.ai/library/smollm2/135m", tiny())
    for text in ("ollama:smollm2:135m", "smollm2:135m"):
        assert resolver.get(text).paths == (blob,)
    with pytest.raises(
        UserError, match=r"no model `smollm2` on this machine; near: .*`ollama:smollm2:135m`"
    ) as caught:
        resolver.get("ollama:smollm2")
    assert "`ollama pull smollm2`" in caught.value.hint


def test_an_incomplete_model_of_ollama(resolver: Resolver, stores: Stores) -> None:
    in_ollama(stores.ollama[0], "registry.ollama.ai/library/a/latest", tiny(), size=len(tiny()) + 9)
    assert not resolver.local("ollama:a").complete
    assert resolver.get("ollama:a", partial=True).paths
    with pytest.raises(UserError, match="cannot be used: short by 9 bytes") as caught:
        resolver.get("ollama:a")
    assert caught.value.hint == "run `ollama pull a`"


@pytest.mark.parametrize("text", ["Repo-Q4_K_M", "repo-q4_k_m.gguf", "REPO-Q4_K_M.GGUF"])
@pytest.mark.parametrize("place", [".lmstudio/models/me/repo", ".cache/lm-studio/models/me/repo", ".models"])
def test_a_files_name_in_any_store(resolver: Resolver, home: Path, place: str, text: str) -> None:
    path = put(home / place / "Repo-Q4_K_M.gguf", tiny())
    assert resolver.get(text).paths == (path,)


def test_a_sharded_file_by_its_name(resolver: Resolver, home: Path) -> None:
    for name, data in tiny_shards(4).items():
        put(home / ".models" / name, data)
    assert len(resolver.get("tiny-Q4_K_M").paths) == 4
    (home / ".models/tiny-Q4_K_M-00002-of-00004.gguf").unlink()
    with pytest.raises(UserError, match=r"cannot be used: missing: tiny-Q4_K_M-00002-of-00004.gguf"):
        resolver.get("tiny-Q4_K_M")


def test_a_name_of_two_stores_is_ambiguous(resolver: Resolver, home: Path, stores: Stores) -> None:
    cached(stores.hub, "me/Tiny-GGUF", {"t-Q8_0.gguf": tiny()})
    path = put(home / ".models/t-Q8_0.gguf", tiny())
    with pytest.raises(UserError) as caught:
        resolver.get("t-Q8_0")
    assert "`hf:me/Tiny-GGUF:Q8_0`" in caught.value.what and f"`{path}`" in caught.value.what
    for exact in ("hf:me/Tiny-GGUF:Q8_0", str(path)):
        assert resolver.get(exact).complete


def test_nothing_found_names_what_is_near(resolver: Resolver, home: Path) -> None:
    put(home / ".models/GLM-4.7-Flash-Q4_K_M.gguf", tiny())
    with pytest.raises(
        UserError, match=r"there is no model `glm-4.7-flash-q4_k_s`.*near: `GLM-4.7-Flash-Q4_K_M`"
    ):
        resolver.get("glm-4.7-flash-q4_k_s")
    with pytest.raises(UserError, match="near: `qwen3-4b`, `qwen3`, `qwen3-8b`") as caught:
        resolver.get("qwen3-4")
    assert "hf:ORG/REPO" in caught.value.hint and "meshd model ls" in caught.value.hint


@pytest.mark.parametrize("short", sorted(SHORT_NAMES))
def test_short_names_are_found_in_any_store(
    resolver: Resolver, home: Path, stores: Stores, short: str
) -> None:
    name = SHORT_NAMES[short]
    path = put(home / f".lmstudio/models/other/x/{stem_of(name)}.gguf", tiny())
    assert resolver.get(short).paths == (path,)
    snapshot = cached(stores.hub, name.repository, {f"{stem_of(name)}.gguf": tiny()})
    assert resolver.get(short.upper()).paths == (snapshot / f"{stem_of(name)}.gguf",)


def test_short_names_are_downloaded(resolver: Resolver, hub: Hub) -> None:
    hub.repositories["unsloth/GLM-4.7-Flash-GGUF"] = {
        "GLM-4.7-Flash-Q8_0.gguf": tiny(fill=2),
        "GLM-4.7-Flash-Q4_K_M.gguf": tiny(),
        "GLM-4.7-Flash-UD-Q4_K_XL.gguf": tiny(fill=3),
    }
    found = resolver.get("glm")
    assert found.name == "hf:unsloth/GLM-4.7-Flash-GGUF:Q4_K_M" and found.paths[0].read_bytes() == tiny()


def test_a_header_is_found_and_is_no_model(resolver: Resolver, stores: Stores) -> None:
    path = with_holes(stores.meshd / "header-0", tiny())
    for name in ("mesh:tiny-Q4_0", "mesh:TINY-q4_0.gguf", "tiny-Q4_0"):
        assert resolver.local(name).paths == (path,)
        for partial in (False, True):
            with pytest.raises(UserError, match="cannot be used: only its header is here") as caught:
                resolver.get(name, partial=partial)
            assert "`meshd model pull mesh:tiny-Q4_0`" in caught.value.hint
    whole = pulled(stores.meshd / "mesh-0/tiny-Q4_0.gguf", tiny(), "mesh:tiny-Q4_0")
    assert resolver.get("mesh:tiny-Q4_0").paths == resolver.get("tiny-Q4_0").paths == (whole,)


def test_the_model_of_the_demo(resolver: Resolver, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="not on this machine"):
        resolver.local("smollm2")

    async def fetched(cache: Path, progress: object) -> Path:
        await asyncio.sleep(0)
        return put(cache / "models" / f"{DEMO_STEM}.gguf", tiny())

    monkeypatch.setattr(resolve, "demo_model", fetched)
    found = resolver.get("SmolLM2")
    assert found.source is ModelSource.MESHD and found.paths[0].parent == stores.meshd
    monkeypatch.delattr(resolve, "demo_model")
    assert resolver.get("smollm2").paths == found.paths


@pytest.mark.parametrize("text", ["hf:x", "ollama:", "a\nb", "", "hf:a/b:../c"])
def test_what_is_no_name_is_explained(resolver: Resolver, text: str) -> None:
    with pytest.raises(UserError, match="is not a model's name: expected") as caught:
        resolver.get(text)
    assert "hf:ORG/REPO:QUANT" in caught.value.hint


def test_names_in_a_list_are_as_short_as_they_can_be(home: Path, stores: Stores) -> None:
    put(home / ".models/one.gguf", tiny())
    two = put(home / ".models/two.gguf", tiny())
    other = put(home / ".lmstudio/models/me/x/two.gguf", tiny())
    names = [model.name for model in stores.listed()]
    assert names == [str(other), "one", str(two)]
    resolver = Resolver(stores, lambda _: None)
    assert [resolver.local(name).paths[0] for name in names] == [other, home / ".models/one.gguf", two]


def test_a_store_that_cannot_be_read_is_told(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    (stores.ollama[0] / "manifests").mkdir(parents=True)

    def denied(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", denied)
    told: list[Path] = []
    assert stores.listed(told.append) == []
    assert told == stores.ollama


@given(text=st.text(alphabet="hfolama:/.-_~ 4Q", min_size=1, max_size=24))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_model_or_explained(resolver: Resolver, text: str) -> None:
    try:
        found = resolver.local(text)
    except UserError as error:
        assert error.hint and "\n" not in error.what
    else:
        assert found.source is ModelSource.PATH
