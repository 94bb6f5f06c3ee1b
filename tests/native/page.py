"""docs/native-protocol.md, generated from the schema."""

from tests.native.schema import Field, Message, Schema

_HEAD = """\
# The mesh-server protocol

Overview for contributors who write or check either side. The specification is
[native/mesh/protocol.toml](../native/mesh/protocol.toml): the meaning of every field, and every limit, type
and operation. `python -m tests.native.schema --write` generates this page from it. Rationale: [decision
0034](decisions/0034-native-backend.md). Implementation: [native-backend.md](native-backend.md).

A head and a worker share one connection, a byte stream that no other process can reach. The head sends
requests, and the worker processes them in order. Only some requests have an answer. An answer has the id of
its request, and may overtake earlier answers. A violation of any rule ends the connection; if it can, the
worker gives the reason in FAILED.

Two workers of one head may share a connection too. Results that one computes for the other then cross it
instead of passing through the head, which sends PUSH to one and TAKE to the other right after each other, so
that two workers never wait for each other. A worker that lost a neighbour fails at its next PUSH or TAKE.
Workers are numbered by their places in the head's list, from 0.
"""

_HALF_ROWS = """\
If the `row` of a request is n, rows of n f32 values in a buffer take n + 1 words of 16 bits each in WRITE,
DATA and PUSHED: an exponent e from 0 to HALF_EXPONENT, then the values divided by 2^e as IEEE half floats. e
is the smallest exponent with which the finite values of the row fit into a half; it is 0 unless one exceeds
65504. Infinities and NaN stay as they are. Pieces consist of whole rows, a row is no longer than a piece, and
sizes in requests are those in the buffer. PUSH and TAKE of the same bytes have the same `row`. The head
chooses which values cross so ([native-backend.md](native-backend.md#hidden-states-as-half-floats)).
"""


def page(schema: Schema) -> str:
    """Return the whole page."""
    lines = [_HEAD, f"This is version {schema.version}.", "", "## Messages", ""]
    lines += [
        "A message begins with HEADER. Fields are packed, little endian; `[]` is a list behind them.",
        "",
    ]
    lines += ["| message | from | | body | longest | answer |", "|---|---|---|---|---|---|"]
    lines += map(_row, schema.messages)
    lines += ["", "## Half rows", "", *_HALF_ROWS.splitlines()]
    lines += ["", "## Layouts", ""]
    lines += [
        f"- {one.name}, {one.bytes} bytes: {', '.join(map(_field, one.fields))}" for one in schema.structs
    ]
    return "\n".join([*lines, ""])


def _row(message: Message) -> str:
    body = message.body
    parts = [*map(_field, body.fields), *(f"{rest.name} {rest.of}[]" for rest in message.rest)]
    name = f"{message.number} {body.name}"
    cells = (name, message.sender, body.what, ", ".join(parts), message.most_bytes, message.answer)
    return "| " + " | ".join(map(str, cells)) + " |"


def _field(field: Field) -> str:
    return f"{field.name} {field.text}"
