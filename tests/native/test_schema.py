"""The schema of the mesh-server protocol keeps its rules, and what is made from it is up to date."""

from pathlib import Path

import pytest
from meshd.rpc import mesh_protocol

from tests.native.generated import GENERATED
from tests.native.schema import SCHEMA, load, read_schema

TEXT = SCHEMA.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_what_is_made_from_it_is_up_to_date(path: Path) -> None:
    made = GENERATED[path](load())
    assert path.read_text(encoding="utf-8") == made, "run `python -m tests.native.schema --write`"


def test_the_tables_of_python_lay_out_what_the_header_does() -> None:
    schema = load()
    for message in schema.messages:
        table = mesh_protocol.MESSAGES[message.number]
        assert (table.name, table.body.size, table.most) == (
            message.name,
            message.body.bytes,
            message.most_bytes,
        )
    assert mesh_protocol.TENSOR.size == next(one for one in schema.structs if one.name == "TENSOR").bytes


BROKEN = (
    ("number = 129", "number = 1", "there twice"),
    ("number = 129", "number = 100", "of this sender"),
    ('sender = "neighbour"', 'sender = "friend"', "of this sender"),
    ('answer = "WELCOME"', 'answer = "SYNC"', "answered by a request"),
    ('count = "node_count", ', "", "only the last list"),
    ('count = "node_count", ', 'count = "nodes", ', "only the last list"),
    ("PIECE_BYTES = { value = 4194304,", "PIECE_BYTES = { value = 4294967296,", "longer than a header"),
    ('type = "u16", what = "0"', 'type = "u24", what = "0"', "no type of the wire"),
    ('"q1_0", "q2_0"', '"q1_0", "q1_0"', "there twice"),
)


@pytest.mark.parametrize(("old", "new", "why"), BROKEN, ids=lambda value: value[:24])
def test_a_rule_that_it_breaks_is_named(old: str, new: str, why: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match=why):
        read_schema(TEXT.replace(old, new, 1))


def test_sizes_are_those_of_the_wire() -> None:
    """A change of these is a new version of the protocol."""
    sizes = {one.name: one.bytes for one in load().structs}
    assert sizes == {"HEADER": 16, "DEVICE": 236, "TENSOR": 256, "LOAD_ENTRY": 56, "LOAD_PART": 96}
    assert load().version == 6
