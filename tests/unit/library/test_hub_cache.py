"""Hugging Face's cache, read as it lies on the disk."""

from pathlib import Path

import pytest
from meshd.library import hub_cache
from meshd.model.model_name import HubName

from .models import cached, put, tiny, tiny_shards

NAME = HubName("me", "Tiny-GGUF")
OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def cache(home: Path) -> Path:
    return home / "hub"


def names(cache: Path, choice: str = "") -> list[str]:
    return [one.name for one in hub_cache.find(cache, HubName("me", "Tiny-GGUF", choice))]


def test_an_empty_cache(cache: Path) -> None:
    assert names(cache) == [] and list(hub_cache.all_models(cache)) == []


def test_a_model_is_found_by_its_quantisation(cache: Path) -> None:
    snapshot = cached(cache, "me/Tiny-GGUF", {"t-Q4_K_M.gguf": tiny(), "Q8_0/t-Q8_0.gguf": tiny(fill=2)})
    assert names(cache) == ["hf:me/Tiny-GGUF:Q4_K_M"]
    assert names(cache, "q8_0") == ["hf:me/Tiny-GGUF:Q8_0"]
    assert names(cache, "Q2_K") == []
    [model] = hub_cache.find(cache, HubName("me", "Tiny-GGUF", "Q8_0"))
    assert model.paths == (snapshot / "Q8_0/t-Q8_0.gguf",) and model.stem == "t-Q8_0"


def test_files_of_one_quantisation_are_told_apart_by_their_names(cache: Path) -> None:
    cached(cache, "me/Tiny-GGUF", {"a-Q8_0.gguf": tiny(), "b-Q8_0.gguf": tiny(fill=2)})
    assert names(cache, "Q8_0") == ["hf:me/Tiny-GGUF:a-Q8_0.gguf", "hf:me/Tiny-GGUF:b-Q8_0.gguf"]
    assert names(cache, "b-Q8_0.gguf") == ["hf:me/Tiny-GGUF:b-Q8_0.gguf"]


def test_the_present_branch_comes_first_and_an_earlier_one_will_do(cache: Path) -> None:
    cached(cache, "me/Tiny-GGUF", {"t-Q4_K_M.gguf": tiny(), "t-Q8_0.gguf": tiny(fill=3)}, commit=OLD)
    new = cached(cache, "me/Tiny-GGUF", {"t-Q4_K_M.gguf": tiny(fill=2)}, commit=NEW)
    assert hub_cache.find(cache, NAME)[0].paths[0].parent == new
    put(new.parents[1] / "refs/main", OLD.encode())  # set back: the newest folder is not its own
    assert hub_cache.find(cache, NAME)[0].paths[0].parent.name == OLD
    assert names(cache, "Q8_0") == ["hf:me/Tiny-GGUF:Q8_0"]
    assert len(list(hub_cache.all_models(cache))) == 2


def test_a_missing_shard_and_a_piece_are_not_complete(cache: Path) -> None:
    parts = tiny_shards(4)
    del parts["tiny-Q4_K_M-00003-of-00004.gguf"]
    snapshot = cached(cache, "me/Tiny-GGUF", parts)
    put(snapshot.parents[1] / "blobs" / f"{'c' * 64}.incomplete", b"123")
    assert names(cache) == []
    problems = [(one.problem, one.size) for one in hub_cache.all_models(cache) if not one.complete]
    assert ("missing: tiny-Q4_K_M-00003-of-00004.gguf", sum(map(len, parts.values()))) in problems
    assert ("the download is not complete", 3) in problems


def test_a_link_to_nothing_is_no_model(cache: Path) -> None:
    snapshot = cached(cache, "me/Tiny-GGUF", {"t-Q4_K_M.gguf": tiny()})
    (snapshot / "t-Q4_K_M.gguf").resolve().unlink()
    assert names(cache) == []


def test_what_is_no_repository_is_passed_over(cache: Path) -> None:
    put(cache / "models--x/snapshots" / OLD / "a.gguf", b"x")
    put(cache / "models--..--..--etc/snapshots" / OLD / "a.gguf", b"x")
    put(cache / "datasets--me--x/snapshots" / OLD / "a.gguf", b"x")
    put(cache / "models--me--x/snapshots/main/a.gguf", b"x")
    put(cache / "models--me--y", b"a file")
    assert list(hub_cache.all_models(cache)) == []


def test_refs_that_are_damaged(cache: Path) -> None:
    cached(cache, "me/Tiny-GGUF", {"t-Q4_K_M.gguf": tiny()})
    (cache / "models--me--Tiny-GGUF/refs/main").write_bytes(b"\xff\xfe")
    assert names(cache) == ["hf:me/Tiny-GGUF:Q4_K_M"]
