"""Chats as the dialects make them: OpenAI's own, and what holds for each dialect."""

import json
from collections import deque
from collections.abc import Callable
from typing import Any, SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.dialects import chat, ollama
from meshd.gateway.dialects.chat import ChatDialect, PassedOn
from meshd.gateway.dialects.dialect import Answering, Dialect, Translation
from meshd.gateway.dialects.fields import ENDPOINTS
from meshd.gateway.dialects.messages import MessagesAnswering, MessagesDialect
from meshd.gateway.dialects.responses import ResponsesDialect
from meshd.gateway.dialects.template_fit import TemplateTraits, fitted
from meshd.gateway.failure import Failure, HttpRefusal

from tests.unit.gateway.dialects.llama_server import DONE, FACTS, JSON, event, events_in, text
from tests.unit.gateway.dialects.test_ollama import lines

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("ls", "rm")]
PATH = "/v1/chat/completions"
MANY = 300


def translated(**fields: object) -> Translation:
    return ChatDialect(PATH).read({"messages": HI, **fields}, FACTS)


def test_a_chat_stays_as_it_is() -> None:
    asked = {"messages": HI, "model": "m", "stream": True, "tools": TOOLS, "temperature": 2, "min_p": 0.1}
    translation = translated(**asked)
    assert (translation.path, translation.stream) == (PATH, True)
    assert translation.fields == asked
    said = text("a") + text("b")
    assert translation.answering.events(said) == said


def test_calls_that_were_cut_off_can_be_sent_back() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"path": "a'}}
    fields: Any = translated(
        messages=[*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]
    ).fields
    message = fields["messages"][1]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"path": "a"}
    assert message["content"] == ""


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        ("required", "required", ["ls", "rm"]),
        ({"type": "function", "function": {"name": "rm"}}, "required", ["rm"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOLS[0]]}}, "auto", ["ls"]),
    ],
)
def test_a_tool_can_be_chosen(choice: object, expected: str, names: list[str]) -> None:
    """llama-server takes no choice by name: it would call any tool, or none."""
    fields: Any = translated(tools=TOOLS, tool_choice=choice).fields
    assert fields["tool_choice"] == expected
    assert [one["function"]["name"] for one in fields["tools"]] == names


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "bad"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "bob", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0].type"),
        ({"temperature": 9}, "temperature"),
        ({"top_p": 5}, "top_p"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "ls"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"temperature": float("nan")}, "temperature"),
        ({"response_format": {"type": "x"}}, "response_format.type"),
        ({"stream": "yes"}, "stream"),
    ],
    ids=str,
)
def test_what_openai_s_servers_refuse_is_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(HttpRefusal) as caught:
        translated(**fields)
    assert (caught.value.failure.status, caught.value.failure.param) == (400, param)


def test_a_call_in_the_older_form_reaches_the_template() -> None:
    said = {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": "{}"}}
    fields: Any = translated(messages=[*HI, said, {"role": "function", "name": "ls", "content": "a"}]).fields
    [call] = fields["messages"][1]["tool_calls"]
    assert call["function"] == {"name": "ls", "arguments": "{}"}
    assert "function_call" not in fields["messages"][1]
    assert fields["messages"][2]["role"] == "tool"


def test_a_number_that_is_none_is_told_as_such() -> None:
    with pytest.raises(HttpRefusal, match="finite"):
        translated(temperature=float("nan"))


def test_a_search_that_only_openai_has_is_left_out_by_name() -> None:
    assert translated(web_search_options={}).notes == ("web_search_options",)


def test_an_error_of_llama_server_in_a_stream_is_openai_s() -> None:
    said = PassedOn().events(
        event({"error": {"code": 500, "message": "Compute error.", "type": "server_error"}})
    )
    error = json.loads(said.removeprefix(b"data: "))["error"]
    assert error == {
        "message": "Compute error.",
        "type": "server_error",
        "param": None,
        "code": "upstream_error",
    }
    quoted = text('"error"')
    assert PassedOn().events(quoted) == quoted


@given(st.text())
def test_a_failure_is_one_event_whatever_the_message(message: str) -> None:
    event = PassedOn().failed(Failure(502, message))
    assert event.count(b"\n\n") == 1 and b"\r" not in event


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many letters each call of `joined` was given."""
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
        (ChatDialect(PATH), chat_call),
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


USER: dict[str, object] = {"messages": HI}
OLLAMA = ("messages", "prompt", "suffix", "raw", "input", "images", "options", "format", "think", "tools")
NAMES: dict[str, tuple[Dialect, dict[str, object], tuple[str, ...]]] = {
    "chat": (ChatDialect(PATH), USER, ("messages", "tools", "tool_choice", "response_format", "stream")),
    "responses": (
        ResponsesDialect(),
        {"input": "hi"},
        ("input", "tools", "tool_choice", "text", "reasoning", "instructions"),
    ),
    "messages": (
        MessagesDialect(),
        {**USER, "max_tokens": 50},
        ("messages", "max_tokens", "system", "tools", "tool_choice", "thinking", "stream"),
    ),
    "ollama chat": (ollama.OllamaChat(), USER, OLLAMA),
    "ollama generate": (ollama.OllamaGenerate(), {"prompt": "hi"}, OLLAMA),
    "ollama embed": (ollama.OllamaEmbed(), {"input": "hi"}, OLLAMA),
    "ollama embeddings": (ollama.OllamaEmbed(single=True), {"prompt": "hi"}, OLLAMA),
}


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_whatever_is_asked_is_read_or_refused(name: str, data: st.DataObject) -> None:
    dialect, needed, names = NAMES[name]
    fields: dict[str, object] = data.draw(st.dictionaries(st.sampled_from(names), JSON))
    for asked in (fields, {**needed, **fields}):
        try:
            translation = dialect.read(asked, FACTS)
        except HttpRefusal as refusal:
            assert refusal.failure.status == 400
        else:
            assert translation.path in ENDPOINTS and json.dumps(translation.fields)


def in_each_place(value: object) -> dict[str, object]:
    choice = {"delta": value, "message": value, "text": value}
    return {"choices": [choice], "usage": value, "content": value, "stop": True, "error": value}


ANSWERINGS: dict[str, tuple[Callable[[], Answering], Callable[[bytes], object]]] = {
    "responses": (lambda: ResponsesDialect().read({"input": "hi"}, FACTS).answering, events_in),
    "messages": (lambda: MessagesAnswering(FACTS), events_in),
    "ollama chat": (lambda: ollama.OllamaAnswering(FACTS), lines),
    "ollama generate": (lambda: ollama.GenerateAnswering(FACTS), lines),
    "ollama raw": (lambda: ollama.TextAnswering(FACTS), lines),
}


@pytest.mark.parametrize("name", ANSWERINGS)
@given(
    st.lists(
        st.builds(event, JSON | st.builds(in_each_place, JSON)) | st.binary(max_size=30) | st.just(DONE),
        max_size=8,
    ),
    JSON,
)
def test_whatever_llama_server_says_is_worded(name: str, events: list[bytes], answer: object) -> None:
    """It may be another node."""
    make, read = ANSWERINGS[name]
    answering = make()
    read(b"".join(answering.events(one) for one in events))
    assert answering.failed(Failure(502, "x")).endswith(b"\n")
    for whole in (in_each_place(answer), {"choices": [answer]}):
        json.dumps(make().whole(whole))
