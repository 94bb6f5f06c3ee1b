"""The official Python clients of OpenAI, Anthropic and Ollama, and the requests of an agent, on a real model.

`pi_requests.json`: what pi 0.73.1 (npm's `@mariozechner/pi-coding-agent`, set up by `configs/pi-models.json`)
asked when it read a file, went on in its session, and was shown an image; machine paths are replaced.
"""

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from meshd.gateway.turns import ANSWER_LOG_NAME

from tests.e2e.models import smollm2
from tests.e2e.nodes import SAME_THREADS, Fleet, api_of, play
from tests.e2e.random_models import random_model
from tests.e2e.random_parts import WIDTH
from tests.e2e.random_projector import random_projector

if TYPE_CHECKING:  # their import takes long, and each process of `pytest -n` imports all tests
    from anthropic import Anthropic
    from ollama import Client as Ollama
    from openai import OpenAI

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

KEY, NAME = "sk-official-clients", "desk"
QUESTION = "What is the capital of France?"
TEMPLATE = Path(__file__).with_name("tools.jinja")
PI_REQUESTS = Path(__file__).with_name("pi_requests.json")
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
}


def openai_client(url: str) -> "OpenAI":
    from openai import OpenAI

    return OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=250.0)


def anthropic_client(url: str) -> "Anthropic":
    from anthropic import Anthropic

    return Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=250.0)


def ollama_client(url: str) -> "Ollama":
    from ollama import Client

    return Client(host=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=250.0)


