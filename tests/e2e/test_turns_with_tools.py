"""Three turns with tools by the official packages of OpenAI, Anthropic and Ollama, over a mesh of two nodes.

In each turn the model is asked, calls the tool, is given its result and answers; the history is sent back in
the package's own form. So small a model calls a tool because its history is full of calls.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.models import smollm2
from tests.e2e.nodes import SAME_THREADS, Fleet, api_of, model_of, play
from tests.e2e.test_official_clients import anthropic_client, openai_client

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TEMPLATE = Path(__file__).with_name("tools.jinja")
BEFORE = ("Rome", "Paris")  # cities that the history begins with
ASKED = ("Rome", "Paris", "Rome")
RESULT, ANSWER = "sunny", "It is sunny."
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
}
CALL_TOKENS, TEXT_TOKENS = 100, 8


def _question(city: str) -> str:
    return f"Weather in {city}?"


def _arguments(city: str) -> str:
    return json.dumps({"city": city, "days": 1})


def _check(name: str, arguments: str, city: str) -> None:
    assert name == "weather"
    assert json.loads(arguments) == {"city": city, "days": 1}


def _chat(url: str) -> None:
    """Ask by `chat.completions`, streamed."""
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    history: Any = []
    for number, city in enumerate(BEFORE):
        function = {"name": "weather", "arguments": _arguments(city)}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        history += [
            {"role": "user", "content": _question(city)},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": RESULT},
            {"role": "assistant", "content": ANSWER},
        ]
    with openai_client(url) as ai:
        for city in ASKED:
            history.append({"role": "user", "content": _question(city)})
            asked: Any = {"model": "any", "messages": history, "tools": tools, "temperature": 0}
            with ai.chat.completions.stream(**asked, max_tokens=CALL_TOKENS) as stream:
                [choice] = stream.get_final_completion().choices
            assert choice.finish_reason == "tool_calls"
            [called] = choice.message.tool_calls or []
            _check(called.function.name, called.function.arguments, city)
            history.append(choice.message.model_dump(exclude_none=True, exclude={"parsed"}))
            history.append({"role": "tool", "tool_call_id": called.id, "content": RESULT})
            said = ai.chat.completions.create(**asked, max_tokens=TEXT_TOKENS).choices[0].message
            assert said.content and not said.tool_calls
            history.append({"role": "assistant", "content": ANSWER})


def _responses(url: str) -> None:
    """Ask by `responses`, streamed; the items go back as they came."""
    tools: Any = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}]
    history: Any = []
    for number, city in enumerate(BEFORE):
        call = {"type": "function_call", "call_id": f"call_{number}", "name": "weather"}
        history += [
            {"role": "user", "content": _question(city)},
            {**call, "arguments": _arguments(city)},
            {"type": "function_call_output", "call_id": f"call_{number}", "output": RESULT},
            {"role": "assistant", "content": ANSWER},
        ]
    with openai_client(url) as ai:
        for city in ASKED:
            history.append({"role": "user", "content": _question(city)})
            asked: Any = {"model": "any", "input": history, "tools": tools, "temperature": 0}
            with ai.responses.stream(**asked, max_output_tokens=CALL_TOKENS) as stream:
                response = stream.get_final_response()
            [called] = [item for item in response.output if item.type == "function_call"]
            _check(called.name, called.arguments, city)
            history += [
                item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output
            ]
            history.append({"type": "function_call_output", "call_id": called.call_id, "output": RESULT})
            said = ai.responses.create(**asked, max_output_tokens=TEXT_TOKENS)
            assert said.output_text and {item.type for item in said.output} == {"message"}
            history.append({"role": "assistant", "content": ANSWER})


def _messages(url: str) -> None:
    """Ask by Anthropic's `messages`, streamed."""
    tools: Any = [{"name": "weather", "input_schema": WEATHER}]
    history: Any = []

    def used(id: str) -> Any:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": RESULT}]}

    for number, city in enumerate(BEFORE):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "weather"}
        history += [
            {"role": "user", "content": _question(city)},
            {"role": "assistant", "content": [{**call, "input": json.loads(_arguments(city))}]},
            used(f"toolu_{number}"),
            {"role": "assistant", "content": ANSWER},
        ]
    with anthropic_client(url) as ai:
        for city in ASKED:
            history.append({"role": "user", "content": _question(city)})
            asked: Any = {
                "model": "any",
                "messages": history,
                "tools": tools,
                "extra_body": {"temperature": 0},
            }
            with ai.messages.stream(**asked, max_tokens=CALL_TOKENS) as stream:
                message = stream.get_final_message()
            assert message.stop_reason == "tool_use"
            [called] = [block for block in message.content if block.type == "tool_use"]
            _check(called.name, json.dumps(called.input), city)
            history.append(
                {"role": "assistant", "content": [block.model_dump() for block in message.content]}
            )
            history.append(used(called.id))
            said = ai.messages.create(**asked, max_tokens=TEXT_TOKENS)
            assert {block.type for block in said.content} == {"text"}
            history.append({"role": "assistant", "content": ANSWER})


def _ollama(url: str) -> None:
    """Ask by Ollama's `chat`, streamed."""
    import ollama

    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    history: Any = []

    def called(city: str) -> Any:
        function = {"name": "weather", "arguments": json.loads(_arguments(city))}
        return {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}

    result = {"role": "tool", "tool_name": "weather", "content": RESULT}
    for city in BEFORE:
        asked: Any = {"role": "user", "content": _question(city)}
        history += [asked, called(city), result, {"role": "assistant", "content": ANSWER}]
    with ollama.Client(host=url, timeout=250.0) as client:
        [model] = [one.model for one in client.list().models]
        assert model is not None
        for city in ASKED:
            history.append({"role": "user", "content": _question(city)})
            options = {"temperature": 0, "num_predict": CALL_TOKENS}
            parts = list(client.chat(model, history, tools=tools, stream=True, options=options))
            assert parts[-1].done and parts[-1].eval_count
            [call] = [call for part in parts for call in part.message.tool_calls or ()]
            _check(call.function.name, json.dumps(dict(call.function.arguments)), city)
            history += [called(city), result]
            options["num_predict"] = TEXT_TOKENS
            said = client.chat(model, history, tools=tools, options=options)
            assert said.message.content and not said.message.tool_calls
            history.append({"role": "assistant", "content": ANSWER})


def test_three_turns_over_two_nodes_by_each_package(tmp_path: Path) -> None:
    model = smollm2()

    async def scenario() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(model)
            given = ("--min-workers", "1", *SAME_THREADS, "--chat-template-file", str(TEMPLATE))
            head = await fleet.head(model, *given, token=token)
            status = await fleet.ready(head)
            assert {part.node for part in model_of(status).split} == {"head", "worker-0"}
            for ask in (_chat, _responses, _messages, _ollama):
                await asyncio.to_thread(ask, api_of(status).url)

    play(scenario(), seconds=2000.0)
