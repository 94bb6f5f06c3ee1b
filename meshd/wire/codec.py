"""Messages to plain values and back, by the annotations of their fields (limits.py).

A class is compiled once, when its first message comes or goes, to a plan: what to call for each field. What
comes from a peer is checked completely: unknown fields are left alone (later versions add some); missing,
mistyped and oversized ones raise RemoteProtocolError (code `message`) that names message and field. Types
are strict: true is no integer, and a float is finite. No list is read before its length was checked. Only for
values of this user's own daemon (admin/codec.py) does a declaration without bounds compile.
"""

import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import (
    BESIDE,
    INLINE,
    MAX_CONTROL_BYTES,
    MAX_TAG_BYTES,
    NEEDED,
    OMIT,
    OR_NULL,
    ROW,
    As,
    AtMost,
    Between,
    Check,
    Items,
    Misfit,
    Name,
    Otherwise,
    Size,
    Spread,
    Text,
)
from meshd.wire.message import pack_message, plain, unpack_map

T = TypeVar("T")
M = TypeVar("M")
Read = Callable[..., object]
_ABSENT = object()
_MUST = object()  # in place of a default: the field must be there


class Message:
    """Base of messages: `tag` is the value of the field `key`, which stands at `place` among the fields.

    Messages of a format without tags have none.
    """

    __slots__ = ()
    tag = ""
    tag_key = "type"
    tag_place = 0

    def __init_subclass__(cls, *, tag: str = "", key: str = "", place: int | None = None) -> None:
        """Register the given tag; `slots=True` creates the same class once more, with nothing given."""
        if tag:
            cls.tag = tag
        if key:
            cls.tag_key = key
        if place is not None:
            cls.tag_place = place

    def encode(self) -> bytes:
        """Return the message as msgpack."""
        plan = _PLANS.get(type(self)) or plan_of(type(self))
        return pack_message(plan.write(self))


class Family(Generic[M]):
    """The messages of one conversation, told apart by their tags."""

    def __init__(self, name: str, union: object, *, limit: int = MAX_CONTROL_BYTES) -> None:
        """Take the classes of `union`; `name` is for errors, `limit` the most bytes of a message."""
        kinds: tuple[type[Message], ...] = typing.get_args(union) or (union,)
        self._name = name
        self._kinds = {kind.tag: kind for kind in kinds}
        self._key = kinds[0].tag_key
        self._limit = limit

    def decode(self, data: bytes | memoryview) -> M:
        """Read one message. Raises RemoteProtocolError (code `message`)."""
        values = unpack_map(data, limit=self._limit)
        message = self._read(values)
        if message is None:
            unknown = values[self._key]
            raise RemoteProtocolError(f"{self._name} message of unknown type `{unknown}`", code="message")
        return message

    def decode_known(self, data: bytes | memoryview) -> M | None:
        """Read one message; None for a type of a later version. Raises RemoteProtocolError."""
        return self._read(unpack_map(data, limit=self._limit))

    def _read(self, values: Mapping[str, object]) -> M | None:
        tag = values.get(self._key)
        if type(tag) is not str or tag not in self._kinds:
            try:
                _TAG.read(tag)
            except _Wrong as error:
                raise error.inside(self._key).error(f"a {self._name} message") from None
            return None
        kind = self._kinds[tag]
        return typing.cast(M, (_PLANS.get(kind) or plan_of(kind)).read(values))


def decode_as(kind: type[T], data: bytes | memoryview, *, limit: int = MAX_CONTROL_BYTES) -> T:
    """Read a message of a format without tags. Raises RemoteProtocolError (code `message`)."""
    return plan_of(kind).read(unpack_map(data, limit=limit))


class _Wrong(Exception):
    """A value of the wrong form: `expected` in its place, at `path`."""

    def __init__(self, expected: str, path: str = "", *, is_missing: bool = False) -> None:
        super().__init__(expected)
        self.expected = expected
        self.path = path
        self.is_missing = is_missing

    def inside(self, step: str) -> "_Wrong":
        """Return the same error, seen from the containing value."""
        dot = "" if not self.path or not step or self.path.startswith("[") else "."
        return _Wrong(self.expected, f"{step}{dot}{self.path}", is_missing=self.is_missing)

    def error(self, message: str) -> RemoteProtocolError:
        """Return the error for a peer and a log: the field is named first."""
        end = min((at for at in map(self.path.find, ".[") if at > 0), default=len(self.path))
        field, rest = self.path[:end], self.path[end:]
        where = f"field `{field}` of {message}" + (f": its `{rest}`" if rest else "")
        wrong = f"is missing: it must be {self.expected}" if self.is_missing else f"must be {self.expected}"
        return RemoteProtocolError(f"{where} {wrong}" if field else f"{message} {wrong}", code="message")


