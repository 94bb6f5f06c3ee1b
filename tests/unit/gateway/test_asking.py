"""One question to llama-server, or to another node: its connection, and what is read of the answer."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from meshd.base.errors import Broken
from meshd.base.peer_limits import INTERIM_ANSWERS
from meshd.gateway import upstream
from meshd.gateway.dialects.template_fit import template_questions
from meshd.gateway.failure import MOST_REFUSAL_BYTES
from meshd.gateway.upstream import (
    Culprits,
    Served,
    UpstreamLost,
    answer_headers,
    failure_in,
    is_event_stream,
    open_session,
    read_some,
    read_up_to,
    send_call,
    template_prompt,
)

pytestmark = pytest.mark.virtual

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """The other end of each connection: it reads a request's head, and does what the script says."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tasks: list[asyncio.Task[None]] = []
        self.heads: list[bytes] = []

    async def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._tasks.append(asyncio.get_running_loop().create_task(self._serve(theirs)))
        return ours

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            await self._script(reader, writer)
        finally:
            writer.close()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def http(
    body: bytes, *, status: int = 200, kind: str = "application/json", length: int | None = None
) -> bytes:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def says(*pieces: bytes, every: float = 0.0, stays: float = 0.0) -> Script:
    """Writes these, each so many seconds after the one before, and closes after `stays` more."""

    async def script(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            await asyncio.sleep(every)
            writer.write(piece)
            await writer.drain()
        await asyncio.sleep(stays)

    return script


@asynccontextmanager
async def peer(script: Script) -> AsyncIterator[Peer]:
    made = Peer(script)
    try:
        yield made
    finally:
        await made.end()


@asynccontextmanager
async def answered(script: Script) -> AsyncIterator[aiohttp.ClientResponse]:
    async with peer(script) as made, open_session(made.connect) as session:
        answer = await send_call(session, "POST", "/completion", b"{}", {"X-Any": "1"})
        try:
            yield answer
        finally:
            answer.close()


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_question_has_a_connection_of_its_own_and_no_time_limit() -> None:
    async with peer(says(http(b"{}"), every=10_000.0)) as made, open_session(made.connect) as session:
        for method, body in (("POST", b'{"a": 1}'), ("GET", None)):
            answer = await send_call(session, method, "/path", body, {"X-Any": "1"})
            assert (
                answer.status == 200 and await read_some(answer) == b"{}" and await read_some(answer) == b""
            )
    assert len(made.heads) == 2
    for head, line in zip(made.heads, (b"POST /path HTTP/1.1", b"GET /path HTTP/1.1"), strict=True):
        assert head.startswith(line) and b"X-Any: 1\r\n" in head and b"Host: localhost\r\n" in head


async def test_a_redirection_is_an_answer_like_others() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    async with answered(says(moved)) as answer:
        assert answer.status == 302


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ConnectionRefusedError(111, "refused"), "llama-server cannot be reached"),
        (Broken("the head is away"), "the head is away"),
    ],
)
async def test_a_connection_that_cannot_be_opened_is_a_loss_before_the_request(
    error: Exception, what: str
) -> None:
    async def connect() -> socket.socket:
        raise error

    async with open_session(connect) as session:
        with pytest.raises(UpstreamLost, match=what) as lost:
            await send_call(session, "GET", "/", None, {})
    assert not lost.value.taken


