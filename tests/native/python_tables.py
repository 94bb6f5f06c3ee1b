"""meshd/rpc/mesh_protocol.py: the same for Python."""

import subprocess
import sys
import textwrap

from tests.native.schema import Message, Schema

_COMMENT_CHARACTERS = 100
_HEAD = '''\
"""The mesh-server protocol: messages, limits and types.

Made by `python -m tests.native.schema --write` from native/mesh/protocol.toml, which says what it means:
change that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct


@dataclass(frozen=True, slots=True)
class RpcMessage:
    """A message of this sender: a body of at most `most` bytes that begins with the fields of `body`."""

    name: str
    sender: str
    body: Struct
    most: int

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
    lines += ["}", "", f"LOAD_RESULTS = {schema.load_results!r}", f"TYPES = {schema.types!r}", ""]
    return _formatted(_HEAD + "\n".join(lines))


def _message(message: Message) -> str:
    return (
        f'RpcMessage("{message.name}", "{message.sender}", Struct("{message.body.format}"), '
        f"{message.most_bytes})"
    )


def _formatted(text: str) -> str:
    argv = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "mesh_protocol.py", "-"]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout
