"""Lets a stock llama-server load weights by content.

It sends every weight as data. Here those that the index of the model file has are taken out; the tunnel,
which has the file, compares what flows past with it, and asks the worker to fill the tensor from its own file
instead (SET_TENSOR_GGUF). Questions are answered from what is known (answers.py). Whether the worker has a
hash (SET_TENSOR_HASH) is denied: no rpc-server that meshd starts keeps a cache, the hash is too weak to go
by, and the data comes over the local socket only.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshd.model.weights_index import TensorEntry
from meshd.rpc import protocol as rpc
from meshd.rpc.answers import CHANGES_MEMORY, QUESTIONS, KnownAnswers
from meshd.rpc.frames import HEAD, WORKER, Messages
from meshd.rpc.tensors import TYPES, dense_strides, refused

ANNOUNCED = rpc.FEATURE_LOAD | rpc.FEATURE_INFO
_HEAD_BYTES = rpc.REQUEST.size + rpc.SET_TENSOR_HEAD_BYTES
_NAME = slice(rpc.TENSOR_BYTES - 68, rpc.TENSOR_BYTES - 4)
_NO = b"\0"
_VERSION_BYTES = 4


@dataclass(frozen=True, slots=True)
class Begin:
    """A weight begins: `request` is all of SET_TENSOR before its data, which follow as Data.

    `entry` asks for it by content. `missed` says why the worker cannot be asked; then all of it, the request
    too, follows as bytes that go on.
    """

    tensor: TensorEntry
    request: bytes
    entry: bytes
    missed: str = ""


@dataclass(frozen=True, slots=True)
class TensorData:
    """Of the weight that began last, in order."""

    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Settle:
    """Every weight so far has to be on its way to the worker, for what follows may need it."""


@dataclass(frozen=True, slots=True)
class ImmediateReply:
    """For the client, at once: it waits for nothing else."""

    data: bytes


@dataclass(frozen=True, slots=True)
class LoadStates:
    """The answer to the oldest `load`: what became of each entry."""

    states: bytes


Part = bytes | memoryview | Begin | TensorData | Settle | ImmediateReply


@dataclass(frozen=True, slots=True)
class _Awaited:
    """An answer that will come. `size` 0: any. `silent`: the client does not get it."""

    number: int
    size: int = 0
    question: bytes = b""
    age: int = 0
    silent: bool = False


class Saving:
    """One connection: the client is our own llama-server, the worker a member that may lie."""

    def __init__(self, tensors: Mapping[str, TensorEntry], answers: KnownAnswers) -> None:
        """`tensors` by name; `answers` are shared by all connections to this worker."""
        self._tensors = tensors
        self._answers = answers
        self._requests = Messages(rpc.REQUEST.size, HEAD)
        self._replies = Messages(rpc.ANSWER.size, WORKER)
        self._seen: list[tuple[int, int, int, bytes | Begin]] = []  # where in what is fed, command, more
        self._unsettled = False
        self._left = 0  # bytes of a weight that have yet to come
        self._awaited: deque[_Awaited] = deque()
        self._told: list[
            tuple[int, int, bytes | LoadStates]
        ] = []  # where in what is fed, and what goes instead

    # Requests.

    def requests(self, data: bytes | memoryview) -> Iterator[Part]:
        """What is to be done, in order: do each before the next, to the end. Raises RemoteProtocolError."""
        self._seen.clear()
        passed = self._requests.feed(data, self._look_request)
        begin = min(self._left, len(passed))
        if begin:
            self._left -= begin
            yield TensorData(passed[:begin])
        for at, end, number, more in list(self._seen):
            if isinstance(more, Begin) and not more.missed:
                yield from self._plain(passed[begin:at])
                yield more
                self._unsettled = True
                begin = min(end, len(passed))
                self._left = end - begin
                if at + _HEAD_BYTES < begin:
                    yield TensorData(passed[at + _HEAD_BYTES : begin])
                continue
            yield from self._plain(passed[begin:at])
            if isinstance(more, Begin):
                yield more
            elif number in CHANGES_MEMORY:
                self._answers.changed()
            body = more if isinstance(more, bytes) else b""
            if (known := self._known(number, body)) is not None:
                yield ImmediateReply(_answer(known))
            elif number == rpc.HELLO:
                yield from self._greet(body)
            else:
                yield from self._plain(passed[at:end], awaited=self._awaits(number, body))
            begin = min(end, len(passed))
        yield from self._plain(passed[begin:])

    def _plain(self, data: bytes | memoryview, *, awaited: "_Awaited | None" = None) -> Iterator[Part]:
        """What goes on. Its answer is expected once it is sent: behind those for weights."""
        if self._unsettled and len(data):
            self._unsettled = False
            yield Settle()
        if awaited is not None:
            self._awaited.append(awaited)
        if len(data):
            yield data

    def _greet(self, caps: bytes) -> Iterator[Part]:
        caps = caps[: rpc.CAPS_OWN] + rpc.EXTENSION_MAGIC + ANNOUNCED.to_bytes(2, "little")
        known = self._answers.hello
        size = rpc.COMMANDS[rpc.HELLO].answer
        awaited = _Awaited(rpc.HELLO, size, age=self._answers.age, silent=bool(known))
        yield from self._plain(rpc.REQUEST.pack(rpc.HELLO, len(caps)) + caps, awaited=awaited)
        if known:
            yield ImmediateReply(_hello(known))

    def _known(self, number: int, body: bytes) -> bytes | None:
        """The answer, where it need not be asked for."""
        if not (number == rpc.SET_TENSOR_HASH or number in QUESTIONS):
            return None
        if not all(awaited.silent for awaited in self._awaited):
            return None  # another answer comes first
        return _NO if number == rpc.SET_TENSOR_HASH else self._answers.find(number, body)

    def _awaits(self, number: int, body: bytes) -> "_Awaited | None":
        answer = rpc.COMMANDS[number].answer
        if answer == rpc.NO_ANSWER:
            return None
        return _Awaited(number, answer, body, self._answers.age) if number in QUESTIONS else _Awaited(number)

    def load(self, entries: Sequence[bytes]) -> bytes:
        """The request for these, to be sent at once."""
        self._awaited.append(_Awaited(rpc.SET_TENSOR_GGUF, len(entries), silent=True))
        body = rpc.PAIR32.pack(len(entries), 0) + b"".join(entries)
        return rpc.REQUEST.pack(rpc.SET_TENSOR_GGUF, len(body)) + body

    def _look_request(self, data: bytes | memoryview, at: int, have: int) -> int:
        number, size = rpc.REQUEST.unpack_from(data, at)
        command = rpc.COMMANDS.get(number)
        if command is None or command.feature:
            raise refused(f"command {number}, of another version of llama.cpp")
        if size != command.least and not command.least < size <= command.most:
            raise refused(f"{command.name} of {size} bytes")
        length = rpc.REQUEST.size + int(size)
        if number == rpc.SET_TENSOR:
            if have < _HEAD_BYTES:
                return -_HEAD_BYTES
            if (weight := self._weight(bytes(data[at : at + _HEAD_BYTES]), length)) is not None:
                self._seen.append((at, at + length, number, weight))
        elif command.answer != rpc.NO_ANSWER or number in CHANGES_MEMORY:
            held = number in QUESTIONS or number in (rpc.HELLO, rpc.SET_TENSOR_HASH)
            if held and have < length:
                return -length
            body = bytes(data[at + rpc.REQUEST.size : at + length]) if held else b""
            self._seen.append((at, at + length, number, body))
        return length

    def _weight(self, head: bytes, length: int) -> Begin | None:
        body = head[rpc.REQUEST.size :]
        name = body[_NAME]
        tensor = self._tensors.get(name.split(b"\0")[0].decode(errors="replace"))
        if tensor is None:
            return None
        kind, buffer, *shape, data = rpc.PLACE.unpack_from(body)
        (offset,) = rpc.U64.unpack_from(body, rpc.TENSOR_BYTES + 1)
        size = length - len(head)
        same = (kind, size, offset) == (tensor.kind, tensor.size, 0)
        whole = same and buffer and size and _is_dense(kind, shape, size)
        entry = rpc.LOAD_ENTRY.pack(buffer, data, size, kind, *shape[:4])[: rpc.LOAD_HASH.start]
        missed = "" if whole else "tensor-not-in-index"
        return Begin(tensor, head, entry + tensor.digest + name, self._why_not() or missed)

    def _why_not(self) -> str:
        """Why this worker fills nothing."""
        caps = self._answers.hello[_VERSION_BYTES:]
        if not rpc.features_of(caps) & rpc.FEATURE_LOAD:
            is_patched = caps[rpc.CAPS_OWN :][:2] == rpc.EXTENSION_MAGIC
            return "worker-has-no-files" if is_patched else "stock-worker"
        return ""

    # Answers.

    def answers(self, data: bytes | memoryview) -> list[bytes | memoryview | LoadStates]:
        """What goes to the client, in order, and what became of weights. Raises RemoteProtocolError."""
        self._told.clear()
        passed = self._replies.feed(data, self._look_answer)
        parts: list[bytes | memoryview | LoadStates] = []
        begin = 0
        for at, end, told in self._told:
            parts += [passed[begin:at], told]
            begin = end
        return [part for part in (*parts, passed[begin:]) if isinstance(part, LoadStates) or len(part)]

    def _look_answer(self, data: bytes | memoryview, at: int, have: int) -> int:
        (size,) = rpc.ANSWER.unpack_from(data, at)
        length = rpc.ANSWER.size + int(size)
        if not self._awaited:
            raise refused("an answer to nothing")
        awaited = self._awaited[0]
        lesson = _LESSONS.get(awaited.number)
        if lesson is None:
            self._awaited.popleft()
            return length
        if awaited.number == _TABLE:
            known = size % rpc.DEVICE_INFO_BYTES == 0 and size <= rpc.MAX_INFO_DEVICES * rpc.DEVICE_INFO_BYTES
        else:
            known = size == awaited.size
        if not known:
            raise refused(f"an answer of {size} bytes, {awaited.size} were expected")
        if have < length:
            return -length
        self._awaited.popleft()
        body = bytes(data[at + rpc.ANSWER.size : at + length])
        instead = lesson(self, awaited, body)
        if instead is not None:
            self._told.append((at, at + length, instead))
        return length

    def _greeted(self, awaited: _Awaited, body: bytes) -> bytes:
        if self._answers.hello and self._answers.hello != body:
            raise refused("the rpc-server is not the same one as before")
        self._answers.hello = body
        if rpc.features_of(body, _VERSION_BYTES) & rpc.FEATURE_INFO:
            self._awaited.appendleft(_Awaited(_TABLE, age=awaited.age, silent=awaited.silent))
            return b""
        return b"" if awaited.silent else _hello(body)

    def _learn_table(self, awaited: _Awaited, body: bytes) -> bytes:
        self._answers.learn_table(body, age=awaited.age)
        return b"" if awaited.silent else _hello(self._answers.hello)

    def _learn(self, awaited: _Awaited, body: bytes) -> None:
        self._answers.learn(awaited.number, awaited.question, body, age=awaited.age)

    def _loaded(self, _awaited: _Awaited, body: bytes) -> LoadStates:
        return LoadStates(body)


_TABLE = -1  # no command: the table of devices comes behind the answer to HELLO
_LESSONS: Mapping[int, Callable[[Saving, _Awaited, bytes], bytes | LoadStates | None]] = {
    rpc.HELLO: Saving._greeted,
    rpc.SET_TENSOR_GGUF: Saving._loaded,
    _TABLE: Saving._learn_table,
    **dict.fromkeys(QUESTIONS, Saving._learn),
}


def _answer(body: bytes) -> bytes:
    return rpc.ANSWER.pack(len(body)) + body


def _hello(body: bytes) -> bytes:
    """The answer as a stock server gives it."""
    return _answer(body[:_VERSION_BYTES] + bytes(rpc.CAPS_BYTES))


def _is_dense(kind: int, shape: Sequence[int], size: int) -> bool:
    """Contiguous, as an entry of SET_TENSOR_GGUF is, and of this size."""
    block, block_bytes = TYPES.get(kind, (0, 0))
    if not block or shape[0] % block:
        return False
    dense = shape[0] // block * block_bytes * shape[1] * shape[2] * shape[3]
    return tuple(shape[4:]) == dense_strides(kind, shape) and dense == size
