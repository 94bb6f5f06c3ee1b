"""Test that every template of llama.cpp renders what agents send, once the gateway has normalised it.

A short run asks one for each set of traits, and others that its seed draws. The gateway is real, and so is
the llama-server that renders (`/apply-template`; nothing is generated). Between them, a fake answers.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from meshd.build.interface import LLAMA_SERVER

from tests.e2e.models import stock, unpack_templates
from tests.e2e.native_rig import Head
from tests.e2e.random_models import random_model
from tests.process.gateway_fake import FakeServer, world
from tests.recorded.answers import Answer, Json, chat_whole
from tests.recorded.sessions import load_all
from tests.soak import drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(1200)]

TOOL_NAME = "shell_tool"
DESCRIPTION = "DOES-WHAT-IT-IS-TOLD"
TOOL = {
    "name": TOOL_NAME,
    "description": DESCRIPTION,
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
DRAWN = 8  # templates of a short run, besides ONE_OF_EACH
# takes and writes what no other one here does (TemplateTraits), or needs a rule of its own
ONE_OF_EACH = (
    "Apertus-8B-Instruct",
    "ByteDance-Seed-OSS",
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "GigaChat3-10B-A1.8B",
    "HuggingFaceTB-SmolLM3-3B",
    "LFM2-8B-A1B",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-Qwen3-0.6B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world",
    "meta-llama-Llama-3.1-8B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
)
TEMPLATE_SECONDS = 200.0  # only a hang comes near it
# writes the system message before the last user's, and not at all while results of tools are last
LATE_SYSTEM = "mistralai-Mistral-Nemo-Instruct-2407"


def _said(role: str, text: str) -> Json:
    return {"role": role, "content": text}


def _called(*ids: str, text: str | None = None, arguments: str = '{"command": "ls"}') -> Json:
    function = {"name": TOOL["name"], "arguments": arguments}
    calls = [{"id": id, "type": "function", "function": function} for id in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def _result(id: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": id, "content": text}


# each with the texts that the model must see
_THREE_TURNS = [
    _said("system", "FIRST-RULE"),
    _said("system", "SECOND-RULE"),
    _said("user", "THE-QUESTION"),
    _called("call_000000000001"),
    _result("call_000000000001", "RESULT-ONE"),
    _called("call_000000000002", "call_000000000003"),
    _result("call_000000000002", "RESULT-TWO"),
    _result("call_000000000003", "RESULT-THREE"),
    _called("toolu_4"),
    _result("toolu_4", "RESULT-FOUR"),
]
_ALL_TEXTS = (
    *("FIRST-RULE", "SECOND-RULE", "THE-QUESTION"),
    *("RESULT-ONE", "RESULT-TWO", "RESULT-THREE", "RESULT-FOUR"),
)
CONVERSATIONS: dict[str, tuple[list[Json], tuple[str, ...]]] = {
    "three turns, two systems": (_THREE_TURNS, _ALL_TEXTS),
    "three turns, then a question": (
        [*_THREE_TURNS, _said("assistant", "THE-ANSWER"), _said("user", "NEXT-QUESTION")],
        (*_ALL_TEXTS[:3], "NEXT-QUESTION"),
    ),
    "a question after a result": (
        [*_THREE_TURNS, _said("user", "NEXT-QUESTION")],
        (*_ALL_TEXTS, "NEXT-QUESTION"),
    ),
    "a developer in the middle": (
        [
            _said("user", "A-QUESTION"),
            _said("assistant", "fine"),
            _said("developer", "LATE-RULE"),
            _said("user", "B"),
        ],
        ("A-QUESTION", "LATE-RULE"),
    ),
    "two questions in a row": (
        [_said("user", "A-QUESTION"), _said("user", "B-QUESTION")],
        ("A-QUESTION", "B-QUESTION"),
    ),
    "an answer first": ([_said("assistant", "HELLO"), _said("user", "A-QUESTION")], ("HELLO", "A-QUESTION")),
    "a call that was interrupted": (
        [_said("user", "A-QUESTION"), _called("call_1"), _said("user", "B-QUESTION")],
        ("A-QUESTION", "B-QUESTION"),
    ),
    "arguments that were cut off": (
        [
            _said("user", "A-QUESTION"),
            _called("call_1", arguments='{"command": "ls'),
            _result("call_1", "RESULT-ONE"),
        ],
        ("A-QUESTION", "RESULT-ONE"),
    ),
    "a result without its call": (
        [_said("system", "FIRST-RULE"), _result("call_1", "RESULT-ONE"), _said("user", "A-QUESTION")],
        ("FIRST-RULE", "RESULT-ONE", "A-QUESTION"),
    ),
    "a system alone": ([_said("system", "FIRST-RULE")], ("FIRST-RULE",)),
}


class Renderer:
    """A fake llama-server's answers: every chat is rendered by a real one; `prompts` has the texts."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self.prompts: list[str] = []

    async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        method, path, _, body = server.seen[-1]
        renders = path == "/v1/chat/completions"
        asked = "/apply-template" if renders else path
        status, said = await asyncio.to_thread(self._head.request, method, asked, body or None)
        answer = json.loads(said)
        if renders and status == 200:
            self.prompts.append(answer["prompt"])
            answer = chat_whole(Answer(0, "tiny", "Fine."))
        return web.json_response(answer, status=status)


