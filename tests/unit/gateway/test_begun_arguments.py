"""Arguments that end anywhere."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.begun_arguments import BegunArgument, BegunArguments, begun_arguments

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=4)


@given(OBJECTS, st.data(), st.sampled_from([None, 1]), st.booleans())
def test_what_came_so_far_is_read(
    whole: dict[str, object], draw: st.DataObject, indent: int, ascii: bool
) -> None:
    text = json.dumps(whole, indent=indent, ensure_ascii=ascii)
    begun = begun_arguments(text[: draw.draw(st.integers(0, len(text)))])
    assert begun is not None
    names = list(whole)
    assert [one.name for one in begun.arguments] == names[: len(begun.arguments)]
    for one in begun.arguments[:-1]:
        assert json.loads(one.value) == whole[one.name]
    if begun.arguments:
        last = begun.arguments[-1]
        value = whole[last.name]
        if last.is_text and last.value:
            assert isinstance(value, str) and json.loads(json.dumps(value)).startswith(
                last.text.rstrip("\ud800")
            )
        if begun.is_closed:
            assert json.loads(last.value) == value
    if begun.next_name is not None:
        assert names[len(begun.arguments)].startswith(begun.next_name)


@given(OBJECTS)
def test_all_of_it_is_closed(whole: dict[str, object]) -> None:
    begun = begun_arguments(json.dumps(whole))
    assert begun is not None and begun.is_closed and begun.next_name is None
    assert {one.name: json.loads(one.value) for one in begun.arguments} == whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", BegunArguments()),
        ("{", BegunArguments()),
        ('{"ci', BegunArguments(next_name="ci")),
        ('{"city"', BegunArguments(next_name="city")),
        ('{"city": ', BegunArguments(next_name="city")),
        ('{"city": "Ro', BegunArguments([BegunArgument("city", '"Ro')], is_closed=False)),
        ('{"city": "Rome"', BegunArguments([BegunArgument("city", '"Rome"')])),
        ('{"n": 12', BegunArguments([BegunArgument("n", "12")], is_closed=False)),
        ('{"n": 12,', BegunArguments([BegunArgument("n", "12")], next_name="")),
        ('{"n": [1, {"a', BegunArguments([BegunArgument("n", '[1, {"a')], is_closed=False)),
        ('{"n": 12}', BegunArguments([BegunArgument("n", "12")])),
    ],
)
def test_where_it_ends(text: str, expected: BegunArguments) -> None:
    assert begun_arguments(text) == expected


@pytest.mark.parametrize("text", ["[", "x", "{x", '{"a" 1', '{"a": 1 2', '{"a": 1,, "b": 2}'])
def test_what_is_no_object_is_not_read(text: str) -> None:
    assert begun_arguments(text) is None


def test_what_is_nested_too_deeply_is_not_read() -> None:
    begun = begun_arguments('{"a": ' + "[" * 100_000)
    assert begun is None


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for one in (text, '{"' + text):
        begun = begun_arguments(one)
        assert begun is None or all(argument.value in one for argument in begun.arguments)


def test_half_an_escape_sequence_is_not_yet_a_letter() -> None:
    for said, text in (
        (r'"a\n', "a\n"),
        ('"a\\', "a"),
        (r'"a\u00', "a"),
        (r'"a\u00e4', "aä"),
        ('"', ""),
        ("", ""),
    ):
        assert BegunArgument("x", said).text == text
