"""docs/native-protocol.md, generated from the schema."""

from collections.abc import Iterator, Sequence

from tests.native.schema import Field, Message, Schema

_HEAD = """\
# The mesh-server protocol

Reference for contributors who write or check either side. Generated from
[native/mesh/protocol.toml](../native/mesh/protocol.toml) by `python -m tests.native.schema --write`; edit
that file. Rationale: [decision 0034](decisions/0034-native-backend.md). Implementation:
[native-backend.md](native-backend.md).

A head and a worker share one connection, a byte stream that no other process can reach. The head sends
requests, and the worker processes them in order. Requests that need no answer have none. An answer has the id
of its request, and may arrive before the answer to an earlier one. A violation of any rule on this page ends
the connection; if it can, the worker gives the reason in FAILED.

Two workers of one head may share a connection as well. Results that one computes for the other then go there
and not through the head, which sends PUSH to one and TAKE to the other right after each other, so that two
workers never wait for each other. A worker that lost a neighbour fails at its next PUSH or TAKE. Workers are
numbered by their places in the head's list, from 0.
"""

_HALF_ROWS = """\
Rows of n values of f32 in a buffer take n + 1 words of 16 bits each in WRITE, DATA and PUSHED if the `row` of
the request is n: an exponent e from 0 to HALF_EXPONENT, then the values divided by 2^e as IEEE half floats. e
is the smallest exponent with which the finite values of the row fit into a half; it is 0 unless one exceeds
65504. Infinities and NaN stay as they are. Pieces are of whole rows, a row is no longer than a piece, and
sizes in requests are those in the buffer. PUSH and TAKE of the same bytes have the same `row`. The head
chooses which values cross so
([native-backend.md](native-backend.md#hidden-states-as-half-floats)).
"""


def page(schema: Schema) -> str:
    lines = [
        _HEAD,
        f"This is version {schema.version}.",
        "",
        "## Messages",
        "",
        "| message | number | from | | answer | longest body |",
        "|---|---|---|---|---|---|",
        *(_row(message) for message in schema.messages),
    ]
    for message in schema.messages:
        if message.body.fields or message.rest:
            lines += ["", f"### {message.name}", "", *_fields(message.body.fields), *_rest(message)]
    lines += ["", "## Half rows", "", *_HALF_ROWS.splitlines()]
    lines += [
        "",
        "## Layouts",
        "",
        "Fields are packed, little endian. `u8[64]` is an array of 64; a field `zero` is 0.",
    ]
    for struct in schema.structs:
        lines += [
            "",
            f"### {struct.name}",
            "",
            f"{struct.what[0].upper()}{struct.what[1:]}; {struct.bytes} bytes.",
        ]
        lines += ["", *_fields(struct.fields)]
    lines += ["", "## Limits", "", "| limit | | why |", "|---|---|---|"]
    lines += [f"| {one.name} | {one.value} {one.unit} | {one.why} |" for one in schema.limits]
    lines += ["", "## Numbers", "", *_numbers(schema), "", "## Operations", "", *_operations(schema), ""]
    return "\n".join(lines)


def _row(message: Message) -> str:
    body = message.body
    cells = (body.name, message.number, message.sender, body.what, message.answer, message.most_bytes)
    return "| " + " | ".join(map(str, cells)) + " |"


def _fields(fields: Sequence[Field]) -> Iterator[str]:
    if fields:
        yield from ("| field | type | |", "|---|---|---|")
    for field in fields:
        yield f"| {field.name} | {field.text} | {field.what} |"


def _rest(message: Message) -> Iterator[str]:
    if message.rest and message.body.fields:
        yield ""
    for rest in message.rest:
        count = f"as many as `{rest.count}` says" if rest.count else "to the end of the message"
        what = f": {rest.what}" if rest.what else ""
        yield f"Then `{rest.name}`, {rest.of} each, {count}, {rest.most} ({rest.most_items}) at most{what}."


def _numbers(schema: Schema) -> Iterator[str]:
    yield "Operations, types and kinds are numbered by their places in these lists, from 0, whatever ggml's"
    yield "own numbers are; each side looks up by name which of them its release of ggml has."
    rows = {"load results": schema.load_results, "types": schema.types, **schema.kinds}
    for name, values in rows.items():
        yield from ("", f"{name}: " + " ".join(f"{number} `{value}`" for number, value in enumerate(values)))


def _operations(schema: Schema) -> Iterator[str]:
    yield "Sources: how many an operation needs, and takes. In place: sources that the result may lie on."
    yield from ("", "| number | operation | sources | in place |", "|---|---|---|---|")
    for number, one in enumerate(schema.operations):
        sources = f"{one.least}" if one.least == one.most else f"{one.least} to {one.most}"
        yield f"| {number} | {one.name} | {sources} | {', '.join(map(str, one.over))} |"
