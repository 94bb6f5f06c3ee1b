"""native/mesh/protocol.h: constants, bodies that read and write themselves, limits, operations."""

from collections.abc import Iterator

from tests.native.schema import Field, Operation, Schema, Struct

_TYPES = {"u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "i32": "int32_t"}

_HEAD = """\
// Made from protocol.toml by `python -m tests.native.schema --write`: change that.
// clang-format off
#pragma once

#include "wire.h"

#include <cstddef>
#include <cstdint>

namespace mesh {
"""


def cpp_header(schema: Schema) -> str:
    lines = [
        _HEAD,
        f"constexpr uint32_t VERSION = {schema.version};",
        f"constexpr uint32_t OPERATION_COUNT = {len(schema.operations)};",
        f"constexpr uint32_t TYPE_COUNT = {len(schema.types)};",
        *(f"constexpr uint32_t {limit.name} = {limit.value}; // {limit.unit}" for limit in schema.limits),
        "",
        "enum class message : uint16_t {",
        *(f"    {message.name.lower()} = {message.number}," for message in schema.messages),
        "};",
        "",
        "// Who sends a message; `neighbour`: another worker",
        "enum class sender : uint8_t { head, worker, neighbour };",
        "",
        "enum class load_result : uint8_t {",
        *(f"    {name.replace('-', '_')}," for name in schema.load_results),
        "};",
        _names("LOAD_RESULT_NAMES", schema.load_results),
    ]
    for struct in schema.structs:
        lines += _struct(struct, f"wire_{struct.name.lower()}")
    for message in schema.messages:
        number = f"static constexpr message number = message::{message.name.lower()}; "
        lines += _struct(message.body, f"{message.name.lower()}_body", number)
    lines += [*_limits(schema), "", _names("TYPE_NAMES", schema.types)]
    lines += [_names(f"{name.upper()}_NAMES", names) for name, names in schema.kinds.items()]
    lines += [*_operations(schema), "", "} // namespace mesh", ""]
    return "\n".join(lines)


def _names(name: str, values: tuple[str, ...]) -> str:
    inner = ", ".join(f'"{value}"' for value in values)
    return f"constexpr const char * {name}[] = {{ {inner} }};"


def _struct(struct: Struct, name: str, extra: str = "") -> Iterator[str]:
    yield from ("", f"// {struct.what}", f"struct {name} {{")
    yield f"    {extra}static constexpr size_t bytes = {struct.bytes};"
    for field in struct.fields:
        size = "" if field.count == 1 else f"[{field.count}]"
        remark = f" // {field.what}" if field.what else ""
        yield f"    {_TYPES[field.scalar]} {field.name}{size} = {{}};{remark}"
    empty = "" if struct.fields else "/* nothing */ "
    out, source = ("out", "in") if struct.fields else ("", "")
    puts = " ".join(_put(field) for field in struct.fields)
    yield f"    void put(writer & {out}) const {{ {empty}{puts} }}"
    takes = " ".join(_take(field) for field in struct.fields)
    yield f"    static {name} take(reader & {source}) {{ {name} body; {takes} return body; }}"
    yield "};"


def _put(field: Field) -> str:
    if field.count == 1:
        return f"out.put({field.name});"
    return f"out.put_all({field.name});"


def _take(field: Field) -> str:
    if field.name == "zero":
        return "in.take_zero(body.zero);"
    if field.count == 1:
        return f"in.take(body.{field.name});"
    return f"in.take_all(body.{field.name});"


def _limits(schema: Schema) -> Iterator[str]:
    yield from (
        "",
        "// The shortest and the longest body of a message of one sender. false: there is no such message",
        "inline bool body_limits(uint16_t number, sender from, uint32_t & least, uint32_t & most) {",
        "    switch (number) {",
    )
    for message in schema.messages:
        yield (
            f"        case {message.number}: least = {message.body.bytes}; most = {message.most_bytes}; "
            f"return from == sender::{message.sender}; // {message.name}"
        )
    yield from ("        default: return false;", "    }", "}")


def _operations(schema: Schema) -> Iterator[str]:
    yield from (
        "",
        "struct operation_rule {",
        "    const char * name;",
        "    uint8_t least; // so many first sources it must have",
        "    uint8_t most;",
        "    uint16_t over; // a bit for each source that the result may lie exactly on",
        "    const char * const * kinds; // the first parameter is one of these, or nullptr",
        "    uint32_t kind_count;",
        "};",
        "constexpr operation_rule OPERATIONS[] = {",
    )
    for operation in schema.operations:
        yield f"    {{ {_rule(operation, schema)} }},"
    yield "};"


def _rule(operation: Operation, schema: Schema) -> str:
    bits = sum(1 << source for source in operation.over)
    kinds = f"{operation.kinds.upper()}_NAMES" if operation.kinds else "nullptr"
    count = len(schema.kinds[operation.kinds]) if operation.kinds else 0
    return f'"{operation.name}", {operation.least}, {operation.most}, {bits}, {kinds}, {count}'
