"""Measure a running llama-server: its load time, speed and answers. Linux (/proc)."""

import asyncio
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from meshd.base.errors import MeshdError
from meshd.process.ready import http_200

ANSWER_SECONDS = 600.0
_LOOK_SECONDS = 0.004  # how exactly a load is timed
SERVED_SECONDS = 0.01  # the same of a whole node, which is asked through a proxy
HEALTH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One completion: tokens per second as llama-server counts them, the text, and its number of tokens.

    `drafted`: draft tokens; `accepted`: those of them that are in the text.
    """

    prompt: float
    generate: float
    text: str
    tokens: int
    drafted: int = 0
    accepted: int = 0

    @property
    def rounds(self) -> int:
        """The number of decoding rounds, without the prompt's, which made the first token."""
        return self.tokens - 1 - self.accepted


async def measure(place: Path, *, prompt_tokens: int, tokens: int) -> ChatAnswer:
    """Measure a greedy completion of random-looking text on llama-server's socket. Raises MeshdError."""
    return await asyncio.to_thread(completion, _UnixConnection(place), prompt_tokens, tokens)


def api_connection(url: str, timeout: float) -> http.client.HTTPConnection:
    """Return a connection to a node's API, not yet opened."""
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)


def completion(
    connection: http.client.HTTPConnection,
    prompt_tokens: int,
    tokens: int,
    *,
    number: int = 0,
    **more: object,
) -> ChatAnswer:
    """Generate `tokens` tokens, greedily unless `more` says otherwise; each `number` has a unique prompt.

    Closes the connection. Raises MeshdError.
    """
    body = {
        "prompt": [1000 + (number * 131 + n * 7919) % 20000 for n in range(prompt_tokens)],
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        **more,
    }
    return completed(connection, body)


def completed(connection: http.client.HTTPConnection, body: Mapping[str, object]) -> ChatAnswer:
    """Send a completion request; return the answer. Closes the connection. Raises MeshdError."""
    try:
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = json.loads(answer.read())
    except OSError as error:
        raise MeshdError(f"llama-server does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise MeshdError(f"llama-server answered {answer.status}: {str(data)[:200]}")
    timings = data["timings"]
    return ChatAnswer(
        timings["prompt_per_second"],
        timings["predicted_per_second"],
        data["content"],
        data["tokens_predicted"],
        timings.get("draft_n", 0),
        timings.get("draft_n_accepted", 0),
    )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, place: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_SECONDS)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._place))


async def until_loaded(place: Path) -> None:
    """Wait until llama-server is ready."""
    ready = http_200(place)
    while not await ready():  # noqa: ASYNC110 - it is another program's socket
        await asyncio.sleep(_LOOK_SECONDS)


async def first_token(place: Path) -> None:
    """Wait until llama-server is ready, and then for its first token. Raises MeshdError."""
    await until_loaded(place)
    await measure(place, prompt_tokens=1, tokens=1)


async def until_served(url: str) -> None:
    """Wait until the API of a serving node is ready, which means that it has generated a token."""
    while not await asyncio.to_thread(_is_served, url):  # noqa: ASYNC110 - it is another program's
        await asyncio.sleep(SERVED_SECONDS)


def _is_served(url: str) -> bool:
    connection = api_connection(url, HEALTH_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False  # it does not listen yet
    finally:
        connection.close()


def clock() -> float:
    """Return the seconds since this machine booted, as in /proc. Raises MeshdError without /proc."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    else:
        raise MeshdError("the start time of llama-server cannot be read on this system")


def started_at(pid: int) -> float:
    """Return when a process was started, by `clock`, to 10 ms. Raises MeshdError."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError as error:
        raise MeshdError("the start of llama-server cannot be read on this system") from error
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")  # starttime, proc_pid_stat(5)


def arguments_of(pid: int) -> list[str]:
    """Return the command line of a process, without the program. Raises MeshdError."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[1:-1]
    except OSError as error:
        raise MeshdError("the arguments of llama-server cannot be read on this system") from error


def changed(argv: list[str], changes: dict[str, str | None]) -> list[str]:
    """Return the command line with other values for these options; None removes an option and its value."""
    result = []
    words = iter(argv)
    for word in words:
        if word not in changes:
            result.append(word)
            continue
        next(words, None)
        value = changes[word]
        if value is not None:
            result += [word, value]
    return result
