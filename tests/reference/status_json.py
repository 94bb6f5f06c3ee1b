"""docs/status.md: the objects of `meshd status --json`, from the values they are made of."""

import ast
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from itertools import groupby
from types import MappingProxyType

from meshd.admin.status import Status

NUMBERS = ("bytes", "_s", "_ms", "seconds", "tokens")
PLAIN = {str: "", int: "integer", float: "number", bool: "boolean"}  # text is what has no type on the page


def page(kind: type = Status) -> str:
    """Return a list for each object, the whole document first."""
    places = places_of(kind)
    return "\n\n".join(_chapter(one, place, places) for one, place in places.items())


def places_of(
    kind: type, place: str = "", known: Mapping[type, str] = MappingProxyType({})
) -> dict[type, str]:
    """This one and those within it, each once, with the fields that lead to where it stands first."""
    found = {**known, kind: place}
    for name, hint in typing.get_type_hints(kind).items():
        for one in _kinds(hint):
            if is_dataclass(one) and one not in found:
                found = places_of(one, f"{place}.{name}".strip("."), found)
    return found


def _kinds(hint: object) -> Iterator[type]:
    for one in typing.get_args(hint) or (hint,):
        if typing.get_args(one):
            yield from _kinds(one)
        elif isinstance(one, type):
            yield one


def _chapter(kind: type, place: str, places: Mapping[type, str]) -> str:
    assert is_dataclass(kind)
    hints, notes = typing.get_type_hints(kind), _comments(kind)
    head = f"## {place or 'The document'}\n\n{inspect.cleandoc(kind.__doc__ or '')}\n\n"
    lines = []
    for (form, note), same in groupby(
        fields(kind), key=lambda one: (_shown(one.name, hints[one.name], places), notes.get(one.name, ""))
    ):
        names = ", ".join(f"`{field.name}`" for field in same)
        lines.append(f"- {names}" + (f" ({form})" if form else "") + (f": {note}" if note else ""))
    return head + "\n".join(lines)


def _shown(name: str, hint: object, places: Mapping[type, str]) -> str:
    """Return the form; empty for plain numbers whose names say that they are some."""
    form = _form(hint, places)
    return "" if form in ("integer", "number") and name.endswith(NUMBERS) else form


def _form(hint: object, places: Mapping[type, str]) -> str:
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in choices)
    if origin in (typing.Union, types.UnionType):
        (one,) = (one for one in choices if one is not types.NoneType)
        return f"{_form(one, places) or 'text'}?"
    if origin is tuple:
        return f"{_form(choices[0], places) or 'text'}[]"
    assert isinstance(hint, type)
    if issubclass(hint, StrEnum):
        return ", ".join(f"`{one}`" for one in hint)
    if is_dataclass(hint):
        return f"[{places[hint]}](#{places[hint].replace('.', '')})"  # as GitHub makes anchors
    return PLAIN[hint]


def _comments(kind: type) -> dict[str, str]:
    """Return what stands behind each field in the source."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    (made,) = ast.parse(source).body
    assert isinstance(made, ast.ClassDef)
    return {
        node.target.id: lines[(node.end_lineno or 0) - 1].partition("  # ")[2]
        for node in made.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
