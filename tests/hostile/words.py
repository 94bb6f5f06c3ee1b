"""Every message of the wire, found by looking: a new one is spoken without a line here.

A message is a dataclass of `meshd.wire` that something there turns into bytes: its `encode` or `to_bytes`, or
a function of one argument whose annotation names it. Good ones are searched for by what decoding says.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import random
import re
import struct
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import meshd.wire
from meshd.base.errors import LocalProtocolError, MeshdError
from meshd.wire.address import ScopedCandidate
from meshd.wire.frame import Data, FrameParser, data_header

from tests.fuzz.mutate import either
from tests.hostile.draw import Draw, hints_of

# What building or packing a value may answer that cannot be sent.
UNSAYABLE = (LocalProtocolError, MeshdError, ValueError, OverflowError, TypeError, struct.error)
_BYTES = re.compile(r"(\d{1,4}) bytes")
_STARTS = 1000  # of one message in 20 goes on to a good one, of the others more
_TRIES = 2000  # from each start, until a message is good
_KEPT = 12  # good ones of each


@dataclass(frozen=True, slots=True)
class Word:
    """A message's type, into bytes and back; `decode` is None where nobody reads it as a message."""

    kind: type
    encode: Callable[[object], bytes]
    decode: Callable[[bytes], object] | None

    @property
    def name(self) -> str:
        """`lease.Acquire`."""
        return f"{self.kind.__module__.rpartition('.')[2]}.{self.kind.__name__}"


def _modules() -> Iterator[types.ModuleType]:
    for found in pkgutil.iter_modules(meshd.wire.__path__):
        yield importlib.import_module(f"{meshd.wire.__name__}.{found.name}")


def wire_types() -> list[type]:
    """All dataclasses of the wire."""
    return [
        value
        for module in _modules()
        for value in vars(module).values()
        if inspect.isclass(value) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__
    ]


