"""The header parser: what it reads, what it refuses, and what it costs."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.model.gguf import (
    LOOKED_AT,
    MAX_KEPT_ELEMENTS,
    MAX_KEPT_STRING_BYTES,
    WINDOW_BYTES,
    Skipped,
    read_header,
    what_it_is,
)

from tests.gguf_bytes import Plain, Tensor, gguf, key_value, language_model, parse, string


def _file() -> bytes:
    metadata, tensors = language_model()
    return gguf(metadata, tensors)


def test_reads_metadata_and_tensors() -> None:
    header = parse(_file())
    assert header.text("general.architecture") == "llama"
    assert header.integer("llama.block_count") == 4
    assert header.metadata["tokenizer.ggml.tokens"] == Skipped("string array", 64)
    assert header.length("tokenizer.ggml.tokens") == 64
    first = header.tensors[0]
    assert (first.name, first.kind.name, first.dims, first.size) == (
        "token_embd.weight",
        "f32",
        (32, 64),
        8192,
    )
    assert first.offset == header.data_offset
    assert header.data_offset % 32 == 0
    quantized = header.tensors[2]
    assert (quantized.kind.name, quantized.size) == ("q8_0", 32 * 34)


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_alignment_and_offsets_point_at_the_data(alignment: int) -> None:
    data = gguf(
        {"general.alignment": alignment}, [Tensor("a", (3,)), Tensor("b", (5,), fill=9)], alignment=alignment
    )
    header = parse(data)
    assert header.alignment == alignment
    for number, tensor in enumerate(header.tensors):
        fill = (1, 9)[number]
        assert data[tensor.offset] == (ord(tensor.name) + fill) % 251
        assert tensor.offset % alignment == 0


@pytest.mark.parametrize("version", [2, 3])
def test_two_versions_are_read(version: int) -> None:
    metadata, tensors = language_model()
    assert parse(gguf(metadata, tensors, version=version)).version == version


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (struct.pack(">IQQ", 3, 0, 0), "big endian", "gguf_convert_endian.py"),
        (struct.pack("<IQQ", 0, 0, 0), "GGUF version 0, expected 2 or 3", "download it again"),
        (struct.pack("<IQQ", 1, 0, 0), "GGUF version 1, expected 2 or 3", "convert it"),
        (struct.pack("<IQQ", 4, 0, 0), "GGUF version 4, expected 2 or 3", "upgrade meshd"),
    ],
)
def test_other_versions_are_refused(data: bytes, message: str, hint: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse(b"GGUF" + data)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"GG", "not a GGUF file: it has only 2 bytes"),
        (b"<!DOCTYPE html>", "it is a web page, not a model"),
    ],
)
def test_other_files_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(data)


def test_short_arrays_are_kept_and_long_ones_skipped() -> None:
    longest: list[int] = list(range(MAX_KEPT_ELEMENTS))
    header = parse(gguf({"a": longest, "b": [*longest, 1], "c": [True, False]}))
    assert header.array("a") == tuple(longest)
    assert header.metadata["b"] == Skipped("int32 array", MAX_KEPT_ELEMENTS + 1)
    assert header.array("c") == (1, 0)
    assert header.array("b") is None


def test_long_strings_are_skipped() -> None:
    header = parse(gguf({"template": "x" * (MAX_KEPT_STRING_BYTES + 1), "after": 7}))
    assert header.metadata["template"] == Skipped("string", MAX_KEPT_STRING_BYTES + 1)
    assert header.integer("after") == 7


def test_digests_follow_the_value_and_only_it() -> None:
    big: Plain = [f"token {number}" for number in range(40_000)]  # crosses several windows
    other: Plain = [*(f"token {number}" for number in range(39_999)), "token x9999"]
    one, same, changed = (parse(gguf({"pad": pad, "list": value, "n": 1})) for pad, value in
                          (("a", big), ("longer", big), ("a", other)))  # fmt: skip
    assert one.digests["list"] == same.digests["list"]
    assert one.digests["pad"] != same.digests["pad"]
    assert one.digests["list"] != changed.digests["list"]
    assert one.digests["n"] == changed.digests["n"]


def test_a_cut_file_says_by_how_much() -> None:
    data = gguf({"a": 1}, [Tensor("only", (8,))])
    end = parse(data).tensors[0].offset + 32
    assert end == len(data)
    with pytest.raises(UserError, match="short by 5 bytes") as caught:
        parse(data[:-5])
    assert "download the file again" in caught.value.hint


def test_of_a_cut_file_a_worker_knows_the_tensors_that_are_whole() -> None:
    data = gguf({"a": 1}, [Tensor("one", (8,)), Tensor("two", (8,)), Tensor("three", (8,))])
    whole = parse(data)
    two = whole.tensors[1]

    def known(size: int) -> tuple[list[str], int]:
        header = read_header(
            lambda at, count: data[:size][at : at + count], size=size, label="cut", partial=True
        )
        return [tensor.name for tensor in header.tensors], header.missing_bytes

    assert known(len(data)) == (["one", "two", "three"], 0)
    assert known(len(data) - 1) == (["one", "two"], 1)
    assert known(two.offset + two.size) == (["one", "two"], len(data) - two.offset - two.size)
    assert known(two.offset + two.size - 1)[0] == ["one"]
    assert known(whole.data_offset)[0] == []
    with pytest.raises(UserError):
        known(whole.data_offset // 2)


def test_every_cut_of_a_header_is_a_user_error() -> None:
    data = _file()
    for end in range(parse(data).data_offset):
        with pytest.raises(UserError):
            parse(data[:end])


def test_padding_behind_the_last_tensor_may_be_absent() -> None:
    data = gguf({"a": 1}, [Tensor("one", (3,))])
    assert len(parse(data[:-20]).tensors) == 1


def _with_table(entry: bytes) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + entry
    return head + bytes(4096)


def _entry(name: bytes, dims: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    sizes = b"".join(struct.pack("<Q", dim) for dim in dims)
    return string(name) + struct.pack("<I", len(dims)) + sizes + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (_entry(b"t", (32,), 4), "type 4, which the pinned llama.cpp does not know"),
        (_entry(b"t", (32,), 1000), "type 1000"),
        (_entry(b"t", (33,), 2), "rows of 33, expected a multiple of 32"),
        (_entry(b"t", (1, 1, 1, 1, 1), 0), "5 dimensions, expected at most 4"),
        (_entry(b"t", (1 << 62, 1 << 62), 0), "expected fewer than 2\\^63 elements"),
        (_entry(b"t", (1 << 63, 0), 0), "expected fewer than 2\\^63 elements"),
        (_entry(b"t", (8,), 0, offset=32), "has the offset 32, expected 0"),
        (_entry(b"t" * 64, (8,), 0), "has 64 bytes, expected at most 63"),
        (_entry(b"", (8,), 0), "empty or has control characters"),
        (_entry(b"a\nend", (8,), 0), "empty or has control characters"),
        (_entry(b"\xff\xfe", (8,), 0), "not UTF-8"),
        (_entry(b"t", (1 << 40,), 0), "short by"),
    ],
)
def test_bad_tensor_entries_are_refused(entry: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(_with_table(entry))


def test_a_scalar_tensor_has_one_element() -> None:
    assert parse(_with_table(_entry(b"t", (), 0))).tensors[0].size == 4


def _keys(count: int, data: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, count) + data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_keys(1 << 40, b""), "the number of metadata keys is 1099511627776, expected at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 0), "the number of tensors is"),
        (_keys(2, key_value("a", 1) * 2), "`a` occurs twice"),
        (_keys(1, string("a") + struct.pack("<I", 13) + bytes(64)), "type 13, expected 0 to 12"),
        (_keys(1, string("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(64)), "array of type 9"),
        (_keys(1, string("a") + struct.pack("<IIQ", 9, 8, 1 << 50)), "the length of the array"),
        (_keys(1, string("a") + struct.pack("<IQ", 8, 1 << 50)), "short by"),
        (_keys(1, string("k" * 257) + bytes(64)), "has 257 bytes, expected at most 256"),
        (_keys(1, key_value("general.alignment", 48)), "`general.alignment` is 48, expected a power of two"),
        (_keys(1, key_value("general.alignment", "x")), "expected a power of two"),
        (_keys(1, key_value("general.alignment", 0)), "expected a power of two"),
    ],
)
def test_bad_metadata_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(data)


def test_a_tensor_twice_is_refused() -> None:
    with pytest.raises(UserError, match="tensor `a` occurs twice"):
        parse(gguf({}, [Tensor("a", (8,)), Tensor("a", (8,))]))


def test_shards_say_their_number() -> None:
    assert parse(_file()).shard == (0, 1)
    assert parse(gguf({"split.no": 1, "split.count": 3})).shard == (1, 3)


def test_a_large_vocabulary_costs_little_memory() -> None:
    tokens = [f"piece{number}" for number in range(150_000)]
    merges = [f"piece{number} x" for number in range(150_000)]
    data = gguf({"tokens": tokens, "merges": merges, "types": list(range(150_000))}, [Tensor("a", (8,))])
    assert len(data) > 6_000_000
    reads: list[int] = []

    def pread(offset: int, length: int) -> bytes:
        reads.append(length)
        return data[offset : offset + length]

    tracemalloc.start()
    try:
        header = read_header(pread, size=len(data), label="big")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert header.length("merges") == 150_000
    assert peak < 8 * WINDOW_BYTES
    assert max(reads) <= WINDOW_BYTES


@given(
    st.integers(1, 64),
    st.lists(st.text(min_size=1, max_size=70), min_size=1, max_size=60),
    st.lists(st.integers(-5, 5), max_size=8),
)
def test_windows_of_any_size_give_the_same_header(window: int, words: list[str], numbers: list[int]) -> None:
    metadata: dict[str, Plain] = {"words": words, "numbers": numbers, "text": "".join(words)[:4000], "end": 1}
    data = gguf(metadata, [Tensor("a", (8,)), Tensor("b", (4, 2))])

    def pread(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    small = read_header(pread, size=len(data), label="test.gguf", window=window)
    assert small == parse(data)


LFS = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 4920734272
"""
LOGIN = b"""\xef\xbb\xbf
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Sign in
 \x1b[31m&middot; Example</title></head><body>"""


