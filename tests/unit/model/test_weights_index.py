"""The index text and the fingerprint."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.weights_index import (
    HASH_BYTES,
    PIECE_BYTES,
    FileEntry,
    PieceIndex,
    TensorEntry,
    WeightsIndex,
    count_pieces,
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
def test_each_entry_is_a_line_with_its_name_last(
    some: list[FileEntry], listed: list[TensorEntry], data: st.DataObject
) -> None:
    descriptors = data.draw(st.lists(st.integers(-1, 500), min_size=len(some), max_size=len(some)))
    text = encode_index(WeightsIndex(tuple(some), tuple(listed), ""), descriptors).decode()
    first, *lines, last, after = text.split("\n")
    assert (first, last, after) == ("meshd-weights 1", "end", "")
    read = [line.split(" ", 6) for line in lines]
    assert [tuple(map(int, fields[1:])) for fields in read if fields[0] == "file"] == [
        (number, descriptor, file.size, file.mtime_ns, file.ctime_ns, file.inode)
        for number, (file, descriptor) in enumerate(zip(some, descriptors, strict=True))
    ]
    assert [(*map(int, fields[1:5]), *fields[5:]) for fields in read if fields[0] == "tensor"] == [
        (tensor.file, tensor.kind, tensor.offset, tensor.size, tensor.digest.hex(), tensor.name)
        for tensor in listed
    ]


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


SIZES = st.lists(st.integers(1, 5 * PIECE_BYTES), min_size=1, max_size=6).map(tuple)


def index_of(sizes: tuple[int, ...]) -> PieceIndex:
    return PieceIndex(sizes, bytes(HASH_BYTES * count_pieces(sizes)))


@given(SIZES)
def test_pieces_cover_every_byte_of_every_file_once(sizes: tuple[int, ...]) -> None:
    index = index_of(sizes)
    ends = dict.fromkeys(range(len(sizes)), 0)
    for number in range(index.count):
        piece = index.piece(number)
        assert piece.number == number and 0 < piece.length <= PIECE_BYTES
        assert piece.offset == ends[piece.file] and piece.offset % PIECE_BYTES == 0
        ends[piece.file] += piece.length
    assert tuple(ends.values()) == sizes and index.size == sum(sizes)


@given(SIZES, SIZES)
def test_another_layout_is_another_content(sizes: tuple[int, ...], others: tuple[int, ...]) -> None:
    assert (index_of(sizes).content == index_of(others).content) == (sizes == others)


def test_a_piece_is_its_bytes_and_nothing_else() -> None:
    data = b"x" * 100
    index = PieceIndex((100,), blake3(data).digest())
    assert index.holds(0, data)
    assert not index.holds(0, data[:-1]) and not index.holds(0, b"y" + data[1:])
    for number in (-1, 1):
        with pytest.raises(IndexError):
            index.piece(number)


@pytest.mark.parametrize(
    ("sizes", "hashes"),
    [
        ((), b""),
        ((0,), b""),
        ((1,), b""),
        ((1,), bytes(31)),
        ((1,), bytes(64)),
        ((PIECE_BYTES + 1,), bytes(32)),
    ],
)
def test_hashes_that_are_not_those_of_these_files(sizes: tuple[int, ...], hashes: bytes) -> None:
    with pytest.raises(ValueError, match="not those"):
        PieceIndex(sizes, hashes)


@pytest.mark.parametrize(
    ("file", "offset", "size", "numbers"),
    [
        (0, 0, 1, [0]),
        (0, PIECE_BYTES - 1, 2, [0, 1]),
        (0, PIECE_BYTES, PIECE_BYTES, [1]),
        (0, 0, 2 * PIECE_BYTES + 5, [0, 1, 2]),
        (1, 3, 2, [3]),
        (0, 2 * PIECE_BYTES, 6, []),
        (0, -1, 2, []),
        (0, 1, 0, []),
        (2, 0, 1, []),
        (-1, 0, 1, []),
    ],
)
def test_the_pieces_of_some_bytes(file: int, offset: int, size: int, numbers: list[int]) -> None:
    index = PieceIndex((2 * PIECE_BYTES + 5, 5), bytes(4 * 32))
    assert list(index.numbers(file, offset, size)) == numbers