def members(annotation: object) -> tuple[object, ...]:
    """Return the members of a union; of anything else that itself."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def parts(kind: type) -> set[object]:
    """The dataclasses of its fields, at any depth."""
    found: set[object] = set()
    waiting: list[object] = list(typing.get_type_hints(kind).values())
    while waiting:
        one = waiting.pop()
        waiting += typing.get_args(one)
        if inspect.isclass(one) and dataclasses.is_dataclass(one) and one not in found:
            found.add(one)
            waiting += typing.get_type_hints(one).values()
    return found


def _functions(returns: Callable[[object], bool]) -> Iterator[tuple[object, Callable[..., object]]]:
    """Public functions of the wire by the annotation of their first and only needed argument."""
    for module in _modules():
        for name, value in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(value) or value.__module__ != module.__name__:
                continue
            hints = typing.get_type_hints(value)
            needed = [
                one.name for one in inspect.signature(value).parameters.values() if one.default is one.empty
            ]
            if len(needed) == 1 and returns(hints.get("return")):
                yield hints[needed[0]], value


def _read_frame(data: bytes) -> object:
    return FrameParser().feed(data)


def _write_data(frame: object) -> bytes:
    assert isinstance(frame, Data)
    return data_header(frame.stream_id, frame.offset, len(frame.payload), frame.fin) + bytes(frame.payload)


def catalogue() -> tuple[Word, ...]:
    """All messages, in the order of their modules."""
    writers = list(_functions(lambda annotation: annotation is bytes))
    readers = [
        (value, hint)
        for module in _modules()
        for name, value in vars(module).items()
        if name.startswith("decode") and inspect.isfunction(value) and value.__module__ == module.__name__
        for hint in [typing.get_type_hints(value)["return"]]
    ]
    words = []
    for kind in wire_types():
        write = _method(kind, "encode", "to_bytes")
        if write is None:
            write = next((value for hint, value in writers if kind in members(hint)), None)
        if kind is Data:  # its head and its payload are written apart, which spares a copy
            write = _write_data
        if write is None or kind is ScopedCandidate:  # which is never said
            continue
        read = _method(kind, "decode", "from_bytes")
        if read is None and kind.__module__.endswith(".frame"):
            read = _read_frame
        elif read is None:
            read = next((value for value, hint in readers if kind in members(hint)), None)
        words.append(Word(kind, typing.cast(Callable[[object], bytes], write), read))
    return tuple(words)


def _method(kind: type, *names: str) -> Callable[..., object] | None:
    return next((getattr(kind, name) for name in names if hasattr(kind, name)), None)


class Speech:
    """Says words: good ones, nearly good ones and broken ones. The same for the same seed."""

    def __init__(self, rng: random.Random, draw: Draw, words: Sequence[Word] | None = None) -> None:
        self.broken = 0.65  # of what is said
        self._rng = rng
        self._draw = draw
        self._mild = Draw(rng, draw.pool, wild=0.0)
        self.words = {word.name: word for word in (words if words is not None else catalogue())}
        # each from when it is first said: the search for some takes seconds, and most runs say few
        self._good: dict[str, list[object]] = {}
        self._samples: dict[str, list[bytes]] = {}
        self._by_module: dict[str, list[str]] = {}
        for name in self.words:
            self._by_module.setdefault(name.partition(".")[0], []).append(name)

    def good(self, name: str) -> object:
        """A value that its readers take."""
        if name not in self._good:
            self._good[name] = self._search(self.words[name])
        return self._rng.choice(self._good[name])

    def samples(self, name: str) -> list[bytes]:
        """Return all good ones that were found, in bytes."""
        if name not in self._samples:
            self.good(name)
            self._samples[name] = [self.words[name].encode(one) for one in self._good[name]]
        return self._samples[name]

    def of(self, *modules: str) -> str:
        """The name of any message of these modules."""
        return self._rng.choice([name for module in modules for name in self._by_module[module]])

    def say(self, name: str) -> bytes:
        """One message: as good as it gets, with fields redrawn, or broken as bytes or inside."""
        if self._rng.random() >= self.broken:
            return self._rng.choice(self.samples(name))
        if self._rng.random() < 0.5:
            word = self.words[name]
            try:
                return word.encode(self._changed(self.good(name), 1 + self._rng.randrange(2)))
            except UNSAYABLE:
                pass
        return either(self._rng, self._rng.choice(self.samples(name)), self.samples(name))

    def _changed(
        self, value: object, count: int, draw: Draw | None = None, names: Sequence[str] = ()
    ) -> object:
        """`value` with fields redrawn: those of `names` that it has, or any."""
        assert dataclasses.is_dataclass(value) and not isinstance(value, type)
        hints = hints_of(type(value))
        if not hints:
            return value
        names = [name for name in names if name in hints] or self._rng.choices(list(hints), k=count)
        return dataclasses.replace(value, **{name: (draw or self._draw)(hints[name]) for name in names})

    def _search(self, word: Word) -> list[object]:
        """A good one, and others that are a field apart from it."""
        found = [self._search_one(word)]
        for _ in range(20 * _KEPT):
            try:
                other = self._changed(self._rng.choice(found), 1, self._mild)
            except UNSAYABLE:
                continue
            if not self._why_not(word, other):
                found.append(other)
            if len(found) == _KEPT:
                break
        return found

    def _search_one(self, word: Word) -> object:
        """Redraw field after field: what refuses names another one once a field is right."""
        why = "it cannot be built"
        for _ in range(_STARTS):
            try:
                value = self._mild.instance(word.kind)
            except UNSAYABLE:
                continue
            self._mild.asked = None
            why, solved = self._why_not(word, value), set[str]()
            for _ in range(_TRIES):
                if not why:
                    return value
                asked = _BYTES.search(why)
                self._mild.asked = int(asked[1]) if asked else None
                blamed = why.split("`")[1:2] if self._rng.random() < 0.7 else []
                try:
                    other = self._changed(value, 1, self._mild, blamed)
                except UNSAYABLE:
                    continue
                now = self._why_not(word, other)
                if not now or (now != why and now not in solved):
                    solved.add(why)
                    value, why = other, now
        raise AssertionError(f"no good {word.name} was found: {why}")

    @staticmethod
    def _why_not(word: Word, value: object) -> str:
        try:
            data = word.encode(value)
            if word.decode is not None:
                word.decode(data)
        except UNSAYABLE as error:
            return str(error) or type(error).__name__
        return ""


def replaced(word: Word, **fields: object) -> Callable[[object], bytes]:
    """Encodes a value with these fields in place of its own."""
    return partial(_encode_with, word, fields)


def _encode_with(word: Word, fields: dict[str, object], value: object) -> bytes:
    assert dataclasses.is_dataclass(value) and not isinstance(value, type)
    return word.encode(dataclasses.replace(value, **fields))