async def _ask_all(head: Head, asked: list[tuple[str, Json]]) -> list[tuple[int, str, str, str]]:
    """Ask a gateway before `head`; return status, body and prompt of each answer, and what it left out."""
    renderer = Renderer(head)
    found = []
    async with world(renderer, seconds=TEMPLATE_SECONDS) as here:
        for path, body in asked:
            renderer.prompts.clear()
            async with here.http.post(here.url + path, json=body | {"stream": False}) as answer:
                noted = answer.headers.get("X-Meshd-Left-Out", "")
                found.append((answer.status, await answer.text(), "".join(renderer.prompts), noted))
    return found


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found = {path.stem: path for path in unpack_templates(tmp_path_factory.mktemp("templates"))}
    assert len(found) > 50
    return [found[name] for name in drawn("templates", sorted(found), DRAWN, always=ONE_OF_EACH)]


def _heads(templates: list[Path], folder: Path) -> Iterator[tuple[str, Head]]:
    binary, model = stock().binaries[LLAMA_SERVER], random_model("llama")
    for template in templates:
        extra = ("--jinja", "--chat-template-file", str(template))
        with Head(binary, folder, model, [], extra=extra) as head:
            yield template.stem, head


def _missing(template: str, texts: Sequence[str], prompt: str) -> list[str]:
    """Return the parts of the conversation that are not in the prompt."""
    missed = [text for text in texts if text not in prompt]
    return [text for text in missed if "RULE" not in text] if template == LATE_SYSTEM else missed


def test_conversations_with_tools_and_what_agents_sent_reach_the_model_whole(
    templates: list[Path], tmp_path: Path
) -> None:
    """Test with the last request of each recorded session, which has all of it."""
    tools = [{"type": "function", "function": TOOL}]
    asked = [
        ("/v1/chat/completions", {"model": "tiny", "messages": messages, "tools": tools})
        for messages, _ in CONVERSATIONS.values()
    ]
    sessions = load_all()
    recorded = [(session.requests[-1].path, session.requests[-1].body) for session in sessions]
    faults = []
    for template, head in _heads(templates, tmp_path):
        answers = asyncio.run(_ask_all(head, asked + recorded))
        for (name, (_, texts)), (status, body, prompt, noted) in zip(
            CONVERSATIONS.items(), answers[: len(asked)], strict=True
        ):
            if status != 200:
                faults.append(f"{template}: {name}: {status} {body[-160:]}")
            elif missed := _missing(template, texts, prompt):
                faults.append(f"{template}: {name}: lost {missed}")
            elif DESCRIPTION not in prompt and noted == "":
                faults.append(f"{template}: {name}: the tool is lost without a word")
        for session, (status, body, _, _) in zip(sessions, answers[len(asked) :], strict=True):
            if status != 200:
                faults.append(f"{template}: {session.program}: {status} {body[-160:]}")
    assert not faults, "\n".join(faults)
