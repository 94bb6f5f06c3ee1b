"""Calls of tools that a template writes argument by argument."""

import json
import time
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.begun_arguments import BegunArguments, begun_arguments
from meshd.gateway.tagged_calls import tagged_arguments, written_tagged

Call = Mapping[str, object]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _keys(call: Call) -> str:
    said = "".join(
        f"<arg_key>{name}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n" for name, value in call.items()
    )
    return f"<tool_call>f\n{said}</tool_call>"


def _parameters(call: Call) -> str:
    said = "".join(f"<parameter={name}>\n{_plain(value)}\n</parameter>\n" for name, value in call.items())
    return f"\n<tool_call>\n<function=f>\n{said}</function>\n</tool_call>"


def _kinds(call: Call) -> str:
    said = "".join(
        f'<p name="{name}" string="{str(isinstance(value, str)).lower()}">{_plain(value)}</p>'
        for name, value in call.items()
    )
    return f'<invoke name="f">{said}</invoke>'


def _quoted(call: Call) -> str:
    said = "".join(
        f'<arg name="{name}">{json.dumps(value, ensure_ascii=False)}</arg>\n' for name, value in call.items()
    )
    return f"<call f>\n{said}</call>"


TEMPLATES: Sequence[Callable[[Call], str]] = (_keys, _parameters, _kinds, _quoted)
NAMES = st.text("abcdef_", min_size=1, max_size=6)
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="<>", exclude_categories=["Cc"]), min_size=1, max_size=9
)
VALUES = TEXTS | st.integers() | st.booleans() | st.lists(st.integers(0, 99) | TEXTS, max_size=3)
CALLS = st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3)


def _shown(template: Callable[[Call], str], arguments: Sequence[str]) -> str:
    return "".join(template(json.loads(one)) for one in arguments)


def _written(template: Callable[[Call], str], calls: Sequence[str]) -> str | None:
    begun = [begun_arguments(one) for one in calls]
    known: list[BegunArguments] = [one for one in begun if one is not None]
    assert len(known) == len(calls)
    shown, longer = tagged_arguments(known)
    return written_tagged(_shown(template, shown), _shown(template, longer), known)


@given(CALLS, st.sampled_from(TEMPLATES), st.data())
def test_it_is_the_beginning_of_what_the_model_would_write(
    calls: list[dict[str, object]], template: Callable[[Call], str], draw: st.DataObject
) -> None:
    told = [json.dumps(one, ensure_ascii=False) for one in calls]
    end = draw.draw(st.integers(0, len(told[-1])))
    written = _written(template, [*told[:-1], told[-1][:end]])
    whole = "".join(map(template, calls))
    before = "".join(map(template, calls[:-1]))
    assert written is not None
    assert whole.startswith(written)
    assert written.startswith(before.rstrip("\n")) or len(calls) == 1


@pytest.mark.parametrize(
    ("came", "written"),
    [
        ("", "<tool_call>f\n"),
        ('{"ci', "<tool_call>f\n<arg_key>ci"),
        ('{"city": "Ro', "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Ro"),
        ('{"city": "Rome"', "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"),
        ('{"n": 12', "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>12"),
        ('{"n": 12, "c', "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>12</arg_value>\n<arg_key>c"),
        (r'{"t": "a\"b', '<tool_call>f\n<arg_key>t</arg_key>\n<arg_value>a"b'),
    ],
)
def test_where_it_goes_on(came: str, written: str) -> None:
    assert _written(_keys, [came]) == written


@pytest.mark.parametrize(
    ("shown", "longer"),
    [("", ""), ("<a>", "<a>"), ("<a>meshd-value-0.", "<b>meshd-value-0."), ("<a>meshd-value-0.", "<a>")],
)
def test_a_template_that_shows_no_values_is_not_read(shown: str, longer: str) -> None:
    begun = begun_arguments('{"a": "b')
    assert begun is not None
    assert written_tagged(shown, longer, [begun]) is None


def test_a_template_that_shows_no_next_name_is_not_read() -> None:
    begun = begun_arguments('{"a')
    assert begun is not None
    assert written_tagged("<f>", "<f>", [begun]) is None


def test_very_many_arguments_take_a_second() -> None:
    """Whoever answers may be another node. Each argument must not cost a copy of all that follow."""
    begun = begun_arguments("{" + ", ".join(f'"{number}": "x"' for number in range(50_000)))
    assert begun is not None
    shown, longer = tagged_arguments([begun])
    prompts = _shown(_quoted, shown), _shown(_quoted, longer)
    began = time.thread_time()  # others use the same processor
    assert written_tagged(*prompts, [begun]) is not None
    assert time.thread_time() - began < 1.0