@pytest.mark.parametrize(
    "pieces", [(), (b"HTTP/1.1 200 OK\r\nContent-",), (b"nonsense\r\n\r\n",)], ids=["none", "half", "no HTTP"]
)
async def test_an_end_without_an_answer_is_a_loss_after_the_request(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(UpstreamLost, match="before it answered") as lost:
        async with answered(says(*pieces)):
            pass
    assert lost.value.taken


async def test_an_end_within_an_answer_is_a_loss() -> None:
    async with answered(says(http(b"{", length=100))) as answer:
        with pytest.raises(UpstreamLost, match="during the answer") as lost:
            while await read_some(answer):
                pass
    assert lost.value.taken


@pytest.mark.parametrize("line", [b"100 Continue", b"103 Early Hints", b"199 x"])
@pytest.mark.parametrize("more", [0, 1])
async def test_interim_answers_have_a_limit(line: bytes, more: int) -> None:
    interim = b"HTTP/1.1 " + line + b"\r\n\r\n"
    script = says(*[interim] * (INTERIM_ANSWERS.most + more), http(b"{}"))
    if more:
        with pytest.raises(UpstreamLost):
            async with answered(script):
                pass
        return
    async with answered(script) as answer:
        assert await read_some(answer) == b"{}"


@pytest.mark.parametrize(
    ("kind", "stream", "passed"),
    [
        ("application/json", False, "application/json"),
        ("application/json; charset=utf-8", False, "application/json; charset=utf-8"),
        ("text/event-stream", True, "text/event-stream"),
        ("text/event-stream; charset=utf-8", True, "text/event-stream; charset=utf-8"),
        ("text/plain; version=0.0.4", False, "text/plain; version=0.0.4"),
        ("text/html", False, "application/octet-stream"),
        ("image/svg+xml", False, "application/octet-stream"),
    ],
)
async def test_only_types_of_llama_server_are_passed_on(kind: str, stream: bool, passed: str) -> None:
    async with answered(says(http(b"{}", kind=kind))) as answer:
        assert is_event_stream(answer) is stream
        assert answer_headers(answer, {"X-More": "1"}) == {"Content-Type": passed, "X-More": "1"}


@pytest.mark.parametrize(("most", "least"), [(0, 1), (9, 10), (100, 20), (19, 20), (20, 20)])
async def test_an_answer_is_read_up_to_a_limit(most: int, least: int) -> None:
    async with answered(says(http(b"x", length=20), *[b"x"] * 19, every=1.0)) as answer:
        held = bytearray()
        await read_up_to(most, answer, held)
        assert bytes(held) == b"x" * least


@pytest.mark.parametrize(
    ("body", "status", "message", "seconds"),
    [
        (b'{"error": {"message": "no room", "type": "x"}}', 400, "no room", 0),
        (b"", 500, "llama-server answered 500", 0),
        (b"oops", 418, "llama-server answered 418: oops", 0),
        (b'{"error": {"message": "no', 500, 'llama-server answered 500: {"error": {"message": "no', 10),
    ],
)
async def test_a_failure_is_read_for_ten_seconds(
    body: bytes, status: int, message: str, seconds: float
) -> None:
    length = len(body) + (1 if seconds else 0)
    async with answered(says(http(body, status=status, length=length), stays=100.0)) as answer:
        began = now()
        failure = await failure_in(answer)
        assert (failure.status, failure.message, now() - began) == (status, message, seconds)


async def test_a_failure_that_is_too_long_is_not_read() -> None:
    body = json.dumps({"error": {"message": "x" * MOST_REFUSAL_BYTES}}).encode()
    async with answered(says(http(body, status=400))) as answer:
        failure = await failure_in(answer)
        assert failure.message.startswith("llama-server answered 400") and len(failure.message) < 1000


@pytest.mark.parametrize(
    ("script", "prompt", "seconds"),
    [
        (says(http(b'{"prompt": "<s>hi"}')), "<s>hi", 0),
        (says(http(b'{"error": {}}', status=500)), "", 0),
        (says(http(b'{"prompt": 5}')), "", 0),
        (says(http(b"text")), "", 0),
        (says(http(b'{"prompt": "' + b"x" * ((1 << 20) - 14) + b'"}')), "x" * ((1 << 20) - 14), 0),
        (says(http(b'{"prompt": "' + b"x" * ((1 << 20) - 13) + b'"}')), "", 0),
        (says(), None, 0),
        (says(http(b"{", length=100)), None, 0),
        (says(every=0, stays=100.0), None, 30),
        (says(http(b"{", length=100), stays=100.0), None, 30),
    ],
)
async def test_a_template_makes_a_prompt_or_none_in_time(
    script: Script, prompt: str | None, seconds: float
) -> None:
    async with peer(script) as made:
        began = now()
        assert await template_prompt(made.connect, b'{"messages": []}') == prompt
        assert now() - began == seconds
        assert made.heads[0].startswith(b"POST /apply-template HTTP/1.1\r\n")
        assert b"Content-Type: application/json\r\n" in made.heads[0]


class _Upstream:
    slots = 1

    def __init__(self, made: Peer) -> None:
        self.connect = made.connect


async def test_a_body_is_fitted_to_the_template_which_is_asked_once() -> None:
    async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int(made.heads[-1].lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        prompt = json.dumps({"prompt": (await reader.readexactly(size)).decode()}).encode()
        writer.write(http(prompt))
        await writer.drain()

    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "n": 1}).encode()
    async with peer(echoes) as made:
        served = Served(_Upstream(made), Culprits())  # type: ignore[arg-type]
        for _ in range(2):
            fitted, notes = await served.fit(body)
            assert json.loads(fitted) == json.loads(body) and notes == ()
            assert len(made.heads) == len(template_questions())
        served.traits = None
        await served.fit(body)
        assert len(made.heads) == 2 * len(template_questions())


async def test_who_waits_at_the_gate_looks_again_when_the_trial_is_over() -> None:
    """Its own time ends a trial of which nothing is heard: half a second is between two looks."""
    async with peer(says()) as made:
        served = Served(_Upstream(made), Culprits())  # type: ignore[arg-type]
        first, second = served.trials.come("a"), served.trials.come("b")
        first.is_suspect, first.trial_began = True, now()
        began = now()
        await served.entry(second)
        assert now() - began == pytest.approx(upstream.TRIAL_SECONDS, abs=0.51)
