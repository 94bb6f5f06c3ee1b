"""The schema of the mesh-server protocol, native/mesh/protocol.toml, read and held to its own rules.

`python -m tests.native.schema --write` brings up to date what is made from it; `--check` says what is not.
"""

import argparse
import struct
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "native" / "mesh" / "protocol.toml"

SCALARS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i"}  # and their letters in `struct`

SENDERS = {"head": range(1, 128), "worker": (*range(128, 192), 255), "neighbour": range(192, 255)}

Table = dict[str, object]


@dataclass(frozen=True, slots=True)
class Field:
    """`count` of a scalar, one after the other."""

    name: str
    scalar: str
    count: int
    what: str

    @property
    def text(self) -> str:
        return self.scalar if self.count == 1 else f"{self.scalar}[{self.count}]"

    @property
    def format(self) -> str:
        letter = SCALARS[self.scalar]
        if self.count == 1:
            return letter
        return f"{self.count}s" if self.scalar == "u8" else f"{self.count}{letter}"


@dataclass(frozen=True, slots=True)
class Struct:
    name: str
    what: str
    fields: tuple[Field, ...]

    @property
    def format(self) -> str:
        return "<" + "".join(field.format for field in self.fields)

    @property
    def bytes(self) -> int:
        return struct.calcsize(self.format)


@dataclass(frozen=True, slots=True)
class Rest:
    """A list behind the fields; `count` names the field that has its length, "" takes what is left."""

    name: str
    of: str
    item_bytes: int
    count: str
    most: str
    most_items: int
    what: str


@dataclass(frozen=True, slots=True)
class Message:
    body: Struct
    number: int
    sender: str  # one of SENDERS
    answer: str  # "": none
    rest: tuple[Rest, ...]

    @property
    def name(self) -> str:
        return self.body.name

    @property
    def most_bytes(self) -> int:
        return self.body.bytes + sum(rest.item_bytes * rest.most_items for rest in self.rest)


@dataclass(frozen=True, slots=True)
class Limit:
    name: str
    value: int
    unit: str
    why: str


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    least: int
    most: int
    over: tuple[int, ...]
    kinds: str


@dataclass(frozen=True, slots=True)
class Schema:
    version: int
    limits: tuple[Limit, ...]
    structs: tuple[Struct, ...]
    messages: tuple[Message, ...]
    load_results: tuple[str, ...]
    types: tuple[str, ...]
    kinds: dict[str, tuple[str, ...]]
    operations: tuple[Operation, ...]

    def message(self, name: str) -> Message:
        return next(message for message in self.messages if message.name == name)


def _fields(rows: object) -> tuple[Field, ...]:
    found = []
    for row in cast(list[dict[str, str]], rows):
        scalar, _, count = row["type"].removesuffix("]").partition("[")
        if scalar not in SCALARS:
            raise ValueError(f"`{row['name']}` has no type of the wire: `{row['type']}`")
        found.append(Field(row["name"], scalar, int(count or 1), row["what"]))
    return tuple(found)


def _rest(rows: object, structs: dict[str, Struct], limits: dict[str, int]) -> tuple[Rest, ...]:
    found = []
    for row in cast(list[dict[str, str]], rows):
        of = row["of"]
        size = structs[of].bytes if of in structs else struct.calcsize(f"<{SCALARS[of]}")
        found.append(
            Rest(row["name"], of, size, row.get("count", ""), row["most"], limits[row["most"]], row["what"])
        )
    return tuple(found)


def read_schema(text: str) -> Schema:
    """Raises ValueError or KeyError where it breaks a rule."""
    table = cast(dict[str, object], tomllib.loads(text))
    limits = tuple(
        Limit(name, cast(int, row["value"]), str(row.get("unit", "bytes")), str(row["why"]))
        for name, row in cast(dict[str, Table], table["limits"]).items()
    )
    structs = {
        str(row["name"]): Struct(str(row["name"]), str(row["what"]), _fields(row["fields"]))
        for row in cast(list[Table], table["struct"])
    }
    operations = tuple(
        Operation(
            str(row["name"]),
            *cast(tuple[int, int], row["sources"]),
            tuple(cast(list[int], row["over"])),
            str(row.get("kinds", "")),
        )
        for row in cast(list[Table], cast(Table, table["operations"])["list"])
    )
    types = tuple(cast(list[str], cast(Table, table["types"])["names"]))
    numbers = {limit.name: limit.value for limit in limits}
    numbers |= {"OPERATION_COUNT": len(operations), "TYPE_COUNT": len(types)}
    messages = tuple(
        Message(
            Struct(str(row["name"]), str(row["what"]), _fields(row.get("fields", []))),
            cast(int, row["number"]),
            str(row["sender"]),
            str(row.get("answer", "")),
            _rest(row.get("rest", []), structs, numbers),
        )
        for row in cast(list[Table], table["message"])
    )
    schema = Schema(
        cast(int, table["version"]),
        limits,
        tuple(structs.values()),
        messages,
        tuple(cast(list[str], cast(Table, table["load_results"])["names"])),
        types,
        {name: tuple(names) for name, names in cast(dict[str, list[str]], table["kinds"]).items()},
        operations,
    )
    _check(schema)
    return schema


def _check(schema: Schema) -> None:
    """Check what a reader of the bytes relies on."""
    names = [message.name for message in schema.messages]
    numbers = [message.number for message in schema.messages]
    if len({*names, *(one.name for one in schema.structs)}) != len(names) + len(schema.structs):
        raise ValueError("a name is there twice")
    if len(set(numbers)) != len(numbers):
        raise ValueError("a number is there twice")
    for message in schema.messages:
        if message.number not in SENDERS.get(message.sender, ()):
            raise ValueError(f"{message.name}: a number that messages of this sender do not have")
        if message.answer and schema.message(message.answer).sender != "worker":
            raise ValueError(f"{message.name} is answered by a request")
        counts = [rest.count for rest in message.rest]
        if "" in counts[:-1] or not {*counts} <= {"", *(field.name for field in message.body.fields)}:
            raise ValueError(f"{message.name}: only the last list may go to the end, and counts are fields")
        if message.most_bytes >= 1 << 32:
            raise ValueError(f"{message.name} can be longer than a header can say")
    for one in (schema.types, schema.load_results, *schema.kinds.values()):
        if len(set(one)) != len(one):
            raise ValueError(f"a name is there twice: {one}")


def load() -> Schema:
    return read_schema(SCHEMA.read_text(encoding="utf-8"))


KINDS, OPERATIONS = load().kinds, load().operations


def main() -> int:
    """Run; returns the exit code."""
    from tests.native.generated import GENERATED

    parser = argparse.ArgumentParser(prog="python -m tests.native.schema", description=__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", action="store_true", help="bring up to date what is made from it")
    group.add_argument("--check", action="store_true", help="say what is not up to date")
    write = parser.parse_args().write
    schema, stale = load(), 0
    for path, make in GENERATED.items():
        text = make(schema)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale += 1
            sys.stdout.write(f"{path.relative_to(ROOT)} {'written' if write else 'is not up to date'}\n")
            if write:
                path.write_text(text, encoding="utf-8")
    return 0 if write else min(stale, 1)


if __name__ == "__main__":
    sys.exit(main())
