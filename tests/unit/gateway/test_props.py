"""Whoever may look at the properties of a llama-server does not learn where its model lies."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.props import told_props
from meshd.gateway.upstream import HELD_ANSWER_BYTES

TEMPLATE = '{"model_path": "of a template"} "model_path":"x\\'


@given(st.text(min_size=1), st.text(), st.sampled_from([None, 0, 2]), st.booleans())
def test_the_path_is_replaced_and_nothing_else(
    path: str, model: str, indent: int | None, ascii_: bool
) -> None:
    said = {"total_slots": 4, "chat_template": TEMPLATE, "model_path": path, "bos_token": TEMPLATE}
    body = json.dumps(said, indent=indent, ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    told = told_props(body, model)
    assert json.loads(told) == {**said, "model_path": model}
    without = json.dumps(model).encode()
    assert told.startswith(body[: body.index(b'"model_path"')]) and without in told


@pytest.mark.parametrize("body", [b"", b"no JSON", b'{"model_path":', b'{"model_path":"/home/a', b'{"a":1}'])
def test_what_has_no_such_field_is_left_as_it_is(body: bytes) -> None:
    assert told_props(body, "tiny") == body


@pytest.mark.parametrize("unit", ["x", '\\"', "\\\\", 'x\\"'])
@pytest.mark.parametrize("end", ['"}', ""], ids=["ended", "open"])
def test_the_longest_properties_take_little_memory(unit: str, end: str) -> None:
    """Of a head that means no good."""
    body = bytearray(('{"model_path":"' + unit * (HELD_ANSWER_BYTES // len(unit)) + end).encode())
    tracemalloc.start()
    try:
        assert (told_props(body, "tiny") == b'{"model_path":"tiny"}') is bool(end)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()
