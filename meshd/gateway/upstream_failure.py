"""A llama-server that is not ready, and errors that it answers with, as a client is told them."""

import asyncio
import json

import aiohttp

from meshd.gateway.failure import Failure
from meshd.gateway.upstream import read_some

# Who refuses may be another node: what it says is parsed while others wait, logged and passed on.
_MOST_REFUSAL_BYTES = 1 << 20
_MOST_WHY_LETTERS = 2000
_MEDIA = "this model is served without {} input: it needs `meshd serve … --mmproj FILE`"
_OPTION = "this model is served without {}: that needs `meshd serve … -- {}`"
# by what llama-server says of it
_NOT_SERVED = {
    **{f"{kind} input is not supported": (400, _MEDIA.format(kind)) for kind in ("image", "audio", "video")},
    "does not support embeddings": (501, _OPTION.format("embeddings", "--embeddings --pooling mean")),
    "does not support reranking": (501, _OPTION.format("reranking", "--reranking")),
    "does not support metrics": (501, _OPTION.format("metrics", "--metrics")),
}
_REFUSAL_SECONDS = 10.0  # until all of it has come: who refuses computes nothing


def told_failure(body: bytes) -> Failure | None:
    """llama-server's error object; with a code, the words are meshd's own.

    None where there is none, or it is too long.
    """
    if len(body) > _MOST_REFUSAL_BYTES:
        return None
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = parsed.get("error") if isinstance(parsed, dict) else None
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    if (lacking := _not_served(error.get("message"))) is not None:
        return lacking
    why, kind = (_short(error.get(*field)) for field in (("message", ""), ("type", "server_error")))
    return Failure(status, why, type=kind)


def _not_served(message: object) -> Failure | None:
    """What it was not started for.

    Its own words name options of llama-server, or call it a server's error, upon which clients try again.
    """
    if not isinstance(message, str):
        return None
    for said, (status, what) in _NOT_SERVED.items():
        if said in message:
            return Failure(status, what, code="not_served")
    return None


def _short(told: object) -> str:
    text = told if isinstance(told, str) else json.dumps(told)
    return text if len(text) <= _MOST_WHY_LETTERS else f"{text[:_MOST_WHY_LETTERS]}…"


def plain_failure(status: int, body: bytes) -> Failure:
    """An answer that says nothing but its status."""
    text = body[:200].decode("utf-8", "replace").strip()
    said = f": {text}" if text else ""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return Failure(status, f"llama-server answered {status}{said}", type=kind, code="upstream_error")


async def failure_in(answer: aiohttp.ClientResponse) -> Failure:
    """The failure that a plain answer tells of, where its status comes too late. Raises UpstreamLost."""
    held = bytearray()
    try:
        async with asyncio.timeout(_REFUSAL_SECONDS):
            while len(held) <= _MOST_REFUSAL_BYTES and (data := await read_some(answer)):
                held += data
    except TimeoutError:
        pass  # what has come must do
    return told_failure(bytes(held)) or plain_failure(answer.status, bytes(held))
