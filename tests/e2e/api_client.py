"""A client of a node's API: whole answers, streamed ones with their error event, and waiting through 503.

Blocking calls in threads, on plain sockets, so that the sockets may come from another network namespace.
"""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SILENCE_SECONDS = 240.0  # a machine under other work is slow, not stuck
RETRY_SECONDS = 0.05
KEEP_ALIVE = ": keep-alive"

Connect = Callable[[], socket.socket]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the API; `body` is its JSON."""

    status: int
    body: dict[str, object]
    retry_after: str


@dataclass(slots=True)
class Streamed:
    """A stream so far; `error` is the message of its error event, `done` its end.

    `comments`: what they said, but for those that only keep the connection alive.
    """

    text: str = ""
    pieces: int = 0
    tokens: int = 0  # as the last event counts them
    error: str = ""
    done: bool = False
    comments: list[str] = field(default_factory=list)


def generation(prompt: str, tokens: int, *, stream: bool = False) -> dict[str, object]:
    """The body of a request for exactly `tokens` greedy tokens."""
    return {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": stream,
    }


class Api:
    """The API at `url`, and one `model` of several. `connect`: where a plain connection would not arrive."""

    def __init__(self, url: str, connect: Connect | None = None, *, model: str = "") -> None:
        self.url = url
        self._named = {"model": model} if model else {}
        parts = urlsplit(url)
        self._place = (parts.hostname or "", parts.port or 80)
        self._connect = connect or self._plain

    def _plain(self) -> socket.socket:
        return socket.create_connection(self._place, timeout=SILENCE_SECONDS)

    def open(self) -> http.client.HTTPConnection:
        """A connection with a socket of its own; the caller closes it."""
        connection = http.client.HTTPConnection(*self._place)
        connection.sock = self._connect()
        connection.sock.settimeout(SILENCE_SECONDS)
        return connection

    async def ask(self, method: str, path: str, body: dict[str, object] | None = None) -> Answer:
        """One request, one answer."""
        return await asyncio.to_thread(self._ask, method, path, body)

    def _ask(self, method: str, path: str, body: dict[str, object] | None) -> Answer:
        connection = self.open()
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            parsed = json.loads(answer.read())
            assert isinstance(parsed, dict)
            return Answer(answer.status, parsed, answer.headers.get("Retry-After", ""))
        finally:
            connection.close()

    async def complete(self, prompt: str, tokens: int) -> str:
        """Greedy text of exactly `tokens` tokens."""
        answer = await self.ask("POST", "/completion", generation(prompt, tokens) | self._named)
        assert answer.status == 200, answer
        return str(answer.body["content"])

    async def complete_through_503(self, prompt: str, tokens: int, *, seconds: float) -> tuple[str, float]:
        """The answer to a request that is repeated while the API says 503 (502 where it met the loss itself),
        and after how many seconds."""
        began = time.monotonic()
        while True:
            answer = await self.ask("POST", "/completion", generation(prompt, tokens))
            took = time.monotonic() - began
            if answer.status == 200:
                return str(answer.body["content"]), took
            met_the_loss = answer.status == 502 and "upstream_lost" in str(answer.body)
            assert answer.status == 503 or met_the_loss, answer
            assert answer.retry_after, "a refusal without Retry-After"
            assert took < seconds, f"no answer within {seconds:g} s: {answer.body}"
            await asyncio.sleep(RETRY_SECONDS)

    async def stream(
        self, prompt: str, tokens: int, *, on_piece: Callable[[Streamed], None] = lambda _so_far: None
    ) -> Streamed:
        """A streamed completion to its end; `on_piece` is called in a thread after each piece."""
        return await asyncio.to_thread(self._stream, prompt, tokens, on_piece)

    def _stream(self, prompt: str, tokens: int, on_piece: Callable[[Streamed], None]) -> Streamed:
        streamed = Streamed()
        connection = self.open()
        try:
            body = json.dumps(generation(prompt, tokens, stream=True) | self._named)
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read(1000)
            for event in _events(answer, streamed.comments):
                if (error := event.get("error")) is not None:
                    streamed.error = str(error)
                else:
                    streamed.text += str(event.get("content", ""))
                    streamed.pieces += bool(event.get("content"))
                    streamed.tokens = int(str(event.get("tokens_predicted", 0)))
                    streamed.done = bool(event.get("stop"))
                on_piece(streamed)
        finally:
            connection.close()
        return streamed


def _events(answer: http.client.HTTPResponse, comments: list[str]) -> Iterator[dict[str, object]]:
    """The JSON of each event."""
    for raw in answer:
        line = raw.decode().strip()
        if line.startswith(":") and line != KEEP_ALIVE:
            comments.append(line[1:].strip())
        for name in ("data: ", "error: "):
            if line.startswith(name) and line != "data: [DONE]":
                parsed = json.loads(line.removeprefix(name))
                assert isinstance(parsed, dict)
                yield {"error": parsed} if name == "error: " else parsed
