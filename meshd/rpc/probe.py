"""The few commands of llama.cpp's RPC protocol that tell what a server has.

A request is a command byte, the size of the payload (8 bytes, little endian) and the payload; an answer is
size and payload. Layouts: ggml/src/ggml-rpc/ggml-rpc.cpp of the pinned upstream, protocol 7.0.
"""

import struct

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_DEVICES

RPC_ANSWER = struct.Struct("<Q")
MAX_ANSWER_BYTES = 1024  # more than any answer to these takes
RPC_REQUEST = struct.Struct("<BQ")
_GET_DEVICE_MEMORY, _HELLO, _DEVICE_COUNT = 11, 14, 15
_CAPS_BYTES = 24  # of HELLO: capabilities of other transports than TCP, none of which is ours


def hello() -> bytes:
    """Return a client's first request."""
    return _request(_HELLO, bytes(_CAPS_BYTES))


def device_count() -> bytes:
    """Return the request for the server's number of devices."""
    return _request(_DEVICE_COUNT, b"")


def device_memory(device: int) -> bytes:
    """Return a request for free and total bytes of device number `device`."""
    return _request(_GET_DEVICE_MEMORY, struct.pack("<I", device))


def read_hello(answer: bytes) -> tuple[int, int, int]:
    """Return the version of the server's protocol. Raises RemoteProtocolError."""
    major, minor, patch, _ = _unpack("<4B", answer[:4], "HELLO")
    return major, minor, patch


def read_count(answer: bytes) -> int:
    """Return the number of devices. Raises RemoteProtocolError for more than MAX_DEVICES, or none."""
    (count,) = _unpack("<I", answer, "DEVICE_COUNT")
    if not 0 < count <= MAX_DEVICES:
        raise RemoteProtocolError(f"the rpc-server has {count} devices, expected 1 to {MAX_DEVICES}")
    return count


def read_memory(answer: bytes) -> tuple[int, int]:
    """Return the free and the total bytes of a device. Raises RemoteProtocolError."""
    free, total = _unpack("<QQ", answer, "GET_DEVICE_MEMORY")
    if total >= 1 << 60 or free >= 1 << 60:
        raise RemoteProtocolError("the rpc-server reports an impossible amount of memory")
    return free, total


def _request(command: int, payload: bytes) -> bytes:
    return RPC_REQUEST.pack(command, len(payload)) + payload


def _unpack(layout: str, answer: bytes, what: str) -> tuple[int, ...]:
    if len(answer) != struct.calcsize(layout):
        raise RemoteProtocolError(
            f"the rpc-server's answer to {what} has {len(answer)} bytes",
            hint="check that it is llama.cpp's rpc-server",
        )
    return struct.unpack(layout, answer)
