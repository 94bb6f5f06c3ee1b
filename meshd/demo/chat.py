"""One streamed chat with an OpenAI-compatible API, as a client of meshd sees it. Blocking, in a thread."""

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from meshd.base.errors import MeshdError

_ANSWER_SECONDS = 120.0  # of silence


async def chat(url: str, prompt: str, *, max_tokens: int, on_text: Callable[[str], None]) -> int:
    """Stream the answer to `on_text`; return its number of tokens. Raises MeshdError."""
    loop = asyncio.get_running_loop()

    def run() -> int:
        count = 0
        for text in _stream(url, prompt, max_tokens):
            count += 1
            loop.call_soon_threadsafe(on_text, text)
        return count

    return await asyncio.to_thread(run)


def _stream(url: str, prompt: str, max_tokens: int) -> Iterator[str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_SECONDS)
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
    }
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise MeshdError(f"the API answered {answer.status}: {answer.read(500).decode(errors='replace')}")
        for line in answer:
            text = _delta(line.decode(errors="replace").strip())
            if text:
                yield text
    except OSError as error:
        raise MeshdError(f"the connection to the API broke: {error}") from error
    finally:
        connection.close()


def _delta(line: str) -> str:
    """Return the text in one line of the event stream. Raises MeshdError for an error event."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return ""
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise MeshdError(f"the answer ended early: {event['error'].get('message', event['error'])}")
    choices = event.get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")