@pytest.mark.parametrize(
    ("head", "what", "hint"),
    [
        (LFS, "it is a Git LFS pointer to a file of 4920734272 bytes, not that file", "git lfs pull"),
        (
            b"/annex/objects/SHA256E-s1--ab.gguf\n",
            "it is a git-annex pointer, not the file itself",
            "annex get",
        ),
        (LOGIN, "it is a web page (`Sign in [31m&middot; Example`), not a model", "login"),
        (b"<html><body>no", "it is a web page, not a model", "login"),
        (b"<!-- saved -->\n<HTML>", "it is a web page, not a model", "login"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied', "it is a text document (XML or JSON)", "open it"),
        (b'{"error":"Repository not found"}', "it is a text document (XML or JSON)", "open it"),
        (b'\x10\x27\0\0\0\0\0\0{"__metadata__":{}', "it is a model in the safetensors format", "convert"),
        (b"PK\x03\x04\0\0", "it is a ZIP archive or a PyTorch file, not GGUF", "convert"),
        (b"\x80\x02}q", "it is a ZIP archive or a PyTorch file, not GGUF", "convert"),
        (b"tjgg\x03\0\0\0", "it is in a llama.cpp format older than GGUF", "as GGUF"),
        (b"hello", "not a GGUF file: it begins with `hell`, expected `GGUF`", "*.gguf"),
        (b"\xff\x00\x01\x02" + bytes(40), "not a GGUF file: it begins with `ff000102`", "*.gguf"),
    ],
)
def test_it_is_named(head: bytes, what: str, hint: str) -> None:
    found, todo = what_it_is(head)
    assert found.startswith(what)
    assert hint in todo


@given(
    st.one_of(
        st.binary(max_size=LOOKED_AT),
        st.sampled_from([LFS, LOGIN]).flatmap(
            lambda start: st.binary(max_size=200).map(lambda end: start + end)
        ),
    )
)
def test_any_beginning_is_named_in_one_line(head: bytes) -> None:
    for text in what_it_is(head):
        assert text.isprintable()
        assert 0 < len(text) < 200
