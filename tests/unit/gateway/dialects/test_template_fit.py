"""Messages as chat templates of different kinds take them. Real templates: tests/e2e/test_templates.py."""

import json
from collections.abc import Sequence
from dataclasses import fields as names_of
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.dialects.template_fit import (
    TemplateTraits,
    fitted,
    template_questions,
    traits_of,
)
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.request import needs_fit

from tests.unit.gateway.dialects.llama_server import JSON

TAKES_ALL = TemplateTraits()
TRAITS = [field.name for field in names_of(TemplateTraits)]
CALLS = [
    {"id": f"c{number}", "type": "function", "function": {"name": "ls", "arguments": f'{{"a": {number}}}'}}
    for number in (1, 2)
]
TOOLS = [{"type": "function", "function": {"name": "ls"}}]
CHAT = [
    {"role": "system", "content": "one"},
    {"role": "developer", "content": "two"},
    {"role": "user", "content": "hi"},
    {"role": "user", "content": "you"},
    {"role": "assistant", "content": "I look.", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c1", "content": "r1"},
    {"role": "tool", "tool_call_id": "c2", "content": "r2"},
    {"role": "user", "content": "so?"},
]


def fit(*lacking: str, messages: Sequence[object] = CHAT) -> list[dict[str, Any]]:
    traits = replace(TAKES_ALL, **dict.fromkeys(lacking, False))
    found: Any = fitted({"messages": list(messages)}, traits)[0]["messages"]
    return list(found)


def test_what_takes_all_gets_all_as_it_is() -> None:
    assert fit() == CHAT


def test_system_messages_become_one_in_their_order() -> None:
    found = fit("late_systems", messages=[*CHAT, {"role": "system", "content": "three"}])
    assert found[0] == {"role": "system", "content": "one\n\ntwo\n\nthree"}
    assert [one["role"] for one in found[1:]] == ["user", "user", "assistant", "tool", "tool", "user"]


def test_neighbours_of_one_role_become_one() -> None:
    roles = [(one["role"], one["content"]) for one in fit("neighbours")]
    assert roles[2:4] == [("user", "hi\n\nyou"), ("assistant", "I look.")]
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}
    (both,) = fit("neighbours", messages=[{"role": "user", "content": "see"}, image])
    assert both["content"] == [{"type": "text", "text": "see"}, *image["content"]]


def test_the_user_comes_first() -> None:
    found = fit("neighbours", messages=[{"role": "assistant", "content": "I"}])
    assert [one["role"] for one in found] == ["user", "assistant"]


def test_calls_and_results_become_text() -> None:
    found = fit("calls", "results", "neighbours", "late_systems", "user_after_result")
    assert [one["role"] for one in found] == ["system", "user", "assistant", "user"]
    said = 'I look.\n\n{"name": "ls", "arguments": {"a": 1}}\n{"name": "ls", "arguments": {"a": 2}}'
    assert found[2] == {"role": "assistant", "content": said}
    assert found[3]["content"] == "Result of `ls`:\n\nr1\n\nResult of `ls`:\n\nr2\n\nso?"


def test_calls_that_were_made_at_once_come_one_after_another() -> None:
    found = fit("parallel_calls")[4:8]
    assert [one["role"] for one in found] == ["assistant", "tool", "assistant", "tool"]
    assert [one["tool_calls"][0]["id"] for one in found[::2]] == ["c1", "c2"]
    assert [one["content"] for one in found] == ["I look.", "r1", "", "r2"]


def test_what_a_user_says_next_to_a_result_is_told_with_it() -> None:
    assert fit("user_after_result")[-1] == {"role": "tool", "tool_call_id": "c2", "content": "r2\n\nso?"}


def test_ids_of_calls_have_nine_letters_where_a_template_demands_it() -> None:
    called, first, second = fit("any_ids")[4:7]
    ids = [call["id"] for call in called["tool_calls"]]
    assert ids == ["call00001", "call00002"]
    assert [first["tool_call_id"], second["tool_call_id"]] == ids


def test_a_result_without_its_call_is_told_by_the_user() -> None:
    found = fit(messages=[CHAT[0], CHAT[5], CHAT[2]])
    assert found[1] == {"role": "user", "content": "Result of a tool:\n\nr1"}


def test_a_call_that_was_interrupted_gets_a_result() -> None:
    found = fit(messages=[CHAT[2], CHAT[4], CHAT[6], CHAT[7]])
    assert [one["role"] for one in found] == ["user", "assistant", "tool", "tool", "user"]
    assert found[3]["tool_call_id"] == "c1" and "interrupted" in found[3]["content"]


def test_a_history_without_any_user_gets_one() -> None:
    assert [one["role"] for one in fit(messages=CHAT[:1])] == ["system", "user"]
    assert needs_fit({"messages": CHAT[:1]})


def test_tools_that_cannot_be_offered_are_named() -> None:
    traits = replace(TAKES_ALL, tools=False, calls=False)
    asked: dict[str, object] = {"messages": CHAT, "tools": TOOLS}
    assert "`ls`" in fitted(asked, traits)[1][0]
    with pytest.raises(HttpRefusal) as caught:
        fitted({**asked, "tool_choice": "required"}, traits)
    assert (caught.value.failure.status, caught.value.failure.code) == (400, "tools_not_offered")


def test_tools_are_told_to_a_template_that_has_a_form_for_calls_alone() -> None:
    asked = {"messages": CHAT, "tools": TOOLS}
    fields, notes = fitted(asked, replace(TAKES_ALL, tools=False, late_systems=False))
    messages: Any = fields["messages"]
    assert messages[0]["content"] == 'You can call these functions:\n{"name": "ls"}\n\none\n\ntwo'
    assert notes == () and fields["tools"] == TOOLS


