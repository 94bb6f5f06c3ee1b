"""What a body asks for."""

import json
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import Share
from meshd.gateway import body as body_module
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


MARKS = st.text('"\\,[{}]:ab', max_size=6)
MARKED = st.recursive(
    MARKS | st.integers(0, 9) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MARKS, inner, max_size=4),
    max_leaves=12,
)


def marks(value: object) -> int:
    """One for each list and object, and one for each value in them but the first."""
    if not isinstance(value, dict | list):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(marks, inner))


@given(
    st.dictionaries(MARKS, MARKED, max_size=4), st.integers(0, 12), st.sampled_from([b"", b"x", b'"', b"\\"])
)
def test_values_are_counted_and_text_is_not(asked: dict[str, object], most: int, behind: bytes) -> None:
    body = json.dumps(asked).encode()
    with mock.patch.object(body_module, "API_BODY_VALUES", Share("", most, "node", "")):
        if marks(asked) <= most:
            assert parse_object(body) == asked
            return
        with pytest.raises(HttpRefusal) as refused:
            parse_object(body + behind)
    assert (refused.value.failure.status, refused.value.failure.code) == (413, "too_many_values")


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"1.5,", b'"",', b'{"":[]},'])
def test_a_body_of_values_that_take_gigabytes_is_not_parsed(
    unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "loads", lambda _text: pytest.fail("it stops everything meanwhile"))
    with pytest.raises(HttpRefusal) as refused:
        parse_object(b'{"prompt":[' + unit * ((16 << 20) // len(unit)) + b"0]}")
    assert refused.value.failure.status == 413


@pytest.mark.parametrize("text", ['a "quoted, [word]", \\ \n', ",", "[[", '\\"'])
def test_a_long_prompt_may_have_any_letters(text: str) -> None:
    body = json.dumps({"prompt": text * ((8 << 20) // len(text))}).encode()
    assert set(parse_object(body)) == {"prompt"}


def test_a_long_prompt_may_be_tokens() -> None:
    body = json.dumps({"prompt": [1] * (1 << 20)}).encode()
    assert set(parse_object(body)) == {"prompt"}
