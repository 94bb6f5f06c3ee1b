"""Replay what real programs sent (tests/recorded) at a gateway before a strict llama-server.

The fake takes nothing but chats, and of those only what the strictest templates take. It calls each tool
that reaches it once, so a tool that is lost or renamed on either way is missed in the answer.
"""

import asyncio
import itertools
import json
import re

import pytest
from aiohttp import web
from meshd.gateway.interface import ApiKey, GatewayConfig

from tests.process.gateway_fake import FakeServer, World, begin_stream, world
from tests.recorded.answers import Answer, Json, chat_stream, chat_whole
from tests.recorded.judge import read_answer
from tests.recorded.script import Tool, call, offered
from tests.recorded.sessions import Request, Session, load_all

KEY = "sk-dummy"  # the recorded programs send this one
SESSIONS = load_all()
_TEXT = "I call them all."
_NEVER_NEXT = {("user", "user"), ("assistant", "assistant"), ("tool", "user")}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # of a function (OpenAI's API)


def _check_message(message: Json, number: int) -> None:
    """Raise AssertionError unless a strict template takes the message."""
    role = message["role"]
    assert role in ("system", "user", "assistant", "tool"), message
    assert role != "system" or number == 0, f"a system message at {number}"
    content = message.get("content")
    if isinstance(content, list):
        assert {part["type"] for part in content} <= {"text", "image_url"}, content
    else:
        assert isinstance(content, str) or (content is None and message.get("tool_calls")), message
    for called in message.get("tool_calls") or []:
        assert called["type"] == "function" and called["id"], called
        assert isinstance(json.loads(called["function"]["arguments"]), dict), called
    if role == "tool":
        assert isinstance(message["tool_call_id"], str), message


def _check_chat(body: Json) -> None:
    """Raise AssertionError unless llama-server and the template take the body."""
    for number, message in enumerate(body["messages"]):
        _check_message(message, number)
    roles = [message["role"] for message in body["messages"] if message["role"] != "system"]
    assert roles[0] == "user", "no user begins"
    for role, following in itertools.pairwise(roles):
        assert (role, following) not in _NEVER_NEXT, f"{following} after {role}"
    for tool in body.get("tools") or []:
        assert tool["type"] == "function" and _NAME.fullmatch(tool["function"]["name"]), tool
        assert tool["function"].get("parameters", {}).get("type", "object") == "object", tool


async def call_all(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
    """Answer a chat with a text and one call of each tool that is offered."""
    body = json.loads(server.seen[-1][3])
    try:
        _check_chat(body)
        assert request.path in ("/v1/chat/completions", "/apply-template"), request.path
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        return web.json_response({"error": {"code": 400, "message": repr(error)}}, status=400)
    if request.path == "/apply-template":
        return web.json_response({"prompt": json.dumps(body)})
    calls = tuple(call(tool, "/work") for tool in offered(body))
    answer = Answer(0, "tiny", _TEXT, calls)
    if not body.get("stream"):
        return web.json_response(chat_whole(answer))
    response = await begin_stream(request)
    for _, fields in chat_stream(answer):
        data = fields if isinstance(fields, str) else json.dumps(fields)
        await response.write(f"data: {data}\n\n".encode())
    return response


async def replay(here: World, request: Request) -> tuple[int, str, bytes]:
    """Send one request as its program did; return status, content type and body."""
    data = json.dumps(request.body).encode()
    url = here.url + request.path
    async with here.http.post(url, data=data, headers=dict(request.headers)) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.read()


def _known(tool: Tool) -> tuple[str, str, str]:
    return "custom" if tool.custom else "function", tool.namespace, tool.name


async def replay_all(session: Session) -> list[tuple[int, str, bytes]]:
    config = GatewayConfig(port=0, api_keys=(ApiKey(KEY),))
    async with world(call_all, config=config) as here:
        return [await replay(here, request) for request in session.requests]


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.program)
def test_each_request_of_a_program_is_answered_in_its_form_with_its_tools(session: Session) -> None:
    answers = asyncio.run(replay_all(session))
    for request, (status, kind, data) in zip(session.requests, answers, strict=True):
        assert status == 200, data.decode()
        assert ("event-stream" in kind) == bool(request.body.get("stream"))
        said = read_answer(request.path, kind, data)
        assert said.text == _TEXT
        called = sorted((kind, namespace, name) for kind, namespace, name, _ in said.calls)
        assert called == sorted(map(_known, offered(request.body)))
        for kind, _, _, text in said.calls:
            assert kind == "custom" or isinstance(json.loads(text), dict), text


def test_the_sessions_have_three_turns_with_tools() -> None:
    """The recordings must hold what the replay is for."""
    without = {"aider", "cline-extension"}  # their tools are in the text
    assert len(SESSIONS) >= 12
    for session in SESSIONS:
        tools = [request for request in session.requests if offered(request.body)]
        assert len(tools) >= 4 or session.program in without, session.program
