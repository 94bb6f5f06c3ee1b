"""Hashes of pieces: read once, believed only for the same files, never from somebody else."""

import os
from pathlib import Path

import pytest
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.store import piece_cache
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.piece_cache import PieceCache

from tests.conformance.run import run

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
    monkeypatch.setattr(piece_cache, "MAX_PIECE_ENTRIES", 2)
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
