"""Lets a stock rpc-server load weights by content.

To a patched head the server seems to know SET_TENSOR_GGUF. Such a request is taken out here; the tunnel,
which has the files, turns each tensor of it into SET_TENSOR, and says what became of it. Meanwhile nothing
else is on its way to the server, so its answers stay in order.
"""

import struct
from dataclasses import dataclass

from meshd.rpc import protocol as rpc
from meshd.rpc.frames import HEAD, WORKER, Messages
from meshd.rpc.tensors import dense_strides

_TENSOR = struct.Struct("<QIQ4I4I168xQ64s4x")  # id, type, buffer, ne, nb, data, name


@dataclass(frozen=True, slots=True)
class Wanted:
    """A whole, contiguous tensor of the server; `digest` is BLAKE3-256 of its content, `size` in bytes."""

    digest: bytes
    kind: int
    size: int
    tensor: bytes

    def piece(self, offset: int, data: bytes) -> bytes:
        """The request that writes `data` at `offset` of the tensor."""
        body = self.tensor + struct.pack("<BQ", 0, offset)
        return rpc.REQUEST.pack(rpc.SET_TENSOR, len(body) + len(data)) + body + data


@dataclass(frozen=True, slots=True)
class Load:
    """One request for tensors; the answer has a byte for each (LOADED, NO_SUCH_HASH, …).

    It is given when the server has sent `answers_before` answers, on this connection.
    """

    wanted: tuple[Wanted, ...]
    answers_before: int


def loaded(states: bytes) -> bytes:
    """The answer to a Load."""
    return rpc.ANSWER.pack(len(states)) + states


class Filling:
    """One connection. It trusts what it reads: the firewall stands before it."""

    def __init__(self) -> None:
        self._requests = Messages(rpc.REQUEST.size, HEAD)
        self._answers = Messages(rpc.ANSWER.size, WORKER)
        self._asked = 0  # requests that are answered
        self._answered = 0
        self._loads: list[tuple[int, int, Load]] = []  # where they lie in what is fed
        self._wants = False  # the head announced that it may ask
        self._greetings: list[int] = []  # where the features of HELLO's answer lie in what is fed
        self._greeted = False

    def has_answered(self, count: int) -> bool:
        """The server has sent that many answers, and not a part of another."""
        return self._answered >= count and self._answers.between

    def requests(self, data: bytes | memoryview) -> list[bytes | memoryview | Load]:
        """What goes to the server, in order, and what has to be done between."""
        self._loads.clear()
        passed = self._requests.feed(data, self._look_request)
        parts: list[bytes | memoryview | Load] = []
        begin = 0
        for at, end, load in self._loads:
            parts += [passed[begin:at], load]
            begin = end
        return [*parts, passed[begin:]]

    def answers(self, data: bytes | memoryview) -> bytes | memoryview:
        """What goes to the head: with the feature in the answer to HELLO, if the head knows it."""
        self._greetings.clear()
        passed = self._answers.feed(data, self._look_answer)
        for at in self._greetings:
            changed = bytearray(passed)
            struct.pack_into("<2sH", changed, at, rpc.EXTENSION_MAGIC, rpc.FEATURE_LOAD)
            passed = bytes(changed)
        return passed

    def _look_request(self, data: bytes | memoryview, at: int, have: int) -> int:
        number, size = rpc.REQUEST.unpack_from(data, at)
        length = rpc.REQUEST.size + int(size)
        body = at + rpc.REQUEST.size
        if number == rpc.SET_TENSOR_GGUF:
            if have < length:
                return -length
            entries = range(body + rpc.LOAD_HEAD_BYTES, at + length, rpc.LOAD_ENTRY_BYTES)
            wanted = tuple(_wanted(bytes(data[entry : entry + rpc.LOAD_ENTRY_BYTES])) for entry in entries)
            self._loads.append((at, at + length, Load(wanted, self._asked)))
            return length
        if number == rpc.HELLO:
            if have < length:
                return -length
            self._wants = bool(rpc.features_of(data, body) & rpc.FEATURE_LOAD)
        self._asked += rpc.COMMANDS[number].answer != rpc.NO_ANSWER
        return length

    def _look_answer(self, data: bytes | memoryview, at: int, have: int) -> int:
        (size,) = rpc.ANSWER.unpack_from(data, at)
        length = rpc.ANSWER.size + int(size)
        if not self._greeted:
            if have < length:
                return -length
            self._greeted = True
            if self._wants:
                self._greetings.append(at + rpc.ANSWER.size + 4 + rpc.CAPS_OWN)
        self._answered += 1
        return length


def _wanted(entry: bytes) -> Wanted:
    buffer, data, size, kind, *ne = rpc.LOAD_ENTRY.unpack(entry)
    tensor = _TENSOR.pack(1, kind, buffer, *ne, *dense_strides(kind, ne), data, entry[rpc.LOAD_NAME])
    return Wanted(entry[rpc.LOAD_HASH], kind, size, tensor)
