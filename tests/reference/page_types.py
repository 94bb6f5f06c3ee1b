"""The types of the mesh page, `wheels/mesh/src/status.ts`, from those of the control socket."""

import dataclasses
import types
import typing
from enum import Enum

from meshd.admin import api, plan_api
from meshd.admin.request import Request
from meshd.admin.status import Status

_HEAD = (
    "// Written by `make reference` from the types of the control socket.\n"
    "// Times are in seconds, sizes in bytes, dates in Unix seconds.\n"
)
_SIMPLE = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
    object: "unknown",
}


def page_types() -> str:
    """Return the content of the file: an interface for each dataclass of the status and of the replies."""
    roots: list[type] = [Status]
    for module in (api, plan_api):
        kinds = (kind for kind in vars(module).values() if isinstance(kind, type))
        requests = [
            kind for kind in kinds if issubclass(kind, Request) and kind.__module__ == module.__name__
        ]
        roots += [request.reply_type() for request in requests]
    found: dict[str, str] = {}
    for root in roots:
        _add(root, found)
    return "\n".join([_HEAD, *(found[name] for name in sorted(found))])


def _add(kind: type, found: dict[str, str]) -> None:
    if kind.__name__ in found or not dataclasses.is_dataclass(kind):
        return
    found[kind.__name__] = ""  # for a type that contains itself
    hints = typing.get_type_hints(kind)
    rows = [f"\t{field.name}: {_type(hints[field.name], found)};\n" for field in dataclasses.fields(kind)]
    found[kind.__name__] = f"export interface {kind.__name__} {{\n{''.join(rows)}}}\n"


def _type(hint: object, found: dict[str, str]) -> str:
    """Return a type as TypeScript writes it. Raises TypeError for a kind that no reply has had so far."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _type(arguments[0], found)
    if origin is typing.Literal:
        return " | ".join(f"'{value}'" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type(part, found) for part in arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _type(arguments[0], found)
        return f"({item})[]" if " " in item else f"{item}[]"
    if origin is tuple:
        return f"[{', '.join(_type(part, found) for part in arguments)}]"
    if isinstance(origin, type) and issubclass(origin, typing.get_origin(typing.Mapping[str, int]) or dict):
        return f"Record<{_type(arguments[0], found)}, {_type(arguments[1], found)}>"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(f"'{item.value}'" for item in hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        _add(hint, found)
        return hint.__name__
    if isinstance(hint, type) and hint in _SIMPLE:
        return _SIMPLE[hint]
    raise TypeError(f"no type of TypeScript is known for {hint!r}")
