"""The pieces of files, and the id that follows from them."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.piece_index import HASH_BYTES, PIECE_BYTES, PieceIndex, count_pieces

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
