"""What a head's daemon reads of llama-server's connection with a mesh-server: which weights were sent, and
which neighbours the worker has. Nothing is held back but WELCOME, LOAD and LOADED; where the head lacks
weights itself, the beginning of WRITE and FREE as well.
"""

from collections.abc import Callable

from meshd.rpc import mesh_protocol as wire
from meshd.rpc.absent_weights import AbsentWeights, AskedWeight
from meshd.rpc.frames import HEAD, MAX_UNANSWERED, MESH_SERVER, Messages, Seen, refused, unseen
from meshd.rpc.judging_budget import MESSAGE_TENSORS, PROGRESS_TENSORS, JudgingBudget
from meshd.rpc.mesh_firewall import look_header, read_welcome

Placed = Callable[[bytes, int, str], None]
"""Told of each weight that is asked for by content: hash, bytes, and why it is sent; empty: it is not."""
_Entries = tuple[AskedWeight, ...]
_WRITE, _FREE = wire.MESSAGES[wire.WRITE].body, wire.MESSAGES[wire.FREE].body
MAX_WEIGHTS_ASKED = 16_384  # weights whose answers have not come; of more nothing is said


class MeshHeadView:
    """Implements tunnel.interface.Inspector for the head's side: the peer is the worker.

    Raises RemoteProtocolError for what is no message, and then always. Holds one message, MAX_UNANSWERED ids
    and MAX_WEIGHTS_ASKED hashes.
    """

    def __init__(self, placed: Placed, *, seen: Seen = unseen, absent: AbsentWeights | None = None) -> None:
        """`seen` is told of every message; `absent` of weights, where the head lacks some."""
        self._absent = absent
        self._placed = placed
        self._seen = seen
        self._requests = Messages(wire.HEADER.size, HEAD)
        self._answers = Messages(wire.HEADER.size, MESH_SERVER)
        self._budget = JudgingBudget()
        self._asked: dict[int, _Entries | None] = {}  # by id of the LOAD; None: of too many, nothing is kept
        self._asked_count = 0
        self._welcomed = False
        self.neighbours: frozenset[int] = frozenset()
        """With which the worker has a connection, by their places in the head's list."""

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Requests. See Inspector."""
        return self._requests.feed(data, self._look_request)

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Answers. See Inspector."""
        return self._answers.feed(data, self._look_answer)

    def pause(self, now: float) -> float:
        """See Inspector: a worker says how far it is every few seconds, and not all the time."""
        return self._budget.pause(now)

    def _look_request(self, data: bytes | memoryview, at: int, have: int) -> int:
        message, size, identity = look_header(data, at, "head")
        if message.number == wire.LOAD:
            if have < wire.HEADER.size + size:
                return -(wire.HEADER.size + size)
            self._load(memoryview(data)[at + wire.HEADER.size : at + wire.HEADER.size + size], identity)
        elif self._absent is not None and message.number in (wire.WRITE, wire.FREE):
            if have < wire.HEADER.size + message.body.size:
                return -(wire.HEADER.size + message.body.size)
            self._look_buffer(self._absent, message.number, data, at + wire.HEADER.size, size)
        self._seen(message.number)
        return wire.HEADER.size + size

    @staticmethod
    def _look_buffer(
        absent: AbsentWeights, number: int, data: bytes | memoryview, body: int, size: int
    ) -> None:
        if number == wire.FREE:
            absent.freed(*_FREE.unpack_from(data, body))
        else:
            buffer, _row, offset = _WRITE.unpack_from(data, body)
            absent.written(buffer, offset, size - _WRITE.size)

    def _load(self, body: memoryview, identity: int) -> None:
        if len(body) % wire.LOAD_ENTRY.size:
            raise refused("a part of an entry")
        if identity in self._asked:
            return  # which the worker's firewall refuses, as it does more than so many
        if len(self._asked) >= MAX_UNANSWERED:
            raise refused(f"more than {MAX_UNANSWERED} requests without an answer")
        count = len(body) // wire.LOAD_ENTRY.size
        if self._asked_count + count > MAX_WEIGHTS_ASKED:
            self._asked[identity] = None
            if self._absent is not None:
                self._absent.uncounted()
            return
        entries = tuple(
            AskedWeight(digest, size, buffer, offset)
            for buffer, _kind, offset, size, digest in wire.LOAD_ENTRY.iter_unpack(body)
        )
        if self._absent is not None:
            self._absent.asked(entries)
        self._asked[identity] = entries
        self._asked_count += count

    def _look_answer(self, data: bytes | memoryview, at: int, have: int) -> int:
        message, size, identity = look_header(data, at, "worker")
        if have < wire.HEADER.size + size and message.number in (wire.WELCOME, wire.LOADED):
            return -(wire.HEADER.size + size)
        self._budget.spend(PROGRESS_TENSORS if message.number == wire.PROGRESS else MESSAGE_TENSORS)
        if message.number in (wire.WELCOME, wire.LOADED):
            body = at + wire.HEADER.size
            if message.number == wire.WELCOME:
                if self._welcomed:
                    raise refused("a second WELCOME")
                self._welcomed = True
                self.neighbours = read_welcome(data, body, size).neighbours
            else:
                self._loaded(bytes(data[body : body + size]), identity)
        self._seen(message.number)
        return wire.HEADER.size + size

    def _loaded(self, results: bytes, identity: int) -> None:
        if identity not in self._asked:
            raise refused("LOADED that nobody asked for")
        entries = self._asked.pop(identity)
        if entries is None:
            return
        self._asked_count -= len(entries)
        if len(entries) != len(results) or max(results, default=0) >= len(wire.LOAD_RESULTS):
            raise refused("LOADED with other results than were asked for")
        for entry, result in zip(entries, results, strict=True):
            if result and self._absent is not None:
                self._absent.missed(entry)
            why = wire.LOAD_RESULTS[result].replace("-", "_")
            self._placed(entry.digest, entry.size, why if result else "")
