"""Packs: written, sealed, read; whatever else lies there is refused."""

import os
import random
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from meshd.rpc.mesh_keeping import Missed
from meshd.store.pack import (
    MAX_PACK_TENSORS,
    KeptTensor,
    PackWriter,
    Table,
    decode_table,
    encode_table,
    locked,
    read_table,
)

TRAILER = 16


def missed(content: bytes, kind: int = 0) -> Missed:
    return Missed(blake3(content).digest(), kind, len(content))


def written(writer: PackWriter, content: bytes) -> bool:
    tensor = missed(content)
    writer.write(tensor, 0, content)
    return writer.complete(tensor)


def contents(folder: Path, name: str) -> list[bytes]:
    with (folder / name).open("rb") as file:
        table = read_table(file.fileno())
        return [os.pread(file.fileno(), kept.size, kept.offset) for kept in table.tensors]


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path, "peer")
    assert written(writer, b"one" * 1000) and written(writer, b"two")
    assert all(path.name.startswith(".new-") for path in tmp_path.iterdir()), "nobody sees it before"
    sealed = writer.seal()
    assert sealed is not None
    assert contents(tmp_path, sealed.name) == [b"one" * 1000, b"two"]
    assert [path.name for path in tmp_path.iterdir()] == [sealed.name]
    assert (tmp_path / sealed.name).stat().st_mode & 0o777 == 0o600
    with (tmp_path / sealed.name).open("rb") as file:
        assert read_table(file.fileno()) == sealed.table
        assert sealed.table.peer == "peer"
    writer.abandon()
    assert (tmp_path / sealed.name).exists()


def test_pieces_in_any_order_and_two_tensors_at_once(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path, "peer")
    one, two = random.Random(1).randbytes(3_000_000), b"2" * 5000
    at = [*range(0, len(one), 100_000)]
    random.Random(2).shuffle(at)
    for number, offset in enumerate(at):
        writer.write(missed(one), offset, one[offset : offset + 100_000])
        if number < 5:
            writer.write(missed(two), number * 1000, two[:1000])
        assert not writer.between
    assert writer.complete(missed(two)) and writer.complete(missed(one))
    assert writer.between
    sealed = writer.seal()
    assert sealed is not None
    assert contents(tmp_path, sealed.name) == [two, one]


def test_other_bytes_than_were_named_are_not_kept(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path, "peer")
    assert written(writer, b"good")
    liar = Missed(bytes(32), 0, 4)
    writer.write(liar, 0, b"evil")
    assert not writer.complete(liar)
    half = missed(b"half of it")
    writer.write(half, 0, b"half")
    gone = missed(b"dropped")
    writer.write(gone, 0, b"dro")
    writer.drop(gone)
    writer.drop(gone)
    sealed = writer.seal()
    assert sealed is not None
    assert contents(tmp_path, sealed.name) == [b"good"]
    assert sealed.state.size == 4 + len(encode_table(sealed.table)), (
        "what was not kept takes no room at the end"
    )


@pytest.mark.parametrize("offset", [-1, 1, 4])
def test_no_piece_reaches_beyond_its_tensor(tmp_path: Path, offset: int) -> None:
    writer = PackWriter(tmp_path, "peer")
    writer.write(missed(b"half"), 0, b"ha")
    with pytest.raises(OSError, match="outside"):
        writer.write(missed(b"half"), offset, b"half")
    with pytest.raises(OSError, match="outside"):
        writer.write(Missed(missed(b"half").digest, 0, 100), 50, b"half")
    writer.abandon()


def test_nothing_whole_leaves_nothing(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path, "peer")
    writer.write(missed(b"half of it"), 0, b"half")
    assert writer.seal() is None
    assert list(tmp_path.iterdir()) == []
    writer.abandon()


def test_tensors_that_are_only_begun_are_bounded(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path, "peer")
    for number in range(MAX_PACK_TENSORS):
        writer.write(Missed(number.to_bytes(32, "big"), 0, 10), 0, b"x")
    with pytest.raises(OSError, match="too many"):
        writer.write(Missed(b"n" * 32, 0, 10), 0, b"x")
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_locks(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    assert locked(path, alone=True) is None
    path.write_bytes(b"")
    first, second = locked(path, alone=False), locked(path, alone=False)
    assert first is not None and second is not None
    assert locked(path, alone=True) is None
    os.close(first)
    assert locked(path, alone=True) is None
    os.close(second)
    alone = locked(path, alone=True)
    assert alone is not None
    assert locked(path, alone=False) is None
    os.close(alone)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert locked(link, alone=False) is None


def sealed_bytes(folder: Path) -> bytes:
    writer = PackWriter(folder, "peer")
    written(writer, b"one")
    written(writer, b"three")
    sealed = writer.seal()
    assert sealed is not None
    return (folder / sealed.name).read_bytes()


def why_not(folder: Path, data: bytes, mode: int = 0o600) -> str:
    path = folder / "it"
    path.write_bytes(data)
    path.chmod(mode)
    with path.open("rb") as file, pytest.raises(ValueError, match=r".") as caught:
        read_table(file.fileno())
    return str(caught.value)


def test_what_is_no_pack_is_refused(tmp_path: Path) -> None:
    data = sealed_bytes(tmp_path)
    assert why_not(tmp_path, b"") == why_not(tmp_path, data[:-1]) == "it is cut"
    assert why_not(tmp_path, data[:-TRAILER]) == "it is cut"
    assert why_not(tmp_path, data[: -TRAILER + 8] + b"\xff" * 8) == "it is cut"
    at = data.rindex(b"tensor")
    assert "damaged" in why_not(tmp_path, data[:at] + b"T" + data[at + 1 :])
    assert "other users" in why_not(tmp_path, data, 0o666)


def with_checksum(body: bytes) -> bytes:
    return body + f"end {blake3(body).hexdigest()}\n".encode()


GOOD = Table("p", (KeptTensor(b"d" * 32, 0, 0, 3), KeptTensor(b"e" * 32, 12, 3, 5)))


def test_a_table_is_read_as_it_was_written() -> None:
    assert decode_table(encode_table(GOOD)[:-TRAILER], data_bytes=8) == GOOD
    with pytest.raises(ValueError, match="is invalid"):
        decode_table(encode_table(GOOD)[:-TRAILER], data_bytes=7)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"meshd-tensors 1\n",
        b"meshd-tensors 2\nfrom p\n",
        b"meshd-tensors 1\nfrom p\ntensor 0 0 0 " + b"00" * 32 + b"\n",
        b"meshd-tensors 1\nfrom p\ntensor 0 -1 2 " + b"00" * 32 + b"\n",
        b"meshd-tensors 1\nfrom p\ntensor 0 0 2 " + b"00" * 31 + b"\n",
        b"meshd-tensors 1\nfrom p\ntensor 999 0 2 " + b"00" * 32 + b"\n",
        b"meshd-tensors 1\nfrom p\ntensor 0 0\n",
        b"meshd-tensors 1\nfrom \xff\n",
    ],
)
def test_a_table_that_cannot_be_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_table(with_checksum(body), data_bytes=100)


@given(data=st.data(), data_bytes=st.integers(0, 20))
def test_whatever_stands_there_is_refused_or_a_table(data: st.DataObject, data_bytes: int) -> None:
    text = bytearray(encode_table(GOOD)[:-TRAILER].rpartition(b"end ")[0])
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    try:
        table = decode_table(with_checksum(bytes(text)), data_bytes=data_bytes)
    except ValueError:
        return
    assert all(0 <= kept.offset <= data_bytes - kept.size < data_bytes for kept in table.tensors)
