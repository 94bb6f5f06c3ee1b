"""Chats, as the dialects make them."""

from collections import deque
from collections.abc import Callable
from typing import SupportsIndex

import pytest
from meshd.gateway.dialects import chat, ollama
from meshd.gateway.dialects.chat import ChatDialect
from meshd.gateway.dialects.dialect import Dialect
from meshd.gateway.dialects.messages import MessagesDialect
from meshd.gateway.dialects.responses import ResponsesDialect
from meshd.gateway.dialects.template_fit import TemplateTraits, fitted
from meshd.gateway.failure import HttpRefusal

from tests.unit.gateway.dialects.llama_server import FACTS

MANY = 300


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many letters each call of `joined` was given."""
    given: list[int] = []
    joined = chat.joined

    def counted(*contents: object) -> str | list[chat.Part]:
        given.append(sum(len(one) for one in contents if isinstance(one, str | list)))
        return joined(*contents)

    monkeypatch.setattr(chat, "joined", counted)
    return given


def read(dialect: Dialect, asked: dict[str, object]) -> list[dict[str, object]]:
    messages = dialect.read(asked, FACTS).fields["messages"]
    assert isinstance(messages, list)
    return messages


def test_answers_in_a_row_are_joined_once(handed: list[int]) -> None:
    items = [{"role": "assistant", "content": "x" * 50}] * MANY
    [message] = read(ResponsesDialect(), {"input": items})
    assert message["content"] == "\n\n".join(["x" * 50] * MANY)
    assert sum(handed) <= MANY * 60


@pytest.mark.parametrize(
    "traits", [TemplateTraits(neighbours=False), TemplateTraits(late_systems=False)], ids=["turns", "systems"]
)
def test_neighbours_are_joined_once_for_a_template(handed: list[int], traits: TemplateTraits) -> None:
    role = "system" if not traits.late_systems else "user"
    fields, _ = fitted({"messages": [{"role": role, "content": "x" * 50}] * MANY}, traits)
    messages = fields["messages"]
    assert isinstance(messages, list) and messages[0]["content"] == "\n\n".join(["x" * 50] * MANY)
    assert sum(handed) <= MANY * 60


def test_joined_texts_come_first_and_parts_stay_parts() -> None:
    image = chat.image_part("data:image/png;base64,AA")
    assert chat.joined("a", None, "", "b") == "a\n\nb"
    assert chat.joined("a", "b", [image], "c") == [
        chat.text_part("a\n\nb"),
        image,
        chat.text_part("c"),
    ]


def test_calls_in_a_row_become_one_message_in_their_order() -> None:
    calls = [
        {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": '{"a": 1'} for n in range(3)
    ]
    [message] = read(ResponsesDialect(), {"input": calls})
    told = message["tool_calls"]
    assert isinstance(told, list) and type(told) is list
    assert [one["id"] for one in told] == ["c0", "c1", "c2"]
    assert {one["function"]["arguments"] for one in told} == {'{"a": 1}'}


def chat_call(arguments: str) -> dict[str, object]:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}] * 2
    return {"messages": [{"role": "assistant", "content": "", "tool_calls": calls}]}


def response_call(arguments: str) -> dict[str, object]:
    return {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}] * 2}


def messages_call(arguments: str) -> dict[str, object]:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": arguments}
    return {"max_tokens": 1, "messages": [{"role": "assistant", "content": [call] * 2}]}


def ollama_call(arguments: str) -> dict[str, object]:
    calls = [{"function": {"name": "f", "arguments": arguments}}] * 2
    return {"messages": [{"role": "assistant", "tool_calls": calls}]}


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        (ChatDialect("/v1/chat/completions"), chat_call),
        (ResponsesDialect(), response_call),
        (MessagesDialect(), messages_call),
        (ollama.OllamaChat(), ollama_call),
    ],
    ids=["chat", "responses", "messages", "ollama"],
)
@pytest.mark.parametrize("arguments", ['"' + "[]," * 140_000, "0," * 1_100_000], ids=["parts", "values"])
def test_arguments_are_counted_before_they_are_parsed(
    monkeypatch: pytest.MonkeyPatch,
    dialect: Dialect,
    asked: Callable[[str], dict[str, object]],
    arguments: str,
) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(chat, "sound_arguments", parsed.append)
    with pytest.raises(HttpRefusal) as refused:
        dialect.read(asked(arguments), FACTS)
    assert refused.value.failure.status == 413 and not parsed


class _Looked:
    """Counts how many places of calls are looked at."""

    def __init__(self) -> None:
        self.count = 0


def test_a_result_is_found_at_once_among_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = _Looked()

    class Places(deque[int]):
        def __getitem__(self, at: SupportsIndex) -> int:  # type: ignore[override]
            looked.count += 1
            return super().__getitem__(at)

    monkeypatch.setattr(ollama, "deque", Places)
    calls = [{"id": f"c{n}", "function": {"name": f"n{n % 7}", "arguments": {}}} for n in range(MANY)]
    results = [{"role": "tool", "content": "", "tool_name": "other"}] * MANY
    made = read(ollama.OllamaChat(), {"messages": [{"role": "assistant", "tool_calls": calls}, *results]})
    assert [one["tool_call_id"] for one in made[1:]] == [f"c{n}" for n in range(MANY)]
    assert looked.count <= 8 * MANY


def test_results_are_found_by_id_then_by_name_then_by_age() -> None:
    calls = [{"id": f"c{n}", "function": {"name": f"n{n % 2}", "arguments": {}}} for n in range(5)]
    results = [
        {"role": "tool", "content": "", "tool_call_id": "c2"},
        {"role": "tool", "content": "", "tool_name": "n1"},
        {"role": "tool", "content": "", "tool_name": "n0"},
        {"role": "tool", "content": ""},
        {"role": "tool", "content": ""},
        {"role": "tool", "content": "", "tool_name": "n9"},
    ]
    made = read(ollama.OllamaChat(), {"messages": [{"role": "assistant", "tool_calls": calls}, *results]})
    assert [one["tool_call_id"] for one in made[1:]] == ["c2", "c1", "c0", "c3", "c4", "n9"]
