"""Requests with an Idempotency-Key: their clients may come back for the answer, after a restart of meshd too.

A client that comes back sends the same request with the same key, and in Last-Event-ID how much of the stream
it has. It is sent what is kept of the rest, and then what llama-server makes of the rest of that, as after a
loss of llama-server (proxy.py). Other requests are passed on as they are.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aiohttp import web

from meshd.gateway.failure import Failure, HttpRefusal
from meshd.gateway.kept_answer import KeptAnswer
from meshd.gateway.kept_folder import KeptFile, KeptFolder, kept_name
from meshd.gateway.kept_journal import KeptContent, KeptRequest, look_through, request_digest
from meshd.gateway.proxied_call import ProxiedCall
from meshd.gateway.queued_proxy import QueuedProxy
from meshd.gateway.reply import ClientGone, StreamReply

IDEMPOTENCY_KEY = "Idempotency-Key"
LAST_EVENT_ID = "Last-Event-ID"
_KEY = re.compile(r'"?([A-Za-z0-9._:~-]{8,128})"?')
_NUMBER = re.compile(r"[0-9]{1,9}")
_DRAWN_SEEDS = 1 << 31


class KeptProxy:
    """As QueuedProxy. Without a `folder` nothing is kept, and such headers mean nothing."""

    def __init__(self, queued: QueuedProxy, folder: KeptFolder | None, *, silence: float) -> None:
        """`silence`: as in Proxy."""
        self._queued = queued
        self._folder = folder
        self._silence = silence

    def comes_back(self, headers: Mapping[str, str], key: bytes) -> bool:
        """Whether a request is for an answer of which some is known."""
        given = headers.get(IDEMPOTENCY_KEY)
        if self._folder is None or given is None or (asked := _KEY.fullmatch(given)) is None:
            return False
        return self._folder.touch(kept_name(key, asked[1]))

    async def forward(self, request: web.BaseRequest, call: ProxiedCall, key: bytes) -> web.StreamResponse:
        """As QueuedProxy.forward."""
        given = request.headers.getall(IDEMPOTENCY_KEY, [])
        if self._folder is None or not given or not call.counts or call.body is None:
            return await self._queued.forward(request, call, key)
        name, after = kept_name(key, _asked(given)), _after(request.headers) if call.stream else 0
        async with self._folder.use(name, lambda: _abort(request)) as file:
            asked = KeptRequest(await asyncio.to_thread(request_digest, call.path, call.body), None, b"")
            found = await self._found(file, asked, call, after)
            if found is None and after:
                message = f"nothing is kept of this answer: ask again without {LAST_EVENT_ID}"
                raise HttpRefusal(Failure(404, message, code="answer_not_kept"))
            call, seed = _seeded(call, found)
            asked = replace(asked, seed=seed)
            answer = KeptAnswer(file, found, asked, after=after, weights=lambda: call.upstream.weights)
            if call.stream:
                return await self._stream(request, call, key, answer)
            return await self._whole(request, call, key, answer)

    async def _found(
        self, file: KeptFile, asked: KeptRequest, call: ProxiedCall, after: int
    ) -> KeptContent | None:
        """What is kept of the answer to this request. Raises HttpRefusal where it is that to another one."""
        found = await asyncio.to_thread(_look, file)
        if found is None:
            file.remove()
            return None
        if found.request.digest != asked.digest:
            message = f"another request was made with this {IDEMPOTENCY_KEY}: each has its own"
            raise HttpRefusal(Failure(422, message, code="idempotency_key_reused"))
        if found.events < after:
            message = f"{found.events} events are kept of this answer: ask again without {LAST_EVENT_ID}"
            raise HttpRefusal(Failure(404, message, code="answer_not_kept"))
        if found.is_over:
            return found
        weights = call.upstream.weights
        is_of_another = not found.request.weights or weights not in (b"", found.request.weights)
        if is_of_another or not file.cut(found.size):
            file.remove()
            return None
        call.upstream.keep_to(found.request.weights)
        return found

    async def _stream(
        self, request: web.BaseRequest, call: ProxiedCall, key: bytes, answer: KeptAnswer
    ) -> web.StreamResponse:
        if not answer.is_over:
            return await self._queued.forward(request, replace(call, kept=answer), key)
        reply = StreamReply(request, silence=self._silence, headers=call.headers)
        try:
            await reply.begin()
            await answer.replay(reply)
        except ClientGone:
            pass  # it may come back once more
        return reply.response

    async def _whole(
        self, request: web.BaseRequest, call: ProxiedCall, key: bytes, answer: KeptAnswer
    ) -> web.StreamResponse:
        kept = await asyncio.to_thread(answer.whole) if answer.is_over else None
        if kept is not None:
            return web.Response(body=kept[1], headers={"Content-Type": kept[0], **call.headers})
        async with answer.until_taken():
            response = await self._queued.forward(request, call, key)
        if isinstance(response, web.Response) and response.status == 200 and isinstance(response.body, bytes):
            answer.add_whole(response.headers["Content-Type"], response.body)
        return response


def _asked(given: Sequence[str]) -> str:
    """The client's name for its answer. Raises HttpRefusal."""
    asked = _KEY.fullmatch(given[0])
    if len(given) > 1 or asked is None:
        message = f"{IDEMPOTENCY_KEY} must be 8 to 128 letters, digits or `-_.:~`, as a UUID is"
        raise HttpRefusal(Failure(400, message, code="invalid_idempotency_key"))
    return asked[1]


def _after(headers: Mapping[str, str]) -> int:
    """How many events the client has. Raises HttpRefusal."""
    given = headers.get(LAST_EVENT_ID, "").strip() or "0"
    if not _NUMBER.fullmatch(given):
        message = f"{LAST_EVENT_ID} must be the number in the last `id:` line of the stream"
        raise HttpRefusal(Failure(400, message, code="invalid_last_event_id"))
    return int(given)


def _look(file: KeptFile) -> KeptContent | None:
    with file.reading() as read:
        return look_through(read)


def _seeded(call: ProxiedCall, found: KeptContent | None) -> tuple[ProxiedCall, int | None]:
    """It is asked with the seed of before where that was drawn here; and that seed."""
    if not call.own_seed:
        return call, None
    before = found.request.seed if found is not None else None
    seed = secrets.randbelow(_DRAWN_SEEDS) if before is None else before
    added = call.added or dict
    return replace(call, added=lambda: {**added(), "seed": seed}), seed


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
