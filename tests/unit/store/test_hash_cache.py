"""The cache of hashes believes an entry only for exactly the state it was made for."""

import dataclasses
import os
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshd.model.gguf import Header
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.store import hash_cache
from meshd.store.hash_cache import FileState, HashCache, PieceCache

from tests.conformance.run import run
from tests.gguf_bytes import Tensor, gguf, parse

HEADER = parse(gguf({}, [Tensor("a", (8,)), Tensor("b", (4,))]))
DIGESTS = (bytes(32), bytes(range(32)))
STATE = FileState(size=1000, mtime_ns=2_000_000_001, ctime_ns=3_000_000_001, inode=4, device=5)


@pytest.fixture
def cache(tmp_path: Path) -> HashCache:
    return HashCache(tmp_path / "weights")


def _entry(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "weights").glob("*.hashes")
    return path


def test_what_was_saved_is_found(cache: HashCache, tmp_path: Path) -> None:
    assert cache.load(STATE, HEADER) is None
    cache.save(STATE, HEADER, DIGESTS)
    assert cache.load(STATE, HEADER) == DIGESTS
    assert [path.name for path in (tmp_path / "weights").iterdir()] == [_entry(tmp_path).name]
    assert _entry(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("field", ["size", "mtime_ns", "ctime_ns", "inode", "device"])
def test_any_other_state_is_a_miss(cache: HashCache, field: str, tmp_path: Path) -> None:
    cache.save(STATE, HEADER, DIGESTS)
    other = dataclasses.replace(STATE, **{field: getattr(STATE, field) + 1})
    assert cache.load(other, HEADER) is None
    # not even when the entry lies under the other state's name
    written = _entry(tmp_path).read_bytes()
    cache.save(other, HEADER, DIGESTS)
    for entry in (tmp_path / "weights").glob("*.hashes"):
        entry.write_bytes(written)
    assert cache.load(other, HEADER) is None


def mounted_elsewhere(tmp_path: Path) -> tuple[Path, Header, tuple[bytes, ...], FileState]:
    """A real file, its hashes, and its state before its file system got another device number."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({}, [Tensor("a", (8,)), Tensor("b", (4,))]))
    data = path.read_bytes()
    header = parse(data)
    digests = tuple(blake3(data[one.offset : one.offset + one.size]).digest() for one in header.tensors)
    state = FileState.at(path)
    return path, header, digests, dataclasses.replace(state, device=state.device + 1)


def test_another_device_number_is_a_hit_if_a_sample_of_the_content_is_the_same(
    cache: HashCache, tmp_path: Path
) -> None:
    path, header, digests, before = mounted_elsewhere(tmp_path)
    cache.save(before, header, digests)
    now = FileState.at(path)
    assert cache.load(now, header) is None, "nothing can be compared without the file"
    with path.open("rb") as file:
        assert cache.load(now, header, file.fileno()) == digests
    assert cache.load(now, header) == digests, "it was noted with the new number"
    assert _entry(tmp_path).exists(), "in the same entry"


def test_another_device_number_is_a_miss_if_the_content_differs(cache: HashCache, tmp_path: Path) -> None:
    path, header, digests, before = mounted_elsewhere(tmp_path)
    cache.save(before, header, (bytes(32), bytes(32)))
    with path.open("rb") as file:
        assert cache.load(FileState.at(path), header, file.fileno()) is None
    cache.save(before, header, digests)
    with path.open("rb") as file:
        for field in ("size", "mtime_ns", "ctime_ns", "inode"):
            other = dataclasses.replace(FileState.at(path), **{field: 1})
            assert cache.load(other, header, file.fileno()) is None


def test_a_file_without_a_small_tensor_is_read_again(
    cache: HashCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, header, digests, before = mounted_elsewhere(tmp_path)
    cache.save(before, header, digests)
    monkeypatch.setattr(hash_cache, "_SAMPLE_BYTES", 3)
    with path.open("rb") as file:
        assert cache.load(FileState.at(path), header, file.fileno()) is None


def test_another_tensor_table_is_a_miss(cache: HashCache) -> None:
    cache.save(STATE, HEADER, DIGESTS)
    assert cache.load(STATE, parse(gguf({}, [Tensor("a", (8,)), Tensor("c", (4,))]))) is None
    assert cache.load(STATE, parse(gguf({}, [Tensor("a", (8,))]))) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_entry_is_a_miss(tmp_path: Path, data: st.DataObject) -> None:
    cache = HashCache(tmp_path / "weights")
    cache.save(STATE, HEADER, DIGESTS)
    path = _entry(tmp_path)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 2))
    if data.draw(st.booleans()):
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[at:]
    path.write_bytes(bytes(content))
    assert cache.load(STATE, HEADER) is None


def test_an_entry_others_could_write_is_not_believed(cache: HashCache, tmp_path: Path) -> None:
    cache.save(STATE, HEADER, DIGESTS)
    _entry(tmp_path).chmod(0o666)
    assert cache.load(STATE, HEADER) is None


def test_the_number_of_entries_is_limited(
    cache: HashCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashCache, "most_entries", 3)
    states = [dataclasses.replace(STATE, inode=number) for number in range(5)]
    seen: set[Path] = set()
    for number, state in enumerate(states):
        cache.save(state, HEADER, DIGESTS)
        (new,) = {*(tmp_path / "weights").glob("*.hashes")} - seen
        seen.add(new)
        os.utime(new, (number, number))
    assert [cache.load(state, HEADER) is not None for state in states] == [False, False, True, True, True]
    # a hit makes an entry young: the next to go is another one
    cache.save(dataclasses.replace(STATE, inode=9), HEADER, DIGESTS)
    assert len(list((tmp_path / "weights").glob("*.hashes"))) == 3


def test_leftovers_of_killed_writers_go(cache: HashCache, tmp_path: Path) -> None:
    cache.save(STATE, HEADER, DIGESTS)
    for number in range(20):
        (tmp_path / "weights" / f".new-{number}").touch()
    cache.save(STATE, HEADER, DIGESTS)
    assert len(list((tmp_path / "weights").glob(".new-*"))) <= 8


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = HashCache(tmp_path / "file" / "weights")
    assert cache.clock_ns() is None
    cache.save(STATE, HEADER, DIGESTS)
    assert cache.load(STATE, HEADER) is None


def test_a_full_disk_leaves_nothing_behind(
    cache: HashCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    cache.save(STATE, HEADER, DIGESTS)
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_state_settles_when_the_clock_has_moved_on() -> None:
    last = STATE.ctime_ns
    assert not STATE.settled_at(last)
    assert not STATE.settled_at(last - 10**9)  # a share whose clock is ahead
    assert not STATE.settled_at(last + 40_000_000)
    assert STATE.settled_at(last + 60_000_000)
    coarse = dataclasses.replace(STATE, mtime_ns=10**9, ctime_ns=3 * 10**9)
    assert not coarse.settled_at(4 * 10**9)
    assert coarse.settled_at(6 * 10**9)


def test_how_long_a_state_takes_to_settle() -> None:
    last = STATE.ctime_ns
    for clock in (last, last + 49_999_999, last + 50_000_000):
        slept = round(1e9 * STATE.seconds_to_settle(clock))
        assert STATE.settled_at(clock + slept - 9_999_999), "whatever the clock was ahead of its last tick"
    assert STATE.seconds_to_settle(last + 60_000_000) == 0
    assert STATE.seconds_to_settle(last - 10**12) == 2  # its clock was set back


def test_the_clock_is_the_file_systems(cache: HashCache, tmp_path: Path) -> None:
    first = cache.clock_ns()
    (tmp_path / "later").touch()
    assert first is not None
    assert first <= (tmp_path / "later").stat().st_ctime_ns
    assert list((tmp_path / "weights").iterdir()) == []


DATA = (b"a" * (PIECE_BYTES + 7), b"b" * 5)


class Model:
    """Two open files, and a cache that knows nothing of them yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = [folder / name for name in ("one", "two")]
        for path, data in zip(self.paths, DATA, strict=True):
            path.write_bytes(data)

    def cache(self) -> PieceCache:
        return PieceCache(self.folder / "pieces", HashCache(self.folder / "weights"))

    def states(self) -> list[FileState]:
        return [FileState.at(path) for path in self.paths]

    def read(self, cache: PieceCache) -> PieceIndex:
        descriptors = [os.open(path, os.O_RDONLY) for path in self.paths]
        told: list[int] = []

        async def main() -> PieceIndex:
            try:
                return await cache.read(descriptors, ["one", "two"], lambda now: told.append(now.done))
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

        index = run(main())
        assert PIECE_BYTES + 7 in told
        return index

    @property
    def entry(self) -> Path:
        [path] = (self.folder / "pieces").glob("*.pieces")
        return path


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Its files count as written long ago."""
    monkeypatch.setattr(FileState, "settled_at", lambda _state, _clock: True)
    return Model(tmp_path)


def test_it_is_read_once_and_then_known(model: Model) -> None:
    assert model.cache().load(model.states()) is None
    index = model.read(model.cache())
    assert index.sizes == tuple(map(len, DATA)) and index.count == 3
    assert index.holds(0, DATA[0][:PIECE_BYTES]) and index.holds(2, DATA[1])
    assert model.cache().load(model.states()) == index


def test_a_changed_file_is_not_known(model: Model) -> None:
    model.read(model.cache())
    model.paths[1].write_bytes(b"c" * 5)
    assert model.cache().load(model.states()) is None


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "longer", "writable"])
def test_a_damaged_entry_is_not_believed(model: Model, damage: str) -> None:
    model.read(model.cache())
    data = bytearray(model.entry.read_bytes())
    match damage:
        case "flipped":
            data[-40] ^= 1
        case "cut":
            del data[-1:]
        case "empty":
            data.clear()
        case "longer":
            data += b"x"
    model.entry.write_bytes(bytes(data))
    model.entry.chmod(0o622 if damage == "writable" else 0o600)
    assert model.cache().load(model.states()) is None


def test_files_written_a_moment_before_are_known_to_this_process_only(tmp_path: Path) -> None:
    model = Model(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FileState, "settled_at", lambda _state, _clock: False)
        cache = model.cache()
        index = model.read(cache)
    assert cache.load(model.states()) == index and model.cache().load(model.states()) is None


def test_the_least_recently_used_goes_first(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PieceCache, "most_entries", 2)
    index = PieceIndex((5,), bytes(32))
    states = [[FileState(5, number, 0, 0, 0)] for number in range(3)]
    for number, one in enumerate(states):
        model.cache().save(one, index)
        newest = max(tmp.stat().st_mtime_ns for tmp in (model.folder / "pieces").iterdir())
        for path in (model.folder / "pieces").iterdir():
            if path.stat().st_mtime_ns == newest:
                os.utime(path, (number, number))
    assert [model.cache().load(one) is not None for one in states] == [False, True, True]


def test_a_folder_that_cannot_be_written(model: Model) -> None:
    (model.folder / "pieces").write_text("in the way")
    index = model.read(model.cache())
    assert index.count == 3 and model.cache().load(model.states()) is None