def _key_file(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    keys = folder / "keys"
    keys.touch(0o600)
    keys.write_text(f"{KEY} name={NAME}\n")
    return keys


async def asked(folder: Path, model: Path, *options: str, ask: Callable[[str], Any], workers: int = 0) -> Any:
    """Return what `ask` returns, called in a thread with the address of a head that serves the model."""
    keys = _key_file(folder)
    async with Fleet(folder) as fleet:
        token, _ = await fleet.workers(*[model] * workers) if workers else ("", [])
        given = ("--min-workers", str(workers), "--api-key-file", str(keys), *options)
        head = await fleet.head(model, *given, token=token)
        return await asyncio.to_thread(ask, api_of(await fleet.ready(head)).url)


def logged(folder: Path) -> list[dict[str, Any]]:
    """The log of answers of the head."""
    lines = (folder / "head" / "logs" / ANSWER_LOG_NAME).read_text().splitlines()
    assert all(json.loads(line)["key"] == NAME for line in lines)
    return [json.loads(line) for line in lines]


def _openai_chats(url: str) -> None:
    with openai_client(url) as ai:
        plain: Any = {"model": "any", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        whole = ai.chat.completions.create(**plain, max_tokens=16)
        assert whole.usage is not None and 0 < whole.usage.completion_tokens <= 16
        body = {"messages": plain["messages"]}
        counted = ai.post("/chat/completions/input_tokens", body=body, cast_to=dict[str, Any])
        assert counted["input_tokens"] == whole.usage.prompt_tokens
        chunks = list(ai.chat.completions.create(**plain, max_tokens=16, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content != ""
        assert not any(chunk.usage for chunk in chunks), "usage that nobody asked for"
        options: Any = {"include_usage": True}
        asked_for = ai.chat.completions.create(**plain, max_tokens=16, stream=True, stream_options=options)
        usage = list(asked_for)[-1].usage
        assert usage is not None
        assert usage.prompt_tokens == whole.usage.prompt_tokens
        assert usage.completion_tokens == whole.usage.completion_tokens
        schema: Any = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": WEATHER}}
        said = ai.chat.completions.create(**plain, max_tokens=60, response_format=schema)
        weather = json.loads(said.choices[0].message.content or "")
        assert weather["city"] in ("Paris", "Rome") and weather["days"] in (1, 2, 3)
        whole_text = ai.completions.create(model="any", prompt="The capital of France is", max_tokens=4)
        assert whole_text.choices[0].text and whole_text.usage is not None


def _openai_responses(url: str) -> None:
    with openai_client(url) as ai:
        said = ai.responses.create(model="any", input=QUESTION, max_output_tokens=16, temperature=0)
        assert said.output_text and said.usage is not None and said.usage.output_tokens > 0
        counted = ai.responses.input_tokens.count(model="any", input=QUESTION)
        assert counted.input_tokens == said.usage.input_tokens
        with ai.responses.create(
            model="any", input=QUESTION, max_output_tokens=16, temperature=0, stream=True
        ) as stream:
            events = list(stream)
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == said.output_text
        assert events[-1].type == "response.completed" and events[-1].response.usage is not None


def _anthropic_messages(url: str) -> None:
    with anthropic_client(url) as ai:
        plain: Any = {"model": "any", "messages": [{"role": "user", "content": QUESTION}]}
        greedy: Any = {"extra_body": {"temperature": 0}}
        counted = ai.messages.count_tokens(**plain)
        whole = ai.messages.create(**plain, max_tokens=16, **greedy)
        read = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        assert read == counted.input_tokens
        assert 0 < whole.usage.output_tokens <= 16
        with ai.messages.stream(**plain, max_tokens=16, **greedy) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert whole.content[0].type == "text" and text == whole.content[0].text != ""
        assert final.usage.output_tokens == whole.usage.output_tokens


def _ollama_chats(url: str) -> None:
    with ollama_client(url) as ai:
        [listed] = ai.list().models
        shown = ai.show(listed.model or "")
        assert shown.modelinfo is not None and shown.modelinfo["general.architecture"] == "llama"
        [running] = ai.ps().models
        assert running.context_length == shown.modelinfo["llama.context_length"] > 0
        assert "tools" in (shown.capabilities or [])
        plain: Any = {"model": "any:latest", "messages": [{"role": "user", "content": QUESTION}]}
        greedy: Any = {"temperature": 0, "num_predict": 4, "num_ctx": 128}
        whole = ai.chat(**plain, options=greedy)
        parts = list(ai.chat(**plain, options=greedy, stream=True))
        assert "".join(part.message.content or "" for part in parts) == whole.message.content != ""
        for last in (whole, parts[-1]):
            assert last.done and last.done_reason == "length"
            assert last.eval_count == 4 and (last.prompt_eval_count or 0) > 5
            assert (last.eval_duration or 0) > 0
        said = ai.chat(**plain, format=WEATHER, options={"temperature": 0, "num_predict": 60})
        assert json.loads(said.message.content or "").keys() == {"city", "days"}
        raw = ai.generate(model="any", prompt="The capital of France is", raw=True, options=greedy)
        texts = [
            part.response for part in ai.generate(model="any", prompt=QUESTION, options=greedy, stream=True)
        ]
        assert raw.response and "".join(text or "" for text in texts) == whole.message.content
        assert ai.generate(model="any").done_reason == "load"


def _pi_reads_and_goes_on(url: str) -> None:
    requests = json.loads(PI_REQUESTS.read_text())
    assert [request["body"]["messages"][-1]["role"] for request in requests] == [
        "user",
        "tool",
        "user",
        "user",
    ]
    with openai_client(url) as ai:
        for request in requests[:3]:  # the last shows an image
            assert request["path"] == "/v1/chat/completions" and request["body"]["stream"]
            # so small a model begins a call and does not end it
            fields = {"max_tokens": 8, "tool_choice": "none"}
            chunks = list(ai.chat.completions.create(**(request["body"] | fields)))
            assert chunks[-1].usage is not None, "pi asks for usage"
            assert chunks[-1].usage.prompt_tokens > 500 and chunks[-1].usage.completion_tokens > 0
            assert any(chunk.choices and chunk.choices[0].finish_reason for chunk in chunks)


# Three turns with tools: in each the model is asked, calls the tool, is given its result and answers; the
# history is sent back in the package's own form. So small a model calls one as its history is full of calls.
BEFORE = ("Rome", "Paris")  # cities that the history begins with
ASKED = ("Rome", "Paris", "Rome")
RESULT, ANSWER = "sunny", "It is sunny."
CALL_TOKENS, TEXT_TOKENS = 100, 8


def _question(city: str) -> str:
    return f"Weather in {city}?"


def _arguments(city: str) -> str:
    return json.dumps({"city": city, "days": 1})


def _check(name: str, arguments: str, city: str) -> None:
    assert name == "weather"
    assert json.loads(arguments) == {"city": city, "days": 1}


def _chat_turns(url: str) -> None:
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


def _response_turns(url: str) -> None:
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


def _message_turns(url: str) -> None:
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


def _ollama_turns(url: str) -> None:
    """Ask by Ollama's `chat`, streamed."""
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    history: Any = []

    def called(city: str) -> Any:
        function = {"name": "weather", "arguments": json.loads(_arguments(city))}
        return {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}

    result = {"role": "tool", "tool_name": "weather", "content": RESULT}
    for city in BEFORE:
        asked: Any = {"role": "user", "content": _question(city)}
        history += [asked, called(city), result, {"role": "assistant", "content": ANSWER}]
    with ollama_client(url) as client:
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


def test_chat_streams_tools_and_schemas_of_all_clients_and_of_an_agent(tmp_path: Path) -> None:
    """Over a mesh of two nodes."""

    def ask(url: str) -> None:
        for part in (
            _openai_chats,
            _openai_responses,
            _anthropic_messages,
            _ollama_chats,
            _pi_reads_and_goes_on,
            _chat_turns,
            _response_turns,
            _message_turns,
            _ollama_turns,
        ):
            part(url)

    options = (*SAME_THREADS, "--chat-template-file", str(TEMPLATE))
    play(asked(tmp_path, smollm2(), *options, ask=ask, workers=1), seconds=2000.0)
    lines = logged(tmp_path)
    assert {line["status"] for line in lines} == {200}
    assert {line["path"] for line in lines} == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/api/chat",
        "/api/generate",
    }
    assert all(line["prompt_tokens"] > 0 and line["generated_tokens"] > 0 for line in lines)


def test_embeddings_of_a_split_model_are_those_of_one_machine(tmp_path: Path) -> None:
    def ask(url: str) -> list[list[float]]:
        with openai_client(url) as ai:
            texts = ["bula dika", "momo"]
            each = [ai.embeddings.create(model="any", input=text).data[0].embedding for text in texts]
            both = ai.embeddings.create(model="any", input=texts)
            assert both.usage.prompt_tokens > 0
            # computed side by side or one after the other, as it happens, which rounds otherwise
            for one, other in zip(each, both.data, strict=True):
                assert other.embedding == pytest.approx(one, abs=1e-5)
            return each

    model, options = random_model("llama"), ("--", "-t", "1", "--embeddings", "--pooling", "mean")
    alone = play(asked(tmp_path / "alone", model, *options, ask=ask))
    split = play(asked(tmp_path / "split", model, *options, ask=ask, workers=1))
    first, second = alone
    assert len(first) == WIDTH and any(first) and first != second
    assert split == alone
    assert logged(tmp_path / "split")[0]["path"] == "/v1/embeddings"


def test_documents_are_ranked(tmp_path: Path) -> None:
    def ask(url: str) -> dict[str, Any]:
        with openai_client(url) as ai:
            body = {"query": "bula", "documents": ["dika", "momo kibe", "bula"]}
            return ai.post("/rerank", body=body, cast_to=dict[str, Any])

    said = play(asked(tmp_path, random_model("llama"), "--", "--reranking", ask=ask))
    scores = {one["index"]: one["relevance_score"] for one in said["results"]}
    assert scores.keys() == {0, 1, 2} and len(set(scores.values())) == 3


def _png(red: int, green: int, blue: int) -> str:
    """A data URL of one colour."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    side = 28
    rows = (b"\0" + bytes((red, green, blue)) * side) * side
    head = part(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    whole = b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(whole).decode()}"


def _shown(url: str) -> list[str]:
    """Return what the model says of two images, and of what pi showed."""
    with openai_client(url) as ai:
        texts = []
        for image in (_png(255, 0, 0), _png(0, 0, 255)):
            content: Any = [
                {"type": "text", "text": "bula?"},
                {"type": "image_url", "image_url": {"url": image}},
            ]
            said = ai.chat.completions.create(
                model="any", messages=[{"role": "user", "content": content}], max_tokens=12, temperature=0
            )
            texts.append(said.choices[0].message.content or "")
        pi = json.loads(PI_REQUESTS.read_text())[3]["body"]
        assert pi["messages"][-1]["content"][-1]["type"] == "image_url"
        pi["messages"][0]["content"] = "You are pi."  # this model has 4096 tokens, one for each letter
        chunks = list(ai.chat.completions.create(**(pi | {"tools": [], "max_tokens": 8, "temperature": 0})))
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    return texts


def test_an_image_is_seen_by_the_head_and_the_split_model_says_the_same(tmp_path: Path) -> None:
    model = random_model("llama")
    options = ("--mmproj", str(random_projector(WIDTH)), "--", "-t", "1")
    alone = play(asked(tmp_path / "alone", model, *options, ask=_shown))
    assert all(alone) and alone[0] != alone[1], "the image made no difference"
    assert play(asked(tmp_path / "split", model, *options, ask=_shown, workers=1)) == alone
