"""A client of llama.cpp's RPC protocol that sends what a test says, true or broken."""

import contextlib
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from meshd.rpc import protocol as rpc

F32, Q4_1 = 0, 3  # ggml types
MAGIC = b"\x4d\x44"
# what a patched server announces without files, too
ALWAYS = rpc.FEATURE_INFO | rpc.FEATURE_ALLOC | rpc.FEATURE_OPS | rpc.FEATURE_F16


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A line of the table behind HELLO; sizes in bytes."""

    alignment: int
    max_size: int
    free: int
    total: int
    alloc_rule: int
    wants_init: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of SET_TENSOR_GGUF; addresses are the server's."""

    buffer: int
    data: int
    size: int
    kind: int
    shape: tuple[int, int, int, int]
    digest: bytes
    name: str = "tensor"

    def tensor(self) -> bytes:
        """It as an rpc_tensor; it must be F32 with one row."""
        strides = [4, 4 * self.shape[0], 4 * self.shape[0], 4 * self.shape[0]]
        tensor = struct.pack("<QIQ4I4I", 1, self.kind, self.buffer, *self.shape, *strides)
        tensor += bytes(4 + 64 + 4 + 80 + 8 + 8) + struct.pack("<Q", self.data) + bytes(64 + 4)
        assert len(tensor) == 296
        return tensor

    def encode(self) -> bytes:
        name = self.name.encode()[:63].ljust(64, b"\0")
        head = struct.pack("<QQQI4I", self.buffer, self.data, self.size, self.kind, *self.shape)
        return head + self.digest + name


class RpcClient:
    """One connection. Methods raise EOFError when the server closes it instead of answering."""

    def __init__(self, port: int, *, secret: bytes = b"", timeout: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(secret)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = b""
            with contextlib.suppress(ConnectionResetError):
                part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def send(self, command: int, body: bytes) -> None:
        self.say(struct.pack("<BQ", command, len(body)) + body)

    def say(self, messages: bytes) -> None:
        """Whole messages, or what a test wants them to be."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the answer, or its absence, tells
            self.socket.sendall(messages)

    def ask(self, command: int, body: bytes = b"") -> bytes:
        self.send(command, body)
        (size,) = struct.unpack("<Q", self.receive(8))
        return self.receive(size)

    def hello(self, *, extended: bool = True, features: int = rpc.FEATURE_LOAD) -> int | None:
        """The features that the server announces, None when it announces none at all."""
        tail = MAGIC + struct.pack("<H", features) if extended else bytes(4)
        answer = self.ask(rpc.HELLO, bytes(20) + tail)
        assert len(answer) == 28, answer
        assert answer[:2] == b"\x07\x00", "protocol 7.0"
        if answer[24:26] != MAGIC:
            return None
        (seen,) = struct.unpack("<H", answer[26:28])
        assert isinstance(seen, int)
        return seen

    def devices(self) -> list[DeviceInfo]:
        """The table that comes behind HELLO to who announced FEATURE_INFO."""
        (size,) = struct.unpack("<Q", self.receive(8))
        rows = struct.iter_unpack("<QQQQB?6x", self.receive(size))
        return [DeviceInfo(*row) for row in rows]

    def weight_ops(self) -> dict[int, tuple[int, int]]:
        """Behind that, with FEATURE_OPS: by operation, bits of types: those known, those possible."""
        (size,) = struct.unpack("<Q", self.receive(8))
        rows = struct.iter_unpack("<IIQQ", self.receive(size))
        return {operation: (known, types) for operation, _, known, types in rows}

    def alloc_as(self, number: int, size: int, device: int = 0) -> tuple[int, int]:
        """The handle with this number, and the bytes it got: 0 when it was refused."""
        handle = number * rpc.HANDLE_SPACE
        (got,) = struct.unpack(
            "<Q", self.ask(rpc.ALLOC_BUFFER_AS, struct.pack("<IIQQ", device, 0, size, handle % (1 << 64)))
        )
        return handle, got

    def memory(self, device: int = 0) -> tuple[int, int]:
        """(free, total) in bytes."""
        free, total = struct.unpack("<QQ", self.ask(rpc.GET_DEVICE_MEMORY, struct.pack("<I", device)))
        return free, total

    def alloc(self, size: int, device: int = 0) -> int:
        """The buffer, 0 when it was refused."""
        pointer, _ = struct.unpack("<QQ", self.ask(rpc.ALLOC_BUFFER, struct.pack("<IQ", device, size)))
        assert isinstance(pointer, int)
        return pointer

    def base(self, buffer: int) -> int:
        (address,) = struct.unpack("<Q", self.ask(rpc.BUFFER_GET_BASE, struct.pack("<Q", buffer)))
        assert isinstance(address, int)
        return address

    def free(self, buffer: int) -> None:
        self.send(rpc.FREE_BUFFER, struct.pack("<Q", buffer))

    def load(self, entries: Sequence[Entry], *, count: int | None = None) -> list[int]:
        """The status of each entry; `count` says another number of entries than there are."""
        body = struct.pack("<II", len(entries) if count is None else count, 0)
        return list(self.ask(rpc.SET_TENSOR_GGUF, body + b"".join(entry.encode() for entry in entries)))

    def read(self, entry: Entry) -> bytes:
        """The content of the tensor, which must be F32 with one row."""
        return self.ask(rpc.GET_TENSOR, entry.tensor() + struct.pack("<QQ", 0, entry.size))
