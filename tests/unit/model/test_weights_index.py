"""The index text and the fingerprint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.model.weights_index import (
    FileEntry,
    TensorEntry,
    WeightsIndex,
    decode_index,
    encode_index,
    fingerprint,
    join_indexes,
)

from tests.gguf_bytes import gguf, language_model, parse

FILE = FileEntry(size=1000, mtime_ns=5, ctime_ns=6, inode=7)
TENSOR = TensorEntry(file=0, kind=12, offset=96, size=144, digest=bytes(range(32)), name="blk.0.a b.weight")
INDEX = WeightsIndex((FILE,), (TENSOR,), "ab" * 32)


def test_the_text_is_what_the_native_side_reads() -> None:
    text = encode_index(INDEX, [9]).decode()
    assert text == (
        "meshd-weights 1\n"
        "file 0 9 1000 5 6 7\n"
        f"tensor 0 12 96 144 {bytes(range(32)).hex()} blk.0.a b.weight\n"
        "end\n"
    )
    assert "file 0 -1 1000 5 6 7\n" in encode_index(INDEX).decode()


numbers = st.integers(0, (1 << 63) - 1)
files = st.builds(
    FileEntry,
    size=st.just(1 << 40),
    mtime_ns=st.integers(-(1 << 62), 1 << 62),
    ctime_ns=st.integers(-(1 << 62), 1 << 62),
    inode=numbers,
)
names = st.text(st.characters(min_codepoint=33, exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
tensors = st.builds(
    TensorEntry,
    file=st.just(0),
    kind=st.integers(0, 42),
    offset=st.integers(0, 1 << 30),
    size=st.integers(0, 1 << 30),
    digest=st.binary(min_size=32, max_size=32),
    name=names,
)


@given(st.lists(files, min_size=1, max_size=4), st.lists(tensors, max_size=8), st.data())
def test_round_trip(some: list[FileEntry], listed: list[TensorEntry], data: st.DataObject) -> None:
    index = WeightsIndex(tuple(some), tuple(listed), "")
    descriptors = data.draw(st.lists(st.integers(-1, 500), min_size=len(some), max_size=len(some)))
    decoded = decode_index(encode_index(index, descriptors))
    assert decoded.files == index.files
    assert decoded.tensors == index.tensors
    assert list(decoded.descriptors) == descriptors


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("meshd-weights 1", "meshd-weights 2", "expected `meshd-weights 1`"),
        ("\nend\n", "\n", "cut short|not `end`"),
        ("file 0", "file 1", "line 2: expected file 0"),
        ("file 0 9", "file 0 x", "line 2: `x` is not a number"),
        ("1000 5", "-1 5", "line 2: -1 is too small"),
        ("tensor 0 12 96", "tensor 1 12 96", "file 1 is not listed"),
        ("96 144", "957 144", "reaches beyond its file"),
        ("0001", "000Q", "not 64 hexadecimal digits"),
        ("blk.0.a b.weight", "", "expected a file or tensor line"),
        ("tensor 0", "tensors 0", "expected a file or tensor line"),
    ],
)
def test_broken_texts_name_the_line(old: str, new: str, message: str) -> None:
    text = encode_index(INDEX, [9]).decode()
    assert old in text
    with pytest.raises(UserError, match=message):
        decode_index(text.replace(old, new, 1).encode())


@given(st.binary(max_size=200))
def test_any_text_is_decoded_or_refused(data: bytes) -> None:
    with pytest.raises(UserError):
        decode_index(b"meshd-weights 1\nfile " + data + b"\nend\n" if b"\n" not in data else data)


def _digests(count: int) -> list[bytes]:
    return [bytes([number]) * 32 for number in range(count)]


def test_the_fingerprint_ignores_names_layout_and_shards() -> None:
    metadata, all_tensors = language_model()
    whole = parse(gguf(metadata, all_tensors))
    described = parse(gguf({**metadata, "general.name": "other", "general.author": "x"}, all_tensors))
    spread = parse(gguf({**metadata, "general.alignment": 64}, all_tensors, alignment=64))
    first = parse(gguf({**metadata, "split.no": 0, "split.count": 2}, all_tensors[:3]))
    second = parse(gguf({"split.no": 1, "split.count": 2}, all_tensors[3:]))
    digests = _digests(len(all_tensors))
    expected = fingerprint([whole], [digests])
    assert fingerprint([described], [digests]) == expected
    assert fingerprint([spread], [digests]) == expected
    assert fingerprint([first, second], [digests[:3], digests[3:]]) == expected


def test_the_fingerprint_follows_content_shape_type_and_meaning() -> None:
    metadata, all_tensors = language_model()
    digests = _digests(len(all_tensors))
    seen = {fingerprint([parse(gguf(metadata, all_tensors))], [digests])}
    seen.add(fingerprint([parse(gguf(metadata, all_tensors))], [[*digests[:-1], bytes(32)]]))
    seen.add(fingerprint([parse(gguf({**metadata, "llama.rope.freq_base": 1.0}, all_tensors))], [digests]))
    wider_metadata, wider = language_model(width=64)
    seen.add(fingerprint([parse(gguf(metadata, wider))], [digests]))
    assert wider_metadata != metadata
    assert len(seen) == 4


def test_joined_indexes_keep_their_files_apart() -> None:
    other = WeightsIndex((FILE, FILE), (TensorEntry(1, 0, 0, 4, bytes(32), "x"),), "cd" * 32)
    joined = join_indexes([INDEX, other])
    assert len(joined.files) == 3
    assert [tensor.file for tensor in joined.tensors] == [0, 2]
    assert joined.fingerprint not in (INDEX.fingerprint, other.fingerprint)
    assert join_indexes([INDEX]).fingerprint == INDEX.fingerprint
    assert joined.weight_bytes == 148
