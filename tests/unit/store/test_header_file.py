"""Files of which only the header is there: what is known of them, and what is done when that is wrong."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.library.interface import ModelSource
from meshd.library.stores import models_below
from meshd.model.layers import is_of_layer
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.header_file import (
    HeaderFile,
    HeaderNote,
    decode_note,
    note_path,
    present_tensors,
    read_note,
    write_note,
)
from meshd.store.model_file import ModelFile, open_shards

from tests.conformance.run import run
from tests.gguf_bytes import gguf, language_model, parse
from tests.unit.library.models import put, tiny, tiny_shards
from tests.unit.store.header_files import opens, with_holes

STATE = FileState(1, 2, 3, 4, 5)
NOTE = HeaderNote("tiny-Q4_0", "desk", b"c" * 32, "f" * 64, (b"1" * 32, b"2" * 32), (STATE,))


async def fingerprint_of(path: Path, folder: Path) -> str:
    file = await ModelFile.open(path, cache=HashCache(folder / "weights"))
    try:
        return (await file.index()).fingerprint
    finally:
        file.close()


async def test_it_has_the_index_of_the_whole_model(tmp_path: Path) -> None:
    path = with_holes(tmp_path, tiny())

    whole = await ModelFile.open(put(tmp_path / "w.gguf", tiny()), cache=HashCache(tmp_path / "weights"))
    file = await HeaderFile.open_header(path)
    try:
        ours, theirs = await file.index(), await whole.index()
        assert (ours.tensors, ours.fingerprint) == (theirs.tensors, theirs.fingerprint)
        assert file.name == "tiny-Q4_0.gguf" and file.paths == (path,)
        assert len(file.header_of) == 32 and whole.header_of == b""
        assert file.stat_unchanged() and file.paths_unchanged() and not file.missing_bytes
    finally:
        file.close()
        whole.close()


async def test_one_in_several_files_is_found_as_llama_server_looks_for_it(tmp_path: Path) -> None:
    shards = tiny_shards(3, "tiny-Q4_0")
    path = with_holes(tmp_path / "h", *shards.values())
    whole = [put(tmp_path / "w" / name, data) for name, data in shards.items()]

    model = await ModelFile.open(whole[0], cache=HashCache(tmp_path / "weights"))
    for _ in range(2):  # links stay
        file = await HeaderFile.open_header(path)
        try:
            ours, theirs = await file.index(), await model.index()
            assert (ours.tensors, ours.fingerprint) == (theirs.tensors, theirs.fingerprint)
            assert [one.name for one in file.paths] == list(shards)
            assert [one.resolve() for one in file.paths] == sorted((tmp_path / "h").glob("*.header"))
            assert file.stat_unchanged() and file.paths_unchanged() and file.name == "tiny-Q4_0.gguf"
            with pytest.raises(UserError, match="is only the header of a model"):
                open_shards(file.paths[0])
        finally:
            file.close()
    model.close()
    assert not list(models_below(tmp_path / "h", ModelSource.MESHD)), "listings do not see the links"


def test_each_of_several_files_is_compared(tmp_path: Path) -> None:
    metadata, tensors = language_model()
    keys = {"split.count": 2, "split.tensors.count": len(tensors)}
    files = [  # the second has the output
        gguf({**metadata, **keys, "split.no": 0}, tensors[:5]),
        gguf({**keys, "split.no": 1}, tensors[5:]),
    ]
    path = with_holes(tmp_path, *files)
    second = path.with_name(path.name.replace("-00001-", "-00002-"))
    with second.open("r+b") as file:
        file.seek(present_tensors(parse(files[1]))[0].offset)
        file.write(b"\xff")
    with pytest.raises(UserError, match=r"-00002-of-00002\.header`: tensor .* is not what it was") as raised:
        run(opens(path))
    assert raised.value.hint.startswith(f"remove it with `meshd model rm {second}`")
    second.unlink()
    with pytest.raises(UserError, match=f"missing: `{second.name}`"):
        run(opens(path))


def test_the_layers_are_not_there(tmp_path: Path) -> None:
    path = with_holes(tmp_path, tiny())
    [shard] = open_shards(path, header_only=True)
    try:
        names = {one.name for one in present_tensors(shard.header)}
        assert names == {one.name for one in shard.header.tensors if not is_of_layer(one.name)} != set()
        data = path.read_bytes()
        holes = [one for one in shard.header.tensors if is_of_layer(one.name)]
        assert holes and not any(any(data[one.offset : one.offset + one.size]) for one in holes)
    finally:
        os.close(shard.descriptor)


@pytest.mark.parametrize("link", [False, True])
def test_nobody_takes_it_for_a_model(tmp_path: Path, link: bool) -> None:
    path = with_holes(tmp_path, tiny())
    if link:
        path = tmp_path / "other.gguf"
        path.symlink_to(tmp_path / "tiny-Q4_0.header")
    with pytest.raises(UserError, match="is only the header of a model") as raised:
        open_shards(path)
    assert "--header-only" in raised.value.hint
    with pytest.raises(UserError, match="is only the header"):
        open_shards(path, partial=True)


async def test_another_state_is_compared_and_noted(tmp_path: Path) -> None:
    path = with_holes(tmp_path, tiny())
    os.utime(path, ns=(1, 1))
    file = await HeaderFile.open_header(path)
    try:
        assert (await file.index()).files[0].mtime_ns == 1
    finally:
        file.close()
    assert read_note(path).states == (FileState.at(path),)


def test_a_note_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_holes(tmp_path, tiny())
    os.utime(path, ns=(1, 1))

    def fails(*_of: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr("meshd.store.header_file.replace_file", fails)
    run(opens(path))
    assert read_note(path).states != (FileState.at(path),)


def test_what_is_damaged_is_not_used(tmp_path: Path) -> None:
    path = with_holes(tmp_path, tiny())
    [shard] = open_shards(path, header_only=True)
    os.close(shard.descriptor)
    with path.open("r+b") as file:
        file.seek(present_tensors(shard.header)[0].offset)
        file.write(b"\xff")
    with pytest.raises(UserError, match=r"tensor `token_embd\.weight` is not what it was") as raised:
        run(opens(path))
    assert "meshd model rm" in raised.value.hint


@pytest.mark.parametrize("change", ["digests", "fingerprint", "fewer"])
def test_hashes_that_do_not_give_the_fingerprint(tmp_path: Path, change: str) -> None:
    path = with_holes(tmp_path, tiny())
    note = read_note(path)
    changed = {
        "digests": replace(note, digests=(*note.digests[:-1], bytes(32))),
        "fingerprint": replace(note, fingerprint="0" * 64),
        "fewer": replace(note, digests=note.digests[:-1]),
    }[change]
    write_note(path, changed)
    with pytest.raises(UserError, match="do not belong together"):
        run(opens(path))


async def test_a_change_while_it_is_used_is_an_error(tmp_path: Path) -> None:
    path = with_holes(tmp_path, tiny())

    file = await HeaderFile.open_header(path)
    try:
        await file.index()
        os.utime(path, ns=(1, 1))
        assert not file.stat_unchanged()
        with pytest.raises(UserError, match="was changed while it was used"):
            await file.index()
    finally:
        file.close()


@pytest.mark.parametrize("how", ["gone", "open to others", "cut", "text"])
def test_a_note_that_cannot_be_believed(tmp_path: Path, how: str) -> None:
    path = with_holes(tmp_path, tiny())
    note = note_path(path)
    if how == "gone":
        note.unlink()
    elif how == "open to others":
        note.chmod(0o666)
    else:
        note.write_bytes(note.read_bytes()[:-1] if how == "cut" else b"hello")
    with pytest.raises(UserError, match=r"`tiny-Q4_0\.hashes` cannot be used"):
        run(opens(path))


def test_its_hashes_are_not_those_of_the_cache_for_models(tmp_path: Path) -> None:
    """A copy under another name is read, and has other weights: zeros."""
    path = with_holes(tmp_path, tiny())
    run(opens(path))
    copy = put(tmp_path / "copy.gguf", path.read_bytes())
    whole = put(tmp_path / "whole.gguf", tiny())
    assert run(fingerprint_of(copy, tmp_path)) != run(fingerprint_of(whole, tmp_path))


@given(
    st.builds(
        HeaderNote,
        name=st.text(),
        node=st.text(),
        content=st.binary(min_size=32, max_size=32),
        fingerprint=st.binary(min_size=32, max_size=32).map(bytes.hex),
        digests=st.lists(st.binary(min_size=32, max_size=32)).map(tuple),
        states=st.lists(st.builds(FileState, *[st.integers(0, 1 << 62)] * 5), max_size=3).map(tuple),
    )
)
def test_a_note_is_read_as_it_was_written(note: HeaderNote) -> None:
    assert decode_note(note.encode()) == note


@given(st.binary(max_size=400))
def test_any_bytes_are_a_note_or_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_note(data)


@given(
    st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4),
    st.sampled_from(["name", "node", "content", "fingerprint", "states", "digests", "version"]),
)
def test_a_note_with_a_wrong_part_is_refused_or_read(part: object, name: str) -> None:
    fields = json.loads(NOTE.encode().partition(b"\n")[0])
    body = json.dumps({**fields, name: part}).encode()
    try:
        read = decode_note(body + b"\n" + blake3(body).hexdigest().encode())
    except ValueError:
        return
    assert all(len(one) <= 32 for one in read.digests)
