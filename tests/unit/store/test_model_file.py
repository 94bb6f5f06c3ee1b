"""Opening and hashing model files: content, shards, changes, refusals."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from blake3 import blake3
from meshd.base.errors import UserError
from meshd.model.weights_index import WeightsIndex
from meshd.store import hashes
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.interface import HashProgress, WeightsFile
from meshd.store.model_file import ModelFile

from tests.gguf_bytes import gguf, language_model, parse


def _write(path: Path, *, fill: int = 1, layers: int = 4, name: str = "tiny") -> bytes:
    metadata, tensors = language_model(fill=fill, layers=layers, extra={"general.name": name})
    data = gguf(metadata, tensors)
    path.write_bytes(data)
    return data


def _write_shards(folder: Path, count: int = 3) -> list[Path]:
    metadata, tensors = language_model()
    paths: list[Path] = []
    for number in range(count):
        own = tensors[number::count]
        keys = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors)}
        path = folder / f"tiny-{number + 1:05d}-of-{count:05d}.gguf"
        path.write_bytes(gguf({**(metadata if number == 0 else {}), **keys}, own))
        paths.append(path)
    return paths


def _age(path: Path) -> None:
    """Wait until the clock of the file system has left the tick in which the file was written."""
    probe = path.with_name("probe")
    last = path.stat().st_ctime_ns
    while True:
        probe.write_bytes(b"x")
        if FileState.at(path).settled_at(probe.stat().st_ctime_ns):
            probe.unlink()
            return
        probe.unlink()
        assert path.stat().st_ctime_ns == last


async def _index(path: Path, cache: HashCache, told: list[HashProgress] | None = None) -> WeightsIndex:
    file = await ModelFile.open(path, cache=cache)
    try:
        return await file.index(told.append if told is not None else None)
    finally:
        file.close()


def _open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


@pytest.fixture
def cache(tmp_path: Path) -> HashCache:
    return HashCache(tmp_path / "cache" / "weights")


async def test_hashes_are_blake3_of_each_tensor(tmp_path: Path, cache: HashCache) -> None:
    path = tmp_path / "model.gguf"
    data = _write(path)
    told: list[HashProgress] = []
    index = await _index(path, cache, told)
    header = parse(data)
    assert [tensor.name for tensor in index.tensors] == [tensor.name for tensor in header.tensors]
    for tensor, known in zip(index.tensors, header.tensors, strict=True):
        assert tensor.digest == blake3(data[known.offset : known.offset + known.size]).digest()
        assert (tensor.offset, tensor.size, tensor.kind) == (known.offset, known.size, known.kind.number)
    state = path.stat()
    assert index.files[0].size == state.st_size
    assert index.files[0].inode == state.st_ino
    assert (index.files[0].mtime_ns, index.files[0].ctime_ns) == (state.st_mtime_ns, state.st_ctime_ns)
    assert told[0].done == 0
    assert told[-1].total == sum(tensor.size for tensor in header.tensors)
    assert "reading `model.gguf` once to hash its weights: 100 %" in told[-1].text


async def test_one_flipped_byte_changes_one_hash(tmp_path: Path, cache: HashCache) -> None:
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    data = bytearray(_write(one))
    changed = parse(bytes(data)).tensors[3]
    data[changed.offset + changed.size - 1] ^= 1
    other.write_bytes(bytes(data))
    first, second = await _index(one, cache), await _index(other, cache)
    differing = [a.name for a, b in zip(first.tensors, second.tensors, strict=True) if a.digest != b.digest]
    assert differing == [changed.name]
    assert first.fingerprint != second.fingerprint


async def test_the_fingerprint_is_that_of_the_content(tmp_path: Path, cache: HashCache) -> None:
    (tmp_path / "deep").mkdir()
    one, other = tmp_path / "one.gguf", tmp_path / "deep" / "other name.gguf"
    _write(one)
    _write(other, name="another description")
    assert (await _index(one, cache)).fingerprint == (await _index(other, cache)).fingerprint
    shards = _write_shards(tmp_path)
    assert (await _index(shards[1], cache)).fingerprint == (await _index(one, cache)).fingerprint
    _write(other, fill=2)
    assert (await _index(one, cache)).fingerprint != (await _index(other, cache)).fingerprint


async def test_a_warm_cache_reads_no_weights(
    tmp_path: Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    _write(path)
    _age(path)
    first = await _index(path, cache)

    def no_reading(self: hashes.Sweep, budget: int) -> int:
        raise AssertionError("the weights were read again")

    monkeypatch.setattr(hashes.Sweep, "step", no_reading)
    told: list[HashProgress] = []
    assert await _index(path, cache, told) == first
    assert told == []


async def test_a_changed_file_is_hashed_again(tmp_path: Path, cache: HashCache) -> None:
    path = tmp_path / "model.gguf"
    _write(path)

    file = await ModelFile.open(path, cache=cache)
    try:
        first = await file.index()
        assert file.stat_unchanged()
        assert await file.index() is first
        with path.open("r+b") as out:
            out.seek(file.headers[0].tensors[0].offset)
            out.write(b"\xee")
        os.utime(path, ns=(1, 1))  # whatever the clock's tick is, this is another time
        assert not file.stat_unchanged()
        second = await file.index()
        assert file.stat_unchanged()
        differing = [
            a.name for a, b in zip(first.tensors, second.tensors, strict=True) if a.digest != b.digest
        ]
        assert differing == [first.tensors[0].name]
    finally:
        file.close()


async def test_a_file_cut_while_open_is_refused(tmp_path: Path, cache: HashCache) -> None:
    path = tmp_path / "model.gguf"
    data = _write(path)

    file = await ModelFile.open(path, cache=cache)
    try:
        os.truncate(path, len(data) - 100)
        with pytest.raises(UserError, match="short by"):
            await file.index()
    finally:
        file.close()


async def test_a_file_that_changes_while_it_is_hashed(
    tmp_path: Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    _write(path)
    usual = hashes.Sweep.step
    changes = iter(range(1, 100))

    def changing(self: hashes.Sweep, budget: int) -> int:
        os.utime(path, ns=(0, next(changes)))
        return usual(self, budget)

    monkeypatch.setattr(hashes.Sweep, "step", changing)
    with pytest.raises(UserError, match="changes while it is read"):
        await _index(path, cache)
    # a change during the first reading only: read again, and right
    monkeypatch.setattr(hashes.Sweep, "step", usual)
    assert len((await _index(path, cache)).tensors) == 10


async def test_a_replaced_file_stays_what_it_was(tmp_path: Path, cache: HashCache) -> None:
    path, new = tmp_path / "model.gguf", tmp_path / "new.gguf"
    _write(path)
    _write(new, fill=9)

    file = await ModelFile.open(path, cache=cache)
    try:
        before = await file.index()
        assert file.paths_unchanged()
        new.replace(path)
        assert not file.paths_unchanged()
        after = await file.index()  # the old file lost its name (ctime), not its content
        assert [t.digest for t in after.tensors] == [t.digest for t in before.tensors]
    finally:
        file.close()


async def test_cancelling_ends_the_reading(
    tmp_path: Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    _write(path)
    entered, release, left = threading.Event(), threading.Event(), threading.Event()

    def slow(self: hashes.Sweep, budget: int) -> int:
        entered.set()
        release.wait(30)
        os.fstat(self._descriptor)  # still open for this thread
        left.set()
        return 0

    monkeypatch.setattr(hashes.Sweep, "step", slow)

    file = await ModelFile.open(path, cache=cache)
    task = asyncio.create_task(file.index())
    await asyncio.to_thread(entered.wait, 30)
    task.cancel()
    await asyncio.sleep(0)
    file.close()
    assert not task.done()  # it waits for its thread
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()


async def test_two_callers_read_once(
    tmp_path: Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    _write(path)
    usual = hashes.hash_tensors
    calls: list[str] = []

    async def counted(*arguments: object, **more: object) -> tuple[bytes, ...]:
        calls.append("read")
        return await usual(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("meshd.store.model_file.hash_tensors", counted)

    file = await ModelFile.open(path, cache=cache)
    try:
        first, second = await asyncio.gather(file.index(), file.index())
        assert first is second
    finally:
        file.close()
    assert calls == ["read"]


async def test_shards_are_found_from_any_of_them(tmp_path: Path, cache: HashCache) -> None:
    paths = _write_shards(tmp_path)

    async def run(given: Path) -> tuple[tuple[Path, ...], WeightsIndex]:
        file: WeightsFile = await ModelFile.open(given, cache=cache)
        try:
            assert file.name == paths[0].name
            assert len(set(file.descriptors)) == len(file.headers) == 3
            assert not any(os.get_inheritable(descriptor) for descriptor in file.descriptors)
            return file.paths, await file.index()
        finally:
            file.close()

    results = [await run(path) for path in paths]
    assert all(result == results[0] for result in results)
    assert results[0][0] == tuple(paths)
    assert {tensor.file for tensor in results[0][1].tensors} == {0, 1, 2}


async def test_a_missing_shard_is_named(tmp_path: Path, cache: HashCache) -> None:
    paths = _write_shards(tmp_path)
    paths[1].unlink()
    with pytest.raises(UserError, match=r"has 3 shards, missing: `tiny-00002-of-00003\.gguf`"):
        await _index(paths[0], cache)


async def test_a_worker_takes_what_there_is_of_a_model(tmp_path: Path, cache: HashCache) -> None:
    """Here the middle shard is missing, and the last one cut by a byte: its complete tensors identify it."""
    paths = _write_shards(tmp_path)
    whole = {tensor.name: tensor.digest for tensor in (await _index(paths[0], cache)).tensors}
    paths[1].unlink()
    os.truncate(paths[2], paths[2].stat().st_size - 1)

    for given in (paths[0], paths[2]):
        file = await ModelFile.open(given, cache=cache, partial=True)
        try:
            assert file.paths == (paths[0], paths[2])
            assert (file.missing_bytes, file.missing_shards) == (1, 1)
            index = await file.index()
            assert len(index.files) == 2
            assert 0 < len(index.tensors) < len(whole)
            assert all(whole[tensor.name] == tensor.digest for tensor in index.tensors)
            os.truncate(paths[2], paths[2].stat().st_size - 1)
            assert not file.stat_unchanged()
            await file.index()
            assert file.missing_bytes == 2
        finally:
            file.close()
        os.truncate(paths[2], paths[2].stat().st_size + 1)


async def test_shards_of_different_models_are_refused(tmp_path: Path, cache: HashCache) -> None:
    paths = _write_shards(tmp_path)
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(UserError, match="claims to be shard 2 of 3, expected 3 of 3"):
        await _index(paths[0], cache)
    metadata = {"split.no": 2, "split.count": 3}
    paths[2].write_bytes(gguf(metadata, language_model()[1][:1]))
    with pytest.raises(UserError, match=r"tensor `token_embd\.weight` is both in"):
        await _index(paths[0], cache)
    paths[2].write_bytes(gguf(metadata, []))
    with pytest.raises(UserError, match=r"hold \d+ tensors, expected \d+"):
        await _index(paths[0], cache)


async def test_a_renamed_shard_is_explained(tmp_path: Path, cache: HashCache) -> None:
    paths = _write_shards(tmp_path)
    renamed = paths[1].rename(tmp_path / "model.gguf")
    with pytest.raises(UserError, match="is shard 2 of 3, but its name does not say so") as caught:
        await _index(renamed, cache)
    assert "NAME-00002-of-00003.gguf" in caught.value.hint


async def test_what_cannot_be_opened_is_said_plainly(tmp_path: Path, cache: HashCache) -> None:
    with pytest.raises(UserError, match="no model file"):
        await _index(tmp_path / "absent.gguf", cache)
    with pytest.raises(UserError, match="is a directory") as caught:
        await _index(tmp_path, cache)
    assert caught.value.hint == "give the path of a *.gguf file"
    _write(tmp_path / "here.gguf")
    with pytest.raises(UserError) as caught:
        await _index(tmp_path, cache)
    assert "here.gguf" in caught.value.hint
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="not a regular file"):
        await _index(pipe, cache)
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="the file is empty"):
        await _index(tmp_path / "empty", cache)
    (tmp_path / "model.bin").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(UserError, match="not GGUF"):
        await _index(tmp_path / "model.bin", cache)
    with pytest.raises(UserError, match="cannot open"):
        await _index(tmp_path / ("x" * 300), cache)
    with pytest.raises(UserError, match="cannot open"):
        await _index(Path("a\0b"), cache)


async def test_permission_denied_has_a_remedy(
    tmp_path: Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    _write(path)

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")  # root may read everything, so it is said for it

    monkeypatch.setattr("meshd.store.model_file.os.open", denied)
    with pytest.raises(UserError, match="not allowed to read") as caught:
        await _index(path, cache)
    assert "chmod a+r" in caught.value.hint


async def test_a_failing_disk_or_share_is_named(
    tmp_path: Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    _write(path)

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("meshd.store.hashes.os.preadv", broken)
    with pytest.raises(UserError, match=r"cannot read `model\.gguf`: Input/output error") as caught:
        await _index(path, cache)
    assert "network share" in caught.value.hint


async def test_nothing_stays_open_after_a_refusal(tmp_path: Path, cache: HashCache) -> None:
    paths = _write_shards(tmp_path)
    paths[2].write_bytes(b"broken")
    before = _open_files()
    for _ in range(3):
        with pytest.raises(UserError):
            await _index(paths[0], cache)
    assert _open_files() == before


def test_a_budget_follows_the_speed() -> None:
    mib = 1 << 20
    assert hashes.next_budget(8 * mib, 0.25) == 8 * mib
    assert hashes.next_budget(8 * mib, 0.01) == 16 * mib  # at most twice as much
    assert hashes.next_budget(8 * mib, 100) == 2 * mib  # at least a quarter
    assert hashes.next_budget(512 * mib, 0.01) == 512 * mib
    assert hashes.next_budget(mib, 100) == mib


async def test_a_replaced_file_can_be_followed(tmp_path: Path, cache: HashCache) -> None:
    path, new = tmp_path / "model.gguf", tmp_path / "new.gguf"
    _write(path)
    _write(new, fill=9)

    file = await ModelFile.open(path, cache=cache)
    try:
        before = await file.index()
        assert not await file.follow()
        new.replace(path)
        assert await file.follow()
        assert file.paths_unchanged()
        after = await file.index()
        assert [t.digest for t in after.tensors] != [t.digest for t in before.tensors]
        path.unlink()
        with pytest.raises(UserError):
            await file.follow()
        assert os.fstat(file.descriptors[0]).st_size > 0  # what was open is open still
    finally:
        file.close()


async def test_it_is_what_was_read_before_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf(*language_model()))
    cache = HashCache(tmp_path / "hashes")

    file = await ModelFile.open(tmp_path / "a.gguf", cache=cache)
    try:
        assert file.known_index() is None
        index = await file.index()
        digests = [tensor.digest for tensor in index.tensors]
        # as index() does where the file was not written just now
        cache.save(FileState.of(file.descriptors[0]), file.headers[0], digests)
        assert file.known_index() == index
    finally:
        file.close()
