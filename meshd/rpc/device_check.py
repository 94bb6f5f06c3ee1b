"""Checks a worker's description of its devices for the head's llama-server.

llama-server reckons with the alignment of each device wherever it lays out a buffer: a number that is none
ends it. An honest worker's firewall checks what its rpc-server says; this is for one that is not honest.
"""

from meshd.rpc import protocol as rpc
from meshd.rpc.frames import WORKER, Messages
from meshd.rpc.tensors import refused

MOST_ALIGNMENT = 1 << 20  # bytes; backends have 16 to 16384
_HELLO_BYTES = 4 + rpc.CAPS_BYTES


class DeviceCheck:
    """Of one connection. Implements tunnel.interface.Inspector for the head's side: the worker answers."""

    def __init__(self) -> None:
        self._answers = Messages(rpc.ANSWER.size, WORKER)
        self._table_next = False
        self._over = False

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Requests pass."""
        return data

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Answers: those to HELLO are held back until all of each is there. Raises RemoteProtocolError."""
        return data if self._over else self._answers.feed(data, self._look)

    def _look(self, data: bytes | memoryview, at: int, have: int) -> int:
        (size,) = rpc.ANSWER.unpack_from(data, at)
        length = rpc.ANSWER.size + int(size)
        if self._over or (not self._table_next and size != _HELLO_BYTES):
            self._over = True
            return length
        if self._table_next and (
            size % rpc.DEVICE_INFO_BYTES or size > rpc.MAX_INFO_DEVICES * rpc.DEVICE_INFO_BYTES
        ):
            raise refused(f"a table of devices of {size} bytes")
        if have < length:
            return -length
        body = at + rpc.ANSWER.size
        if self._table_next:
            self._check(data, body, body + int(size))
            self._over = True
        else:
            self._table_next = bool(rpc.features_of(data, body + 4) & rpc.FEATURE_INFO)
            self._over = not self._table_next
        return length

    def _check(self, data: bytes | memoryview, at: int, end: int) -> None:
        for device in range(at, end, rpc.DEVICE_INFO_BYTES):
            (alignment,) = rpc.U64.unpack_from(data, device)
            if not 0 < alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
                raise refused(f"a device with an alignment of {alignment} bytes")