class _Form(NamedTuple):
    """The codec of one annotation; `write` is None where the value needs no conversion."""

    read: Read
    write: Read | None
    expected: str


class _Field(NamedTuple):
    """A field of a class, and its `names` on the wire.

    `is_whole`: it is read from all values of the message, and writes several.
    """

    attr: str
    names: tuple[str, ...]
    form: _Form
    default: object
    is_whole: bool = False
    is_omitted: bool = False  # while None
    is_beside: bool = False  # the row of its class
    before: str = ""  # the field before which it stands

    @property
    def name(self) -> str:
        """The field's name, for errors."""
        return "" if self.is_whole else self.names[0]


class Plan(Generic[T]):
    """The codec of one class."""

    def __init__(self, kind: type[T], *, is_bounded: bool) -> None:
        self._kind = kind
        self.fields = tuple(_fields_of(kind, is_bounded=is_bounded))
        self._readers = tuple(
            (field_.name, field_.form.read, field_.default, field_.is_whole) for field_ in self.fields
        )
        names = [item.name for item in fields(kind) if item.kw_only]  # type: ignore[arg-type]
        self._attrs = tuple(field_.attr for field_ in self.fields) if names else ()
        self._conflict: Callable[[T], str] | None = getattr(kind, "conflict", None)
        self._tag: str = getattr(kind, "tag", "")
        self.write = self._writer()

    @property
    def form(self) -> _Form:
        """The codec of this class as a part of another class."""
        return _Form(self.read_part, self.write, "a map")

    def read(self, values: object) -> T:
        """Return the value of these fields. Raises RemoteProtocolError that names the first wrong one."""
        try:
            return self.read_part(values)
        except _Wrong as error:
            raise error.error(self._tag or self._kind.__name__) from None

    def read_part(self, values: object) -> T:
        """Read a part of a message. Raises _Wrong."""
        if not isinstance(values, dict):
            raise _Wrong("a map")
        found = []
        name = ""
        get = values.get
        try:
            for name, read, default, is_whole in self._readers:
                value = values if is_whole else get(name, _ABSENT)
                if value is not _ABSENT:
                    found.append(read(value))
                elif default is not _MUST:
                    found.append(default)
                else:
                    raise _Wrong(self._expected(name), is_missing=True)
        except _Wrong as error:
            raise error.inside(name) from None
        made = self._kind(**dict(zip(self._attrs, found, strict=True))) if self._attrs else self._kind(*found)
        if self._conflict is not None and (conflict := self._conflict(made)):
            raise _Wrong(conflict)
        return made

    def _writer(self) -> Callable[[T], dict[str, object]]:
        """Return a function that returns the wire fields, in order; most need no conversion."""
        # Collect what differs from the plain case, in which fields need no conversion.
        crossing = self._on_wire()
        names = tuple(name for field_ in crossing for name in field_.names)
        attrs = [field_.attr for field_ in crossing for _ in field_.names]
        if not attrs:
            return lambda value: {}
        if len(attrs) == 1:  # of one, attrgetter makes no tuple
            attrs *= 2
        get = attrgetter(*attrs)
        changed = [(field_, field_.form.write) for field_ in crossing if field_.form.write is not None]
        converts = tuple((field_.name, convert) for field_, convert in changed if not field_.is_whole)
        spreads = tuple((field_.names[0], spread) for field_, spread in changed if field_.is_whole)
        omitted = tuple(field_.name for field_ in crossing if field_.is_omitted)

        def write_plain(value: T) -> dict[str, object]:
            return dict(zip(names, get(value)))  # noqa: B905 - to be strict takes time

        def write_converted(value: T) -> dict[str, object]:
            body = dict(zip(names, get(value)))  # noqa: B905
            for name, convert in converts:
                body[name] = convert(body[name])
            return body

        def write(value: T) -> dict[str, object]:
            body = write_converted(value)
            for name, spread in spreads:
                body.update(typing.cast("dict[str, object]", spread(body[name])))
            for name in omitted:
                if body[name] is None:
                    del body[name]
            return body

        return write if spreads or omitted else write_converted if converts else write_plain

    def _on_wire(self) -> list[_Field]:
        """Return the tag and the fields in wire order."""
        ordered = list(self.fields)
        for field_ in self.fields:
            if field_.before:
                ordered.remove(field_)
                ordered.insert([other.attr for other in ordered].index(field_.before), field_)
        if self._tag:
            kind = typing.cast(type[Message], self._kind)
            ordered.insert(kind.tag_place, _Field("tag", (kind.tag_key,), _TAG, _MUST))
        return ordered

    def _expected(self, name: str) -> str:
        return next(field_.form.expected for field_ in self.fields if field_.name == name)


