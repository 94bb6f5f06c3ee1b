"""Values of a message class, drawn from the annotations of its fields: whatever its readers must take."""

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from meshd.wire.address import Candidate
from meshd.wire.capacity import MeasuredDevice, TimedLayer
from meshd.wire.lease import NeededTensor, OfferedDevice
from meshd.wire.limits import As, AtMost, Between, Check, Items, Size, Text
from meshd.wire.netfacts import NetFacts
from meshd.wire.stun import Endpoint

Values = st.SearchStrategy[Any]
_FEW = 5  # entries of a drawn list, unless its bounds want more
_LETTERS = 40  # of drawn text
_BYTES = 300  # of drawn bytes, unless their bounds want more
_PORTS = st.integers(1, 65535)
_CANDIDATES = st.builds(
    Candidate,
    host=st.sampled_from(["192.0.2.1", "10.0.0.7", "2001:db8::7", "127.0.0.1"]),
    port=_PORTS,
    proto=st.sampled_from(["tcp", "udp"]),
    kind=st.sampled_from(["host", "srflx", "mapped"]),
)
# what has no bounds of its own, as it crosses in a form of its own
_OWN: dict[object, Values] = {
    tuple[Candidate, ...]: st.lists(_CANDIDATES, max_size=8, unique=True).map(tuple),
    Endpoint: st.builds(Endpoint, host=st.sampled_from(["203.0.114.7", "8.8.8.8"]), port=_PORTS),
    NetFacts: st.builds(NetFacts, udp_step=st.integers(-127, 127), carrier_nat=st.booleans()),
    tuple[NeededTensor, ...]: st.lists(
        st.builds(
            NeededTensor,
            file=st.just(0),
            kind=st.integers(0, 65535),
            offset=st.just(0),
            size=st.just(1),
            digest=st.binary(min_size=32, max_size=32),
        ),
        max_size=3,
    ).map(tuple),
}


_UNIQUE: dict[object, Callable[[Any], object]] = {
    OfferedDevice: lambda device: device.name,
    MeasuredDevice: lambda measured: measured.device.name,
    TimedLayer: lambda time: (time.kind, time.tokens),
}


def messages(kind: Any) -> Values:
    """Return instances of a dataclass within the bounds of its fields."""
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind)]
    made: Values = st.fixed_dictionaries({name: _values(hints[name]) for name in names}).map(
        lambda found: kind(**found)
    )
    conflict: Callable[[Any], str] | None = getattr(kind, "conflict", None)
    return made if conflict is None else made.filter(lambda one: not conflict(one))


def _values(annotation: object) -> Values:
    bounds: tuple[object, ...] = ()
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *rest = typing.get_args(annotation)
        bounds = tuple(rest)
    values = _within(annotation, bounds)
    for check in bounds:
        if isinstance(check, Check):
            values = values.filter(check.holds)
    return values


def _within(hint: Any, bounds: tuple[object, ...]) -> Values:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in _OWN:
        return _OWN[hint]
    crossing = _bound(bounds, As)
    if crossing is not None:
        return _values(crossing.wire).map(crossing.read)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(st.none() if one is type(None) else _values(one) for one in inner))
    if origin is tuple and inner[1:] == (...,):
        return _lists(inner[0], _bound(bounds, Items))
    if origin is tuple:
        return st.tuples(*map(_values, inner))
    if hint is bool:
        return st.booleans()
    if hint is int:
        low, high, _ = _bound(bounds, Between) or Between(0, 0)
        return st.integers(int(low), int(high)) | st.sampled_from([int(low), int(high)])
    if hint is float:
        low, high, _ = _bound(bounds, Between) or Between(0, 0)
        return st.floats(low, high)
    if hint is str:
        return _texts(_bound(bounds, Text) or Text(0))
    if hint is bytes:
        return _blobs(bounds)
    assert isinstance(hint, type), hint
    return messages(hint)


def _bound(bounds: tuple[object, ...], kind: type[Any]) -> Any:
    return next((one for one in bounds if isinstance(one, kind)), None)


def _lists(annotation: object, items: Items | None) -> Values:
    """Lists within their bounds; those without cross spread, and name each entry once."""
    if items is None:
        return st.lists(_values(annotation), max_size=_FEW, unique_by=_UNIQUE[annotation]).map(tuple)
    most = min(items.most, max(_FEW, items.least))
    return st.lists(_values(annotation), min_size=items.least, max_size=most).map(tuple)


def _texts(bound: Text) -> Values:
    """Printable, and not larger than the bound in its unit."""
    if bound.pattern is not None:
        texts = st.from_regex(bound.pattern, fullmatch=True)
    else:
        texts = st.text(st.characters(codec="utf-8"), max_size=min(bound.most, _LETTERS))
        texts |= st.sampled_from(["x" * bound.most, "x" * bound.least])

    def fits(text: str) -> bool:
        size = len(text) if bound.in_letters else len(text.encode())
        return text.isprintable() and bound.least <= size <= bound.most

    return texts.filter(fits)


def _blobs(bounds: tuple[object, ...]) -> Values:
    exact = _bound(bounds, Size)
    if exact is not None:
        return st.one_of(*(st.binary(min_size=size, max_size=size) for size in exact.sizes))
    most, least, step = _bound(bounds, AtMost)
    counts = st.integers(-(-least // step), min(most, _BYTES + least) // step) | st.just(most // step)
    return counts.map(lambda count: (bytes(range(256)) * (count * step // 256 + 1))[: count * step])