def test_a_plain_chat_asks_nothing_of_a_template() -> None:
    plain = [CHAT[0], CHAT[2], {"role": "assistant", "content": "ho"}, CHAT[3]]
    assert not needs_fit({"messages": plain})
    for more in (CHAT, CHAT[1:4], [CHAT[2], CHAT[1]], [{"role": "assistant", "content": "I"}]):
        assert needs_fit({"messages": more})
    assert needs_fit({"messages": plain, "tools": TOOLS})


def schemas_for(*lacking: str, **properties: object) -> dict[str, Any]:
    """Return the properties of a tool's arguments as a template without these traits gets them."""
    traits = replace(TAKES_ALL, **dict.fromkeys(lacking, False))
    function = {"name": "ls", "parameters": {"type": "object", "properties": properties, "required": []}}
    tools = [{"type": "function", "function": function}]
    found: Any = fitted({"messages": CHAT, "tools": tools}, traits)[0]["tools"]
    assert found[0]["function"]["parameters"].keys() == {"type", "properties", "required"}
    return dict(found[0]["function"]["parameters"]["properties"])


MAYBE = {"type": ["null", "integer"], "description": "how many", "minimum": 1}
UNION = {"oneOf": [{"type": "null"}, {"type": "number"}]}
LIST = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("lacking", "schema", "expected"),
    [
        ("type_lists", MAYBE, {"anyOf": [MAYBE], "description": "how many"}),
        ("type_lists untyped", MAYBE, {"type": "integer", "anyOf": [MAYBE], "description": "how many"}),
        ("untyped", UNION, {"type": "number", "anyOf": [UNION]}),
        ("untyped", {}, {"type": "string", "anyOf": [{}]}),
        ("arrays", LIST, {"anyOf": [LIST]}),
        ("arrays untyped", LIST, {"type": "string", "anyOf": [LIST]}),
        ("untyped", LIST, LIST),
        (
            "type_lists",
            {"type": "array", "items": MAYBE},
            {"type": "array", "items": {"anyOf": [MAYBE], "description": "how many"}},
        ),
        (
            "arrays",
            {"type": "object", "additionalProperties": LIST},
            {"type": "object", "additionalProperties": {"anyOf": [LIST]}},
        ),
        (
            "type_lists untyped arrays",
            {"type": "object", "properties": {"a": True}},
            {"type": "object", "properties": {"a": True}},
        ),
        ("late_systems", MAYBE, MAYBE),
    ],
)
def test_a_schema_that_a_template_cannot_read_is_the_choice_of_one_that_it_can(
    lacking: str, schema: object, expected: object
) -> None:
    assert schemas_for(*lacking.split(), a=schema, b={"type": "string"}) == {
        "a": expected,
        "b": {"type": "string"},
    }


def written(question: bytes, lacking: str) -> str:
    """Return what a template that lacks this writes."""
    asked = json.loads(question)
    messages = asked["messages"]
    roles = [one["role"] for one in messages]
    if lacking == "late_systems" and "system" in roles[1:]:
        return ""
    if lacking == "neighbours" and roles == ["user", "user"]:
        return ""
    if lacking == "user_after_result" and roles[-2:] == ["tool", "user"]:
        return ""
    for tool in asked.get("tools", []):
        kind = tool["function"]["parameters"]["properties"]["path"].get("type")
        refused = {"type_lists": isinstance(kind, list), "untyped": kind is None, "arrays": kind == "array"}
        if refused.get(lacking):
            return ""
    calls = [call for one in messages for call in one.get("tool_calls", [])]
    if lacking == "any_ids" and any(len(call["id"]) != 9 for call in calls):
        return ""
    if lacking == "parallel_calls":
        calls = calls[:1]
    said = [one["content"] for one in messages if lacking != "results" or one["role"] != "tool"]
    said += [] if lacking == "calls" else [call["function"]["arguments"] for call in calls]
    said += [] if lacking == "tools" else [tool["function"]["name"] for tool in asked.get("tools", [])]
    return "\n".join(said)


@pytest.mark.parametrize("lacking", ["", *(name for name in TRAITS if name not in ("calls", "results"))])
def test_a_template_is_known_by_what_it_writes(lacking: str) -> None:
    traits = traits_of([written(one, lacking) for one in template_questions()])
    assert [name for name in TRAITS if not getattr(traits, name)] == ([lacking] if lacking else [])


@pytest.mark.parametrize("lacking", ["calls", "results"])
def test_what_is_not_written_is_missed_wherever_it_stands(lacking: str) -> None:
    traits = traits_of([written(one, lacking) for one in template_questions()])
    assert not getattr(traits, lacking) and not traits.parallel_calls
    assert traits.user_after_result is (lacking == "calls")


def test_where_nobody_can_be_asked_there_is_one_system_message() -> None:
    assert traits_of([""] * len(template_questions())) == TemplateTraits(late_systems=False)


@given(
    st.dictionaries(st.sampled_from(["messages", "tools", "tool_choice"]), JSON),
    st.sets(st.sampled_from(TRAITS)),
)
def test_whatever_is_asked_is_put_or_refused(fields: dict[str, object], lacking: set[str]) -> None:
    needs_fit(fields)
    try:
        json.dumps(fitted(fields, replace(TAKES_ALL, **dict.fromkeys(lacking, False)))[0])
    except HttpRefusal as refusal:
        assert refusal.failure.status == 400
