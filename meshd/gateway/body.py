"""Request bodies: read with a limit for each and a limit for all that are held together."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web

from meshd.base.peer_limits import API_BODY_BARE_MIB, API_BODY_PARTS, API_BODY_VALUES
from meshd.gateway.client_connections import member_of
from meshd.gateway.failure import Failure, HttpRefusal

BODY_SILENCE_SECONDS = 30.0  # a client that sends nothing for so long holds memory for nothing
LEAST_RATE = 2048  # bytes a second on average, after those first seconds
LARGE_BODY = 1 << 20  # what comes beyond that must come faster
LEAST_RATE_OF_LARGE = 64 << 10
LARGEST_COPY = 1 << 20  # of a body that gets more fields: the copy counts for no limit


class _Caller(NamedTuple):
    """Whose body it is: of a key's digest, over the mesh or not."""

    is_member: bool
    key: bytes


class Bodies:
    """Reads bodies; one caller may hold as much as it leaves free for the others.

    So there is always room for another one. All that call over the mesh hold at most half: who serves the
    model is not kept out by members.
    """

    def __init__(self, *, most_each: int, most_together: int, silence: float | None = None) -> None:
        self._most_each = most_each
        self._most_together = max(most_together, 2 * most_each)  # a whole one, and as much for others
        self._most_of_members = max(most_together // 2, 2 * most_each)
        self._silence = BODY_SILENCE_SECONDS if silence is None else silence
        self._of: Counter[_Caller] = Counter()
        self.held = 0

    @asynccontextmanager
    async def read(self, request: web.BaseRequest, key: bytes) -> AsyncIterator[bytes]:
        """The whole body of a request with `key` (a digest); its memory counts until the block is left.

        Raises Refusal: 413 when it is too long, 503 when too much is held already, 408 when it stalls.
        """
        announced = request.content_length
        if announced is not None and announced > self._most_each:
            raise HttpRefusal(self._too_long())
        caller = _Caller(member_of(request) is not None, key)
        counted, began = 0, asyncio.get_running_loop().time()
        held = bytearray()  # no list: pieces of a few bytes would take many times their size
        try:
            await _continue(request)
            while chunk := await self._next(request):
                if counted + len(chunk) > self._most_each:
                    raise HttpRefusal(self._too_long())
                if asyncio.get_running_loop().time() - began > self._silence + _longest(counted):
                    raise HttpRefusal(Failure(408, "the body arrives too slowly", code="body_stalled"))
                if not self._fits(len(chunk), caller):
                    raise HttpRefusal(_too_much())
                counted += len(chunk)
                self._hold(len(chunk), caller)
                held += chunk
            whole = bytes(held)
            held.clear()
            yield whole
        finally:
            self._hold(-counted, caller)

    def _fits(self, more: int, caller: _Caller) -> bool:
        free, of_caller = self._most_together - self.held, self._of[caller]
        if caller.is_member:
            of_members = sum(held for one, held in self._of.items() if one.is_member)
            free = min(free, self._most_of_members - of_members)
        return of_caller + more <= free - more

    def _hold(self, more: int, caller: _Caller) -> None:
        self.held += more
        self._of[caller] += more
        if not self._of[caller]:
            del self._of[caller]

    async def _next(self, request: web.BaseRequest) -> bytes:
        try:
            async with asyncio.timeout(self._silence):
                return await request.content.readany()
        except TimeoutError as error:
            failure = Failure(
                408, f"received no byte of the body for {self._silence:.0f} s", code="body_stalled"
            )
            raise HttpRefusal(failure) from error
        except web.RequestPayloadError as error:
            message = "the body ends early, or its chunks are not valid HTTP/1.1"
            raise HttpRefusal(Failure(400, message, code="invalid_body")) from error

    def _too_long(self) -> Failure:
        return Failure(413, f"the body is larger than {self._most_each} bytes", code="body_too_large")


def _longest(counted: int) -> float:
    """Seconds that so many bytes may take."""
    large = max(0, counted - LARGE_BODY)
    return (counted - large) / LEAST_RATE + large / LEAST_RATE_OF_LARGE


def _too_much() -> Failure:
    message = "too many large requests are in progress"
    return Failure(503, message, type="unavailable_error", code="busy", retry_after=2)


async def _continue(request: web.BaseRequest) -> None:
    """Let a client go on that waits for leave to send its body (RFC 9110, 10.1.1)."""
    if request.headers.get("Expect", "").strip().lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # the bytes above belong to no answer
        request.writer.output_size = 0


def parse_object(body: bytes) -> dict[str, object]:
    """This JSON object. Raises Refusal: 400 when it is none, 413 when it would take too long to parse."""
    if (beyond := _beyond(body)) is not None:
        raise HttpRefusal(Failure(413, f"the body has {beyond}", code="too_many_values"))
    try:
        # the encoding is given: json would guess UTF-16 and UTF-32, llama-server does not
        parsed: object = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HttpRefusal(Failure(400, "the body is not valid JSON", code="invalid_json")) from error
    if not isinstance(parsed, dict):
        raise HttpRefusal(Failure(400, "the body is not a JSON object", code="invalid_json"))
    return parsed


def _beyond(body: bytes) -> str | None:
    """What there is too much of in this JSON, up to where it is none; None: it is parsed soon enough.

    To find out by parsing would stop all other requests for seconds, and take gigabytes. Text of a string
    costs next to nothing, a plain number little, one of many digits as much as these, and the rest ten times
    as much.
    """
    most_bare = API_BODY_BARE_MIB.most << 20
    if len(body) <= most_bare and _too_many(body, body.count(b'"')) is None:
        return None
    # without escapes each quotation mark begins or ends a string
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    strings = bare.count(b'"') // 2
    if strings <= API_BODY_PARTS.most:
        bare = b"".join(bare.split(b'"')[::2])
        if len(bare) > most_bare:
            return f"more than {API_BODY_BARE_MIB.most} MiB outside of strings: send long prompts as text"
    return _too_many(bare, strings)


def _too_many(bare: bytes, strings: int) -> str | None:
    parts = strings + bare.count(b"[") + bare.count(b"{")
    if parts > API_BODY_PARTS.most:
        return (
            f"more than {API_BODY_PARTS.most} strings, names, lists and objects: send fewer, or longer ones"
        )
    # a comma before each value but the first one of a list or object
    if parts - strings + bare.count(b",") > API_BODY_VALUES.most:
        return f"more than {API_BODY_VALUES.most} values: send long prompts as text"
    return None


def with_fields(body: bytes, fields: Mapping[str, object]) -> bytes:
    """Append these fields to the JSON object `body`, which must not be empty.

    What the client wrote stays as it is, byte for byte. Of a name that is there twice llama-server takes the
    last one.
    """
    return body.rstrip().removesuffix(b"}") + b"," + json.dumps(dict(fields)).encode().removeprefix(b"{")
