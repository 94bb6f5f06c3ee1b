"""Broken and hostile SET_TENSOR_GGUF messages and indexes: refused, or a miss, and nobody crashes."""

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from meshd.build.interface import RPC_SERVER
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex, encode_index
from meshd.rpc import protocol as rpc

from tests.e2e.models import patched
from tests.e2e.native_rig import Handed, Worker
from tests.e2e.rpc_client import F32, Entry, RpcClient

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

OK, NO_SUCH_HASH, TYPE_OR_SIZE, UNREADABLE, FILE_CHANGED, BAD_TENSOR = range(6)
VALUES = struct.pack("<256f", *range(256))
DIGEST = blake3(VALUES).digest()
SIZE = len(VALUES)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker whose one file has VALUES at offset 100, and an entry for it."""
    file = tmp_path / "weights"
    file.write_bytes(bytes(100) + VALUES)
    stat = file.stat()

    def index(descriptors: object) -> bytes:
        assert isinstance(descriptors, list)
        entry = FileEntry(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        return encode_index(
            WeightsIndex((entry,), (TensorEntry(0, F32, 100, SIZE, DIGEST, "t"),), ""), descriptors
        )

    with Worker(patched().binaries[RPC_SERVER], tmp_path, weights=[file], index=index) as started:
        yield started


def _entry(client: RpcClient, **other: object) -> Entry:
    buffer = client.alloc(4096)
    values: dict[str, object] = {
        "buffer": buffer,
        "data": client.base(buffer),
        "size": SIZE,
        "kind": F32,
        "shape": (256, 1, 1, 1),
        "digest": DIGEST,
    }
    return Entry(**{**values, **other})  # type: ignore[arg-type]


def test_a_tensor_is_filled(worker: Worker) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        entry = _entry(client)
        assert client.load([entry]) == [OK]
        assert client.read(entry) == VALUES


def test_any_shape_of_that_size(worker: Worker) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        cube, column = _entry(client, shape=(4, 4, 4, 4)), _entry(client, shape=(1, 1, 1, 256))
        assert client.load([cube, column]) == [OK, OK]


@pytest.mark.parametrize(
    ("other", "status"),
    [
        ({"digest": bytes(32)}, NO_SUCH_HASH),
        ({"kind": 1, "size": 512}, TYPE_OR_SIZE),  # F16
        ({"kind": 26}, TYPE_OR_SIZE),  # I32, of the same size
        ({"shape": (255, 1, 1, 1), "size": 1020}, TYPE_OR_SIZE),
        ({"shape": (255, 1, 1, 1)}, BAD_TENSOR),
        ({"shape": (0, 1, 1, 1)}, BAD_TENSOR),
        ({"shape": (256, 0, 1, 1)}, BAD_TENSOR),
        ({"shape": (1 << 31, 1 << 31, 1 << 31, 1 << 31)}, BAD_TENSOR),
        ({"shape": ((1 << 32) - 1,) * 4, "size": (1 << 64) - 1}, BAD_TENSOR),
        ({"size": 0}, BAD_TENSOR),
        ({"kind": 3}, BAD_TENSOR),  # Q4_1: 256 elements are 160 bytes
        ({"kind": 4}, BAD_TENSOR),  # a type that is no more
        ({"kind": 1000}, BAD_TENSOR),
        ({"kind": (1 << 32) - 1}, BAD_TENSOR),
        ({"buffer": 0}, BAD_TENSOR),
        ({"buffer": 0xDEADBEEF}, BAD_TENSOR),
        ({"data": 0}, BAD_TENSOR),
        ({"data": (1 << 64) - 1}, BAD_TENSOR),
        ({"data": (1 << 64) - SIZE}, BAD_TENSOR),
    ],
)
def test_an_entry_that_is_wrong_is_a_miss(worker: Worker, other: dict[str, object], status: int) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        assert client.load([_entry(client, **other), _entry(client)]) == [status, OK]


@pytest.mark.parametrize("offset", [-1, 4096 - SIZE + 1, 4096, 1 << 40])
def test_a_tensor_beyond_its_buffer(worker: Worker, offset: int) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        entry = _entry(client)
        beyond = Entry(entry.buffer, entry.data + offset, SIZE, F32, entry.shape, DIGEST)
        edge = Entry(entry.buffer, entry.data + 4096 - SIZE, SIZE, F32, entry.shape, DIGEST)
        assert client.load([beyond, edge]) == [BAD_TENSOR, OK]


def test_a_buffer_that_was_freed(worker: Worker) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        entry = _entry(client)
        client.free(entry.buffer)
        assert client.load([entry]) == [BAD_TENSOR]


def test_names_from_the_wire_cannot_forge_lines_of_the_report(worker: Worker) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        entry = _entry(client, digest=bytes(32), name="a\nloaded 9 9\x00b\x7f")
        assert client.load([entry]) == [NO_SUCH_HASH]
    assert worker.report is not None
    worker.report.wait("loaded")
    assert worker.lines[1:3] == ["miss no-such-hash a?loaded 9 9", "loaded 0 0"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(7),
        struct.pack("<II", 1, 0),
        struct.pack("<II", 1, 0) + bytes(139),
        struct.pack("<II", 2, 0) + bytes(140),
        struct.pack("<II", 1, 0) + bytes(280),
        struct.pack("<II", (1 << 32) - 1, 0) + bytes(140),
        struct.pack("<II", 4097, 0) + bytes(4097 * 140),
    ],
)
def test_a_message_that_is_wrong_ends_the_connection_and_nothing_else(worker: Worker, body: bytes) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        with pytest.raises(EOFError):
            client.ask(rpc.SET_TENSOR_GGUF, body)
    with RpcClient(worker.port) as client:
        client.hello()
        assert client.load([_entry(client)]) == [OK]


def test_a_message_that_says_it_is_huge(worker: Worker) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        client.socket.sendall(struct.pack("<BQ", rpc.SET_TENSOR_GGUF, 1 << 40))
        with pytest.raises(EOFError):
            client.receive(1)
    assert "are allowed" in worker.output


def test_the_most_entries_that_are_allowed(worker: Worker) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        assert client.load([_entry(client)] * 4096) == [OK] * 4096
        assert client.load([]) == []


@pytest.mark.parametrize("extended", [False, True])
def test_without_the_feature_the_command_does_not_exist(worker: Worker, extended: bool) -> None:
    with RpcClient(worker.port) as client:
        client.hello(extended=extended, features=0)
        with pytest.raises(EOFError):
            client.load([])


START = b"meshd-weights 1\n"
FILE = START + b"file 0 -1 1000 1 2 3\n"
TENSOR = b"tensor 0 0 100 200 " + b"0" * 64 + b" blk.0.x weight\n"
END = b"end\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "the last line is not `end`"),
        (b"meshd-weights 2\nend\n", "line 1: not a weights index of version 1"),
        (START, "the last line is not `end`"),
        (START + b"end", "line 2: too long, or not ended"),
        (START + b"end\nend\n", "line 3: there is more after the end"),
        (START + b"what\nend\n", "line 2: neither a file nor a tensor"),
        (START + b"x" * 5000 + b"\nend\n", "line 2: too long"),
        (START + b"file 1 -1 1 1 1 1\nend\n", "line 2: files are numbered from 0"),
        (START + b"file 0 -1 1 1 1\nend\n", "line 2: a file has"),
        (START + b"file 0 -2 1 1 1 1\nend\n", "line 2: a file has"),
        (START + b"file 0 1 1 1 1 1\nend\n", "line 2: a file has"),
        (START + b"file 0 -1 9223372036854775808 1 1 1\nend\n", "line 2: a file has"),
        (START + b"file 0 -1 1 -9223372036854775809 1 1\nend\n", "line 2: a file has"),
        (START + b"file 0 -1 0x1 1 1 1\nend\n", "line 2: a file has"),
        (START + b"file 0 -1 1 1 1 18446744073709551616\nend\n", "line 2: a file has"),
        (START + TENSOR + END, "line 2: there is no file 0"),
        (FILE + TENSOR * 2 + END, "line 4: tensor `blk.0.x weight` is there twice"),
        (
            FILE + TENSOR.replace(b" 200 ", b" 901 ") + END,
            "line 3: tensor `blk.0.x weight` ends behind its file",
        ),
        (FILE + TENSOR.replace(b" 100 ", b" 18446744073709551615 ") + END, "ends behind its file"),
        (FILE + TENSOR.replace(b"00 blk", b"0g blk") + END, "line 3: a tensor has"),
        (FILE + TENSOR.replace(b"blk.0.x weight", b"") + END, "line 3: the name"),
    ],
)
def test_an_index_that_breaks_a_rule_stops_the_start(text: bytes, why: str) -> None:
    handed = Handed()
    number = handed.text(text)
    argv = [str(patched().binaries[RPC_SERVER]), "-p", "1", "--weights-fd", str(number)]
    try:
        done = subprocess.run(
            argv, pass_fds=handed.numbers, capture_output=True, text=True, timeout=30, check=False
        )
    finally:
        handed.close()
    assert done.returncode == 1
    assert why in done.stderr


def test_a_handle_of_ones_own_choice(worker: Worker) -> None:
    with RpcClient(worker.port) as client:
        client.hello(features=rpc.FEATURE_LOAD | rpc.FEATURE_ALLOC)
        handle, got = client.alloc_as(rpc.HANDLES_OWN - 1, 4096)
        assert got >= 4096
        assert client.base(handle) == handle, "no address of the server is told"
        entry = Entry(handle, handle + 512, SIZE, F32, (256, 1, 1, 1), DIGEST)
        assert client.load([entry]) == [OK]
        assert client.read(entry) == VALUES
        client.free(handle)
        assert client.alloc_as(rpc.HANDLES_OWN - 1, 4096) == (handle, got), "free again"


def test_addresses_tell_nothing_of_the_server(worker: Worker) -> None:
    with RpcClient(worker.port) as client:
        client.hello()
        buffers = [client.alloc(4096) for _ in range(3)]
        assert [client.base(buffer) for buffer in buffers] == buffers
        assert buffers == [(rpc.HANDLES_OWN + number) * rpc.HANDLE_SPACE for number in range(3)]


@pytest.mark.parametrize("number", [0, rpc.HANDLES_OWN, rpc.HANDLES_OWN + 1, 1 << 19, 0.5, 1])
def test_a_handle_that_nobody_may_choose_ends_the_connection(worker: Worker, number: float) -> None:
    with RpcClient(worker.port) as client:
        client.hello(features=rpc.FEATURE_LOAD | rpc.FEATURE_ALLOC)
        client.alloc_as(1, 64)
        with pytest.raises(EOFError):
            client.ask(rpc.ALLOC_BUFFER_AS, struct.pack("<IIQQ", 0, 0, 64, int(number * rpc.HANDLE_SPACE)))
    with RpcClient(worker.port) as client:
        client.hello()
        assert client.load([_entry(client)]) == [OK]


def test_who_did_not_announce_it_may_not_choose_handles(worker: Worker) -> None:
    with RpcClient(worker.port) as client:
        client.hello(features=rpc.FEATURE_LOAD)
        with pytest.raises(EOFError):
            client.alloc_as(1, 64)


# Questions about operations.

ADD, MUL_MAT, CUSTOM, NO_OPERATION = 2, 29, 95, 4000
Shape = tuple[int, int, int, int]


def _tensor(kind: int = F32, ne: Shape = (4, 1, 1, 1), nb: Shape = (4, 16, 16, 16)) -> bytes:
    return struct.pack("<I4I4I", kind, *ne, *nb)


def _ask(
    *operations: tuple[int, int], tensors: list[bytes], device: int = 0, count: int | None = None
) -> bytes:
    head = struct.pack("<4I", device, len(operations) if count is None else count, len(tensors), 0)
    entries = b"".join(struct.pack("<II64x", *operation) for operation in operations)
    return head + entries + b"".join(tensors)


def _asking(worker: Worker) -> RpcClient:
    client = RpcClient(worker.port)
    client.hello(features=rpc.FEATURE_INFO | rpc.FEATURE_OPS)
    client.devices()
    client.weight_ops()
    return client


def test_operations_are_answered_one_by_one(worker: Worker) -> None:
    """What nobody has, or what ggml itself would never make, is a no; the connection goes on."""
    wide = _tensor(ne=(1 << 31, 1 << 31, 1 << 31, 1 << 31))
    questions = [
        ((ADD, 0b11), [_tensor()] * 3, 1),
        ((ADD, 0b01), [_tensor()] * 2, 0),
        ((ADD, 0b11), [_tensor(), _tensor(), _tensor(ne=(3, 1, 1, 1))], 0),
        ((ADD, 0b11), [_tensor(kind=1000)] * 3, 0),
        ((ADD, 0b11), [wide] * 3, 0),
        ((MUL_MAT, 0b11), [_tensor(), _tensor(ne=(9, 1, 1, 1)), _tensor()], 0),
        ((CUSTOM, 0), [_tensor()], 0),
        ((NO_OPERATION, 0), [_tensor()], 0),
        ((ADD, 0b11), [_tensor()] * 3, 1),
    ]
    tensors = [tensor for _, some, _ in questions for tensor in some]
    with _asking(worker) as client:
        answer = client.ask(
            rpc.SUPPORTED_OPS, _ask(*(operation for operation, _, _ in questions), tensors=tensors)
        )
        assert list(answer) == [expected for *_, expected in questions]
        assert client.ask(rpc.SUPPORTED_OPS, _ask(tensors=[])) == b""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        _ask((ADD, 0b11), tensors=[_tensor()] * 3)[:-1],
        _ask((ADD, 0b11), tensors=[_tensor()] * 2),
        _ask((ADD, 0b11), tensors=[_tensor()] * 4),
        _ask((ADD, 0b11), tensors=[_tensor()] * 3, device=1),
        _ask((ADD, 0b11), tensors=[_tensor()] * 3, device=(1 << 32) - 1),
        _ask((ADD, 0b11), tensors=[_tensor()] * 3, count=2),
        _ask((ADD, 0b11), tensors=[_tensor()] * 3, count=(1 << 32) - 1),
        _ask((ADD, 1 << 10), tensors=[_tensor()] * 2),
        _ask((ADD, (1 << 32) - 1), tensors=[_tensor()] * 33),
    ],
    ids=range(10),
)
def test_a_question_that_is_wrong_ends_the_connection_and_nothing_else(worker: Worker, body: bytes) -> None:
    with _asking(worker) as client, pytest.raises(EOFError):
        client.ask(rpc.SUPPORTED_OPS, body)
    with _asking(worker) as client:
        assert client.ask(rpc.SUPPORTED_OPS, _ask((ADD, 0b11), tensors=[_tensor()] * 3)) == b"\1"


@pytest.mark.parametrize("features", [rpc.FEATURE_INFO, rpc.FEATURE_LOAD])
def test_who_did_not_announce_it_may_not_ask(worker: Worker, features: int) -> None:
    with RpcClient(worker.port) as client:
        client.hello(features=features)
        if features == rpc.FEATURE_INFO:
            client.devices()
        with pytest.raises(EOFError):
            client.ask(rpc.SUPPORTED_OPS, _ask((ADD, 0b11), tensors=[_tensor()] * 3))
