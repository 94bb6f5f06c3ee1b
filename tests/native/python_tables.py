"""meshd/rpc/mesh_protocol.py: the same for Python."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator

from tests.native.schema import Message, Schema

_COMMENT_CHARACTERS = 100
_HEAD = '''\
"""The mesh-server protocol: messages, limits, operations and types.

Made by `python -m tests.native.schema --write` from native/mesh/protocol.toml, which says what it means:
change that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct


@dataclass(frozen=True, slots=True)
class Rest:
    """A list behind the fields: as many as the field `count` says, or with "" to the end; `most` at most."""

    name: str
    item_bytes: int
    count: str
    most: int


@dataclass(frozen=True, slots=True)
class RpcMessage:
    """A body of at most `most` bytes: `fields` as `body` lays them out, then `rest`. `answer` 0: none."""

    name: str
    number: int
    sender: str
    answer: int
    body: Struct
    fields: tuple[str, ...]
    rest: tuple[Rest, ...]
    most: int


@dataclass(frozen=True, slots=True)
class Operation:
    """It needs the first `least` sources, takes up to `most`, and may lie exactly on those `over`."""

    name: str
    least: int
    most: int
    over: tuple[int, ...]
    kinds: tuple[str, ...]

'''


def python_tables(schema: Schema) -> str:
    lines = [
        f"VERSION = {schema.version}",
        *(f"{limit.name} = {limit.value}  # {limit.unit}" for limit in schema.limits),
        "",
    ]
    for struct in schema.structs:
        fields = ", ".join(field.name for field in struct.fields)
        lines += (f"# {line}" for line in textwrap.wrap(fields, _COMMENT_CHARACTERS))
        lines.append(f'{struct.name} = Struct("{struct.format}")')
    lines.append("")
    for message in schema.messages:
        lines.append(f"{message.name} = {message.number}")
    lines += ["", "MESSAGES: Mapping[int, RpcMessage] = {"]
    lines += [f"    {message.name}: {_message(message)}," for message in schema.messages]
    lines += ["}", "", f"LOAD_RESULTS = {schema.load_results!r}", f"TYPES = {schema.types!r}"]
    lines += [f"{name.upper()}_KINDS = {names!r}" for name, names in schema.kinds.items()]
    lines += ["OPERATIONS: tuple[Operation, ...] = (", *_operations(schema), ")", ""]
    return _formatted(_HEAD + "\n".join(lines))


def _message(message: Message) -> str:
    rest = "".join(
        f'Rest("{one.name}", {one.item_bytes}, "{one.count}", {one.most_items}), ' for one in message.rest
    )
    fields = tuple(field.name for field in message.body.fields)
    return (
        f'RpcMessage("{message.name}", {message.number}, "{message.sender}", {message.answer or 0}, '
        f'Struct("{message.body.format}"), {fields!r}, ({rest}), {message.most_bytes})'
    )


def _operations(schema: Schema) -> Iterator[str]:
    for one in schema.operations:
        kinds = f"{one.kinds.upper()}_KINDS" if one.kinds else "()"
        yield f'    Operation("{one.name}", {one.least}, {one.most}, {one.over!r}, {kinds}),'


def _formatted(text: str) -> str:
    argv = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "mesh_protocol.py", "-"]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout
