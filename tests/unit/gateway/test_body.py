"""What a body asks for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.body import wants_stream
from meshd.gateway.failure import HttpRefusal

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=5), JSON_VALUES)
def test_only_true_asks_for_a_stream(fields: dict[str, object], stream: object) -> None:
    body = json.dumps({**fields, "stream": stream}).encode()
    assert wants_stream(body) == (stream is True)
    fields.pop("stream", None)
    assert not wants_stream(json.dumps(fields).encode())


@given(st.binary())
def test_anything_else_is_refused_as_a_400(body: bytes) -> None:
    try:
        wants_stream(body)
    except HttpRefusal as refusal:
        assert refusal.failure.status == 400
    else:
        assert isinstance(json.loads(body), dict)


@pytest.mark.parametrize(
    "body", [b"1" * 10_000, b'{"a":' * 50_000, b'{"a":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}"]
)
def test_bodies_made_to_hurt_are_refused(body: bytes) -> None:
    with pytest.raises(HttpRefusal):
        wants_stream(body)