_PLANS: dict[type, Plan[object]] = {}
_UNBOUNDED_PLANS: dict[type, Plan[object]] = {}


def plan_of(kind: type[T]) -> Plan[T]:
    """Return the plan for messages of this class. Raises TypeError if a field has no bounds."""
    return typing.cast(Plan[T], _PLANS.get(kind) or _compiled(kind, _PLANS))


def unbounded_plan_of(kind: type[T]) -> Plan[T]:
    """Return the plan for a class whose values come from this user's own programs, which needs no bounds."""
    return typing.cast(Plan[T], _UNBOUNDED_PLANS.get(kind) or _compiled(kind, _UNBOUNDED_PLANS))


def _compiled(kind: type, plans: dict[type, Plan[object]]) -> Plan[object]:
    plan = plans[kind] = Plan(kind, is_bounded=plans is _PLANS)
    return plan


def _named(hint: object) -> Name:
    return next((bound for bound in _bounds_of(hint) if isinstance(bound, Name)), Name(""))


def _bounds_of(annotation: object) -> tuple[object, ...]:
    is_annotated = typing.get_origin(annotation) is typing.Annotated
    return typing.get_args(annotation)[1:] if is_annotated else ()


def _fields_of(kind: type, *, is_bounded: bool) -> Iterator[_Field]:
    assert is_dataclass(kind), kind
    hints = typing.get_type_hints(kind, include_extras=True)
    for item in fields(kind):
        # The field's default may be declared by a bound.
        hint, bounds = hints[item.name], _bounds_of(hints[item.name])
        default = item.default if item.default is not MISSING else _MUST
        default = next((bound.default for bound in bounds if isinstance(bound, Otherwise)), default)
        spread = next((bound for bound in bounds if isinstance(bound, Spread)), None)
        try:
            # One field may cross as several.
            if spread is not None:
                names = tuple(name for name, _ in spread.parts)
                yield _Field(item.name, names, _spread(spread, is_bounded), _MUST, is_whole=True)
                continue
            if INLINE in bounds:
                plan = plan_of(typing.get_args(hint)[0])
                names = tuple(name for field in plan.fields for name in field.names)
                yield _Field(item.name, names, plan.form, _MUST, is_whole=True)
                continue
            # Else as one, under its own name or another.
            form = form_of(hint, is_bounded=is_bounded)
        except TypeError as error:
            raise TypeError(f"{kind.__name__}.{item.name}: {error}") from None
        if OR_NULL in bounds:
            form = form._replace(read=_or_null(form.read, default))
        wire, before = _named(hint)
        yield _Field(
            item.name,
            (wire or item.name,),
            form,
            _MUST if NEEDED in bounds else default,
            is_omitted=OMIT in bounds,
            is_beside=BESIDE in bounds,
            before=before,
        )


def _or_null(read: Read, default: object) -> Read:
    return lambda value: default if value is None else read(value)


def _spread(spread: Spread, is_bounded: bool) -> _Form:
    parts = [(name, form_of(annotation, is_bounded=is_bounded)) for name, annotation in spread.parts]
    names = [name for name, _ in parts]
    converts = [(name, form.write) for name, form in parts if form.write is not None]

    def read(values: Mapping[str, object]) -> object:
        found = []
        for name, form in parts:
            try:
                found.append(form.read(values.get(name)))
            except _Wrong as error:
                raise error.inside(name) from None
        made = spread.read(*found)
        if isinstance(made, Misfit):
            raise _Wrong(made.expected, made.name)
        return made

    def write(value: object) -> dict[str, object]:
        body = dict(zip(names, spread.write(value), strict=True))
        for name, convert in converts:
            body[name] = convert(body[name])
        return body

    return _Form(read, write, "")


