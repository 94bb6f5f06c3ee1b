"""Facts about the files of a model, and what a check of all their bytes finds."""

import os
import time
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.library.facts import Meter, Verified, facts_of, hash_of, promised_by, verify
from meshd.library.interface import ModelSource, StoredModel, TransferProgress
from meshd.library.resolve import Resolver
from meshd.library.stores import Stores

from tests.hub_server import git_hash

from .models import cached, in_ollama, put, tiny, tiny_shards


@pytest.fixture
def hashes(home: Path) -> Path:
    return home / "cache/weights"


def check(stores: Stores, hashes: Path, name: str) -> Verified:
    return verify(Resolver(stores, lambda _: None).local(name), hashes, lambda _: None)


def damage(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_whole_model_gets_a_fingerprint(stores: Stores, hashes: Path) -> None:
    cached(stores.hub, "me/T", {"t-Q8_0.gguf": tiny()})
    in_ollama(stores.ollama[0], "registry.ollama.ai/library/t/latest", tiny())
    ours = check(stores, hashes, "hf:me/T:Q8_0")
    theirs = check(stores, hashes, "ollama:t")
    assert (ours.compared, theirs.compared) == (1, 1)
    assert ours.fingerprint == theirs.fingerprint and len(ours.fingerprint) == 64


def test_shards(stores: Stores, hashes: Path) -> None:
    cached(stores.hub, "me/T", tiny_shards(4))
    done = check(stores, hashes, "hf:me/T")
    assert (done.files, done.compared) == (4, 4)


@pytest.mark.parametrize("name", ["hf:me/T:Q8_0", "ollama:t"])
def test_a_changed_byte_is_found(stores: Stores, hashes: Path, name: str) -> None:
    snapshot = cached(stores.hub, "me/T", {"t-Q8_0.gguf": tiny()})
    blob = in_ollama(stores.ollama[0], "registry.ollama.ai/library/t/latest", tiny())
    damage((snapshot / "t-Q8_0.gguf").resolve())
    damage(blob)
    with pytest.raises(UserError, match="is damaged or incomplete: the hash of") as caught:
        check(stores, hashes, name)
    assert ("ollama pull t" if name.startswith("ollama") else "meshd model rm") in caught.value.hint


def test_a_truncated_file(stores: Stores, hashes: Path, home: Path) -> None:
    path = put(home / ".models/t.gguf", tiny()[:-100])
    with pytest.raises(UserError, match="short by 100 bytes"):
        check(stores, hashes, "t")
    assert facts_of(StoredModel("t", ModelSource.FOLDER, (path,), 1), hashes).problem == "short by 100 bytes"


def test_a_missing_shard(stores: Stores, hashes: Path, home: Path) -> None:
    for name, data in tiny_shards(4).items():
        put(home / ".models" / name, data)
    (home / ".models/tiny-Q4_K_M-00004-of-00004.gguf").unlink()
    with pytest.raises(UserError, match="1 of 4 files missing"):
        check(stores, hashes, "tiny-Q4_K_M")


def test_bytes_that_rot_where_no_store_promises_a_hash(
    stores: Stores, hashes: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same size, same times, other bytes: what a failing disk does. The times are made to look the same."""
    path = put(home / ".models/t.gguf", tiny())
    monkeypatch.setattr("meshd.store.hash_cache.FileState.settled_at", lambda self, clock: True)
    same = path.stat()

    def unchanged(result: os.stat_result) -> os.stat_result:
        return same if result.st_ino == same.st_ino else result

    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda descriptor: unchanged(real(descriptor)))
    assert check(stores, hashes, "t").compared == 0
    damage(path)
    with pytest.raises(UserError, match="other bytes than before"):
        check(stores, hashes, "t")


def test_progress_is_told(stores: Stores, hashes: Path) -> None:
    cached(stores.hub, "me/T", {"t-Q8_0.gguf": tiny()})
    told: list[TransferProgress] = []
    verify(Resolver(stores, lambda _: None).local("hf:me/T"), hashes, told.append)
    assert {one.activity.split()[0] for one in told} == {"checking", "hashing"}
    assert all(one.done <= one.total for one in told)


def test_a_model_that_is_not_there_any_more(stores: Stores, hashes: Path) -> None:
    blob = in_ollama(stores.ollama[0], "registry.ollama.ai/library/t/latest", tiny())
    blob.unlink()
    with pytest.raises(UserError, match="the download is not complete"):
        check(stores, hashes, "ollama:t")


def test_facts(stores: Stores, hashes: Path) -> None:
    cached(stores.hub, "me/T", {"t.gguf": tiny(), "u.gguf": tiny("glm4moelite")})
    first, second = stores.listed()
    facts = facts_of(first, hashes)
    assert (facts.architecture, facts.supported, facts.quant) == ("llama", True, "Q4_K_M")
    assert (facts.layers, facts.context, facts.shards, facts.has_chat_template) == (4, 4096, 1, True)
    assert facts.parameters == 32 * 64 + 4 * (32 + 32 * 32) + 32
    assert facts.fingerprint is None
    other = facts_of(second, hashes)
    assert (other.architecture, other.supported) == ("glm4moelite", False)


def test_facts_of_what_is_no_model(hashes: Path, home: Path) -> None:
    path = put(home / "x.gguf", b"GGUFgarbage")
    facts = facts_of(StoredModel("x", ModelSource.PATH, (path,), 11), hashes)
    assert facts.problem and not facts.supported
    assert facts_of(StoredModel("x", ModelSource.PATH, (home / "gone.gguf",), 0), hashes).problem


def test_hashes_in_names(tmp_path: Path) -> None:
    data = b"some bytes"
    git = git_hash(data)
    path = put(tmp_path / "blobs" / git, data)
    shared = tmp_path / "linked"
    shared.symlink_to(path)
    assert promised_by(shared) == promised_by(path) == git
    counted: list[int] = []
    assert hash_of(path, git, counted.append) == git and sum(counted) == len(data)
    assert promised_by(put(tmp_path / "model.gguf", data)) == ""
    # a blob that leads into a store shared by several caches keeps its own name's promise
    blob = tmp_path / "blobs" / ("a" * 64)
    blob.symlink_to(put(tmp_path / "shared" / ("b" * 64), data))
    pointer = tmp_path / "t.gguf"
    pointer.symlink_to(blob)
    assert promised_by(pointer) == "a" * 64


def test_progress_is_told_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told: list[TransferProgress] = []
    meter = Meter(told.append, "copying", 1000, begin_at=100)
    for seconds, count in ((100.4, 50), (100.5, 50), (100.9, 100), (101.0, -50), (102.0, 850)):
        now = seconds
        meter.add(count)
    assert meter.done == 1100
    assert [(one.done, one.rate) for one in told] == [
        (100, 0.0),
        (200, pytest.approx(100 / 0.5)),
        (250, pytest.approx(150 / 1.0)),
        (1100, pytest.approx(1000 / 2.0)),
    ]
    assert {(one.activity, one.total) for one in told} == {("copying", 1000)}
    meter.add(-100)
    assert told[-1].done == 1000, "all is there"
    again = Meter(told.append, "copying", 1000, begin_at=500)
    now = 103.0
    again.add(-100)
    assert told[-1].rate == 0.0, "never less than nothing"


def test_the_facts_of_a_model_are_those_of_its_headers(
    hashes: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.store.hash_cache.FileState.settled_at", lambda self, clock: True)
    path = put(home / ".models/t.gguf", tiny())
    model = StoredModel("t", ModelSource.FOLDER, (path,), len(tiny()), quant="Q8_0")
    facts = facts_of(model, hashes)
    assert (facts.architecture, facts.supported, facts.title) == ("llama", True, "tiny")
    assert (facts.layers, facts.context, facts.tensors, facts.shards) == (4, 4096, 10, 1)
    assert facts.parameters == 32 * 64 + 4 * (32 + 32 * 32) + 32
    assert facts.quant == "Q4_K_M" and facts.has_chat_template
    assert (facts.fingerprint, facts.problem) == (None, "")
    verified = verify(model, hashes, lambda _: None)
    assert facts_of(model, hashes).fingerprint == verified.fingerprint
    other = put(home / ".models/o.gguf", tiny("of a later version"))
    assert not facts_of(StoredModel("o", ModelSource.FOLDER, (other,), 1), hashes).supported


def test_the_facts_of_a_model_in_several_files_are_of_all_of_them(hashes: Path, home: Path) -> None:
    paths = tuple(put(home / ".models" / name, data) for name, data in tiny_shards(4).items())
    facts = facts_of(StoredModel("t", ModelSource.FOLDER, paths, 1, quant="Q8_0"), hashes)
    assert (facts.shards, facts.tensors, facts.parameters) == (4, 10, 32 * 64 + 4 * (32 + 32 * 32) + 32)
    assert facts.quant == "Q8_0" and not facts.has_chat_template, "its header does not say"
