"""What a body asks for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.body import parse_object, with_fields
from meshd.gateway.failure import HttpRefusal

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON_VALUES, min_size=1, max_size=5), st.sampled_from(["", " ", "\r\n\t"]))
def test_fields_that_are_added_leave_the_others_as_they_are(fields: dict[str, object], behind: str) -> None:
    body = (json.dumps(fields) + behind).encode()
    assert parse_object(body) == fields
    extended = with_fields(body, {"top_k": 40, "samplers": ["top_k"]})
    assert extended.startswith(body.rstrip()[:-1])
    assert parse_object(extended) == {**fields, "top_k": 40, "samplers": ["top_k"]}


@given(st.binary())
def test_anything_else_is_refused_as_a_400(body: bytes) -> None:
    try:
        parse_object(body)
    except HttpRefusal as refusal:
        assert refusal.failure.status == 400
    else:
        assert isinstance(json.loads(body), dict)


@pytest.mark.parametrize(
    "body", [b"1" * 10_000, b'{"a":' * 50_000, b'{"a":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}"]
)
def test_bodies_made_to_hurt_are_refused(body: bytes) -> None:
    with pytest.raises(HttpRefusal):
        parse_object(body)