def form_of(annotation: object, *, is_bounded: bool) -> _Form:
    """Return the codec of one annotation. Raises TypeError for one without a codec, or without bounds."""
    bounds = _bounds_of(annotation)
    hint = typing.get_args(annotation)[0] if bounds else annotation
    form = _unchecked(hint, bounds, is_bounded)
    for check in bounds:
        if isinstance(check, Check):
            form = form._replace(read=_checked(form.read, check))
    return form


def _checked(read: Read, check: Check) -> Read:
    def checked(value: object) -> object:
        found = read(value)
        if not check.holds(found):
            raise _Wrong(check.expected)
        return found

    return checked


def _unchecked(hint: object, bounds: tuple[object, ...], is_bounded: bool) -> _Form:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    crossing = next((bound for bound in bounds if isinstance(bound, As)), None)
    if crossing is not None:
        return _converted(crossing, is_bounded)
    if origin in (typing.Union, types.UnionType):
        return _optional(inner, is_bounded)
    if origin is typing.Literal:
        return _words({word: word for word in inner})
    if origin is tuple and inner[1:] == (...,):
        return _list(inner[0], _bound(bounds, Items, is_bounded), is_bounded)
    if origin is tuple:
        return _row([form_of(part, is_bounded=is_bounded) for part in inner], lambda *found: found)
    if isinstance(hint, type):
        return _of_class(hint, bounds, is_bounded)
    raise TypeError(f"{hint} has no form on the wire")


def _of_class(hint: type, bounds: tuple[object, ...], is_bounded: bool) -> _Form:
    if hint is bool:
        return _BOOL
    if hint is int:
        return _integer(_bound(bounds, Between, is_bounded))
    if hint is float:
        return _number(_bound(bounds, Between, is_bounded))
    if hint is str:
        return _text(_bound(bounds, Text, is_bounded))
    if hint is bytes:
        size = next((bound for bound in bounds if isinstance(bound, Size)), None)
        return _exact_bytes(size) if size is not None else _bytes(_bound(bounds, AtMost, is_bounded))
    if issubclass(hint, StrEnum):
        return _words({str(word): word for word in hint})
    if is_dataclass(hint):
        plan = plan_of(hint) if is_bounded else unbounded_plan_of(hint)
        if ROW in bounds:
            columns = [field for field in plan.fields if not field.is_beside]
            return _row(
                [column.form for column in columns], hint, attrgetter(*(column.attr for column in columns))
            )
        return plan.form
    raise TypeError(f"{hint.__name__} has no form on the wire")


def _bound(bounds: tuple[object, ...], kind: type[T], is_bounded: bool) -> T | None:
    """Return the bound of that kind. Raises TypeError if one is required and missing."""
    found = next((bound for bound in bounds if isinstance(bound, kind)), None)
    if found is None and is_bounded:
        raise TypeError(f"its annotation has no {kind.__name__}(…)")
    return found


def _converted(crossing: As, is_bounded: bool) -> _Form:
    inner = form_of(crossing.wire, is_bounded=is_bounded)
    outer_write, inner_write = crossing.write, inner.write
    write = outer_write if inner_write is None else (lambda value: inner_write(outer_write(value)))
    return _Form(lambda value: crossing.read(inner.read(value)), write, inner.expected)


def _optional(choices: tuple[object, ...], is_bounded: bool) -> _Form:
    plain_choices = [choice for choice in choices if choice is not type(None)]
    if len(plain_choices) != 1 or len(choices) == 1:
        raise TypeError("a union of several types has no tag by which they could be told apart")
    read, write, expected = form_of(plain_choices[0], is_bounded=is_bounded)
    writes = None if write is None else (lambda value: None if value is None else write(value))
    return _Form(lambda value: None if value is None else read(value), writes, f"{expected}, or null")


def _words(words: Mapping[str, object]) -> _Form:
    expected = f"one of {', '.join(words)}"

    def read(value: object) -> object:
        if type(value) is not str or value not in words:
            raise _Wrong(expected)
        return words[value]

    return _Form(read, None, expected)


def _bool(value: object) -> bool:
    if value is True or value is False:
        return value
    raise _Wrong("true or false")


_BOOL = _Form(_bool, None, "true or false")


def _integer(bound: Between | None) -> _Form:
    if bound is None:
        return _Form(_any_integer, None, "an integer")
    low, high, clamp = bound
    expected = f"an integer from {low} to {high}"

    def read(value: object) -> int:
        if type(value) is int and low <= value <= high:
            return value
        raise _Wrong(expected)

    return _Form(read, _clamped(low, high) if clamp else None, expected)


