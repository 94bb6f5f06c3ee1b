"""A llama-server that is not ready, and errors that it answers with, as a client is told them."""

import json

import aiohttp

from meshd.gateway.failure import Failure
from meshd.gateway.upstream import HELD_ANSWER_BYTES, read_some


def told_failure(body: bytes) -> Failure | None:
    """llama-server's error object; None where there is none."""
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = parsed.get("error") if isinstance(parsed, dict) else None
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return Failure(status, str(error.get("message", "")), type=str(error.get("type", "server_error")))


def plain_failure(status: int, body: bytes) -> Failure:
    """An answer that says nothing but its status."""
    text = body[:200].decode("utf-8", "replace").strip()
    said = f": {text}" if text else ""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return Failure(status, f"llama-server answered {status}{said}", type=kind, code="upstream_error")


async def failure_in(answer: aiohttp.ClientResponse) -> Failure:
    """The failure that a plain answer tells of, where its status comes too late. Raises UpstreamLost."""
    held = bytearray()
    while len(held) <= HELD_ANSWER_BYTES and (data := await read_some(answer)):
        held += data
    return told_failure(bytes(held)) or plain_failure(answer.status, bytes(held))
