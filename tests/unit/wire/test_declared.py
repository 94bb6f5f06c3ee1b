"""The declarations of all messages are those on record: nodes of other versions rely on each name and bound.

What an annotation means is tested in test_codec.py, for one field of each kind. Whoever changes a declaration
on purpose writes `declared()` to declared.txt, and reads docs/decisions/0079 first.
"""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path

from meshd.wire.codec import Message
from meshd.wire.limits import As, AtMost, Between, Check, Items, Mark, Size, Spread, Text

from tests.hostile.words import parts, wire_types

RECORD = Path(__file__).with_name("declared.txt")


def _bound(bound: object) -> str:
    """Describe one bound by its numbers and annotations, without the functions in it."""
    match bound:
        case Size(sizes=sizes):
            return f"Size{sizes}"
        case Check(expected=expected):
            return f"Check({expected})"
        case As(wire=wire):
            return f"As({_described(wire)})"
        case Spread(parts=parts):
            return f"Spread({', '.join(f'{name}: {_described(part)}' for name, part in parts)})"
        case Mark():
            return bound.name
        case Text() | Between() | AtMost() | Items():
            said = {
                name: value
                for name, value in bound._asdict().items()
                if value != bound._field_defaults.get(name)
            }
            return f"{type(bound).__name__}({', '.join(f'{name}={value}' for name, value in said.items())})"
    return str(bound)


def _described(annotation: object) -> str:
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return " ".join([_described(inner[0]), *map(_bound, inner[1:])])
    if typing.get_origin(annotation) is typing.Literal:
        return str(inner)
    if inner:
        kind = getattr(typing.get_origin(annotation), "__name__", "") or "union"
        return f"{kind}[{', '.join('...' if one is ... else _described(one) for one in inner)}]"
    return getattr(annotation, "__name__", str(annotation))


def declared() -> str:
    """Return a line for each message and each part of one, by name, and one for each of their fields."""
    sent = {kind for kind in wire_types() if issubclass(kind, Message)}
    sent |= {part for kind in sent for part in parts(kind) if part in wire_types()}
    return "\n".join(line for kind in sorted(sent, key=lambda kind: kind.__name__) for line in _lines(kind))


def _lines(kind: type) -> Iterator[str]:
    tag = f" {kind.tag_key}={kind.tag} at {kind.tag_place}" if issubclass(kind, Message) and kind.tag else ""
    yield f"{kind.__name__}{tag}"
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        yield f"    {field.name}: {_described(hints[field.name])}{default}"


def test_the_declarations_are_those_on_record() -> None:
    assert declared().splitlines() == RECORD.read_text(encoding="utf-8").splitlines()