def _any_integer(value: object) -> int:
    if type(value) is int:
        return value
    raise _Wrong("an integer")


def _number(bound: Between | None) -> _Form:
    low, high, clamp = bound or Between(-math.inf, math.inf)
    expected = f"a number from {low} to {high}" if bound else "a finite number"

    def read(value: object) -> float:
        if (type(value) is float or type(value) is int) and low <= value <= high:
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        raise _Wrong(expected)

    return _Form(read, _clamped(low, high) if clamp else None, expected)


def _clamped(low: float, high: float) -> Read:
    return lambda value: min(max(value, low), high)


def _text(bound: Text | None) -> _Form:
    if bound is None:
        return _Form(_any_text, None, "text")
    most, least, cut, pattern, in_letters = bound
    counts = f"{least} to {most}" if least else f"at most {most}"
    expected = f"{counts} {'letters' if in_letters else 'bytes'} of printable text"
    if pattern is not None:
        expected += f" that matches {pattern.pattern}"

    def read(value: object) -> str:
        if type(value) is not str or not value.isprintable():
            raise _Wrong(expected)
        size = len(value) if in_letters or value.isascii() else len(value.encode())
        if not least <= size <= most or (pattern is not None and not pattern.fullmatch(value)):
            raise _Wrong(expected)
        return value

    return _Form(read, (lambda value: plain(value, most)) if cut else None, expected)


def _any_text(value: object) -> str:
    if type(value) is str:
        return value
    raise _Wrong("text")


_TAG = _text(Text(MAX_TAG_BYTES, least=1))


def _exact_bytes(bound: Size) -> _Form:
    sizes = bound.sizes
    expected = f"{' or '.join(map(str, sizes))} bytes"

    def read(value: object) -> bytes:
        if type(value) is bytes and len(value) in sizes:
            return value
        raise _Wrong(expected)

    return _Form(read, None, expected)


def _bytes(bound: AtMost | None) -> _Form:
    if bound is None:
        raise TypeError("bytes have no form in JSON")
    most, least, step = bound
    pieces = f"{least // step} to {most // step}" if least else f"at most {most // step}"
    expected = f"{pieces} pieces of {step} bytes" if step > 1 else f"{pieces} bytes"

    def read(value: object) -> bytes:
        if type(value) is bytes and least <= len(value) <= most and not len(value) % step:
            return value
        raise _Wrong(expected)

    return _Form(read, None, expected)


def _list(annotation: object, bound: Items | None, is_bounded: bool) -> _Form:
    item_read, item_write, _ = form_of(annotation, is_bounded=is_bounded)
    most, least, cut = bound or Items(1 << 62)
    counts = f"{least} to {most}" if least else f"at most {most}"
    expected = "a list" if bound is None else f"a list of {counts} entries"

    def read(value: object) -> tuple[object, ...]:
        if type(value) is not list or not least <= len(value) <= most:
            raise _Wrong(expected)
        found: list[object] = []
        try:
            for item in value:
                found.append(item_read(item))
        except _Wrong as error:
            raise error.inside(f"[{len(found)}]") from None
        return tuple(found)

    if item_write is None:  # msgpack takes tuples as they are
        return _Form(read, (lambda value: value[:most]) if cut else None if is_bounded else list, expected)
    if cut:
        return _Form(read, lambda value: list(map(item_write, value[:most])), expected)
    return _Form(read, lambda value: list(map(item_write, value)), expected)


def _row(
    forms: list[_Form], make: Callable[..., object], take: Callable[..., Iterable[object]] | None = None
) -> _Form:
    reads = [form.read for form in forms]
    writes = [form.write for form in forms]
    expected = f"a list of {len(forms)} entries"

    def read(value: object) -> object:
        if type(value) is not list or len(value) != len(reads):
            raise _Wrong(expected)
        found: list[object] = []
        try:
            for item_read, item in zip(reads, value, strict=True):
                found.append(item_read(item))
        except _Wrong as error:
            raise error.inside(f"[{len(found)}]") from None
        return make(*found)

    if not any(writes):
        return _Form(read, take, expected)

    def write(value: Iterable[object]) -> list[object]:
        found = value if take is None else take(value)
        return [
            item if item_write is None else item_write(item)
            for item_write, item in zip(writes, found, strict=True)
        ]

    return _Form(read, write, expected)
