"""Asks llama-server how its chat template writes messages."""

import asyncio
import json

from meshd.gateway.upstream import (
    Connect,
    UpstreamLost,
    open_session,
    read_some,
    send_call,
)

_PROMPT_BYTES = 1 << 20  # of the prompt, most of which are tools: who answers may be another node
_SECONDS = 30.0  # it computes nothing, but it may be busy with a batch
_HEADERS = {"Accept-Encoding": "identity", "Content-Type": "application/json"}


async def template_prompt(connect: Connect, body: bytes) -> str:
    """The prompt that `body` makes; empty where there is none, for whatever reason."""
    held = bytearray()
    try:
        async with asyncio.timeout(_SECONDS), open_session(connect) as session:
            answer = await send_call(session, "POST", "/apply-template", body, _HEADERS)
            while len(held) <= _PROMPT_BYTES and (data := await read_some(answer)):
                held += data
            parsed: object = json.loads(held) if len(held) <= _PROMPT_BYTES else None
    except (UpstreamLost, TimeoutError, ValueError, RecursionError):
        return ""
    prompt = parsed.get("prompt") if isinstance(parsed, dict) else None
    return prompt if isinstance(prompt, str) else ""
