"""Read a request: its body, within limits for each and for all together, and its model.

The result is an `UpstreamRequest` for llama-server: a JSON object that its dialect has translated and whose
fields were checked, or the form of a sound.

Media that a request names by URL is refused: llama-server would fetch it, and so clients could read from the
head's network.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from itertools import islice
from typing import NamedTuple, Self

from aiohttp import web
from aiohttp.helpers import parse_mimetype

from meshd.base.peer_limits import API_BODY_BARE_MIB, API_BODY_PARTS, API_BODY_VALUES
from meshd.gateway.access import JSON_TYPE
from meshd.gateway.answer_parts import Parts, split_request
from meshd.gateway.client_connections import member_of
from meshd.gateway.dialects.chat import PassedOn
from meshd.gateway.dialects.dialect import Answering, Translation
from meshd.gateway.dialects.fields import (
    ENDPOINTS,
    Endpoint,
    count_answers,
    encoded,
    judged,
    levels,
    not_enforced,
    objects_of,
    text_of,
)
from meshd.gateway.failure import Failure, HttpRefusal, invalid, unavailable
from meshd.gateway.interface import Models, ModelWish, NamedModel, Readiness, Upstream
from meshd.model.device_sampling import sampling_fields
from meshd.model.status import ModelState, ModelStatus

BODY_SILENCE_SECONDS = 30.0  # a client that sends nothing for so long holds memory for nothing
LEAST_RATE = 2048  # bytes a second on average, after those first seconds
LARGE_BODY = 1 << 20  # what comes beyond that must come faster
LEAST_RATE_OF_LARGE = 64 << 10


class BodyOwner(NamedTuple):
    """The owner of a body: the digest of a key, over the mesh or not."""

    is_member: bool
    key: bytes


class Bodies:
    """The bodies in memory, limited by caller, for all members, and together.

    One caller may hold at most as much as it leaves free, so there is always room for another. All members
    together hold at most half, so they never keep local clients out.
    """

    def __init__(self, *, most_each: int, most_together: int) -> None:
        self._most_each = most_each
        self._most_together = max(most_together, 2 * most_each)  # a whole one, and as much for others
        self._most_of_members = max(most_together // 2, 2 * most_each)
        self._of: Counter[BodyOwner] = Counter()
        self.held = 0

    @asynccontextmanager
    async def read(self, request: web.BaseRequest, key: bytes) -> AsyncIterator[bytes]:
        """Read the whole body of a request with `key` (a digest); its memory counts until the block is left.

        Raises HttpRefusal: 413 if it is too long, 503 if too much memory is in use, 408 if it stalls.
        """
        announced = request.content_length
        if announced is not None and announced > self._most_each:
            raise HttpRefusal(self._too_long())
        caller = BodyOwner(member_of(request) is not None, key)
        counted, began = 0, asyncio.get_running_loop().time()
        held = bytearray()  # no list: pieces of a few bytes would take many times their size
        try:
            await _continue(request)
            while chunk := await self._next(request):
                if counted + len(chunk) > self._most_each:
                    raise HttpRefusal(self._too_long())
                if asyncio.get_running_loop().time() - began > BODY_SILENCE_SECONDS + _longest(counted):
                    raise HttpRefusal(Failure(408, "the body arrives too slowly", code="body_stalled"))
                if not self.take(len(chunk), caller):
                    raise unavailable("too many large requests are in progress")
                counted += len(chunk)
                held += chunk
            whole = [bytes(held)]
            held.clear()
            yield whole.pop()  # nothing else holds it: it is gone once it was read
        finally:
            self.give_back(counted, caller)

    def take(self, more: int, caller: BodyOwner) -> bool:
        """Reserve `more` bytes for a caller until `give_back`; return False if that is too much."""
        free, of_caller = self._most_together - self.held, self._of[caller]
        if caller.is_member:
            of_members = sum(held for owner, held in self._of.items() if owner.is_member)
            free = min(free, self._most_of_members - of_members)
        if of_caller + more > free - more:
            return False
        self.held += more
        self._of[caller] += more
        return True

    def give_back(self, count: int, caller: BodyOwner) -> None:
        """Release reserved bytes."""
        self.held -= count
        self._of[caller] -= count
        if not self._of[caller]:
            del self._of[caller]

    async def _next(self, request: web.BaseRequest) -> bytes:
        try:
            async with asyncio.timeout(BODY_SILENCE_SECONDS):
                return await request.content.readany()
        except TimeoutError as error:
            message = f"received no byte of the body for {BODY_SILENCE_SECONDS:.0f} s"
            raise HttpRefusal(Failure(408, message, code="body_stalled")) from error
        except web.RequestPayloadError as error:
            message = "the body ends early, or its chunks are not valid HTTP/1.1"
            raise invalid(message, code="invalid_body") from error

    def _too_long(self) -> Failure:
        return Failure(413, f"the body is larger than {self._most_each} bytes", code="body_too_large")


def _longest(counted: int) -> float:
    """Return the seconds that a body of this size may take."""
    large = max(0, counted - LARGE_BODY)
    return (counted - large) / LEAST_RATE + large / LEAST_RATE_OF_LARGE


async def _continue(request: web.BaseRequest) -> None:
    """Send 100 Continue to a client that waits for it before its body (RFC 9110, 10.1.1)."""
    if request.headers.get("Expect", "").strip().lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # the bytes above belong to no answer
        request.writer.output_size = 0


_MOST_DEPTH = 128  # of a whole body; fields for llama-server may have less (dialects/fields.py)
LARGEST_COPY = 1 << 20  # of a body that gets more fields: the copy counts for no limit


def parse_object(body: bytes) -> dict[str, object]:
    """Parse a JSON object. Raises HttpRefusal: 400 if it is not one, 413 if parsing would take too long."""
    if (beyond := beyond_parsing(body)) is not None:
        raise HttpRefusal(Failure(413, f"the body has {beyond}", code="too_many_values"))
    try:
        # the encoding is given: json would guess UTF-16 and UTF-32
        parsed: object = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise invalid("the body is not valid JSON", code="invalid_json") from error
    if not isinstance(parsed, dict):
        raise invalid("the body is not a JSON object", code="invalid_json")
    # fields are sent back, and writing JSON is recursive
    too_deep = next(islice(levels(parsed), _MOST_DEPTH, None), ())
    if any(isinstance(value, dict | list) for value in too_deep):
        message = f"the body nests lists and objects more than {_MOST_DEPTH} deep"
        raise invalid(message, code="invalid_json")
    return parsed


def beyond_parsing(body: bytes) -> str | None:
    """Return what this JSON has too much of to be parsed in time, or None.

    Parsing it to find out would stop all other requests for seconds and take gigabytes. The text of a string
    costs next to nothing, a plain number little, a long number in proportion to its digits, and everything
    else ten times as much. It reads up to where the JSON is invalid.
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
            return f"more than {API_BODY_BARE_MIB.most} MiB outside strings: send long prompts as text"
    return _too_many(bare, strings)


def _too_many(bare: bytes, strings: int) -> str | None:
    parts = strings + bare.count(b"[") + bare.count(b"{")
    if parts > API_BODY_PARTS.most:
        what = f"{API_BODY_PARTS.most} strings, names, lists and objects"
        return f"more than {what}: send fewer, or longer ones"
    # a comma before each value but the first one of a list or object
    if parts - strings + bare.count(b",") > API_BODY_VALUES.most:
        return f"more than {API_BODY_VALUES.most} values: send long prompts as text"
    return None


ANY_SEED = -1  # llama-server takes another one each time
_MOST_ANSWERS = 2048  # to one request: all choices of all prompts
_MOST_FORM_PARTS = 64  # of a form; clients send about six
_MOST_FORM_VALUE = 4096  # bytes of one that is looked at
_MOST_FORM_TYPE = 256  # characters of a form's type, with its boundary (RFC 2046: 70)
_MOST_FORM_HEAD = 16 << 10  # bytes of the headers of a part


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """The `body` for llama-server's `path`. `sampling`: `sampling_fields` of a JSON object.

    `can_grow`: fields may be added to the body. `needs_fit`: some chat templates do not accept it unchanged.
    """

    path: str
    body: bytes | None
    stream: bool
    answering: Answering
    has_seed: bool = False
    sampling: Mapping[str, object] = field(default_factory=dict)
    can_grow: bool = False
    needs_fit: bool = False
    notes: tuple[str, ...] = ()
    answers: int = 1  # that it asks for
    parts: Parts | None = None  # requests that it is sent as, if they are several; then `body` is empty
    content_type: str = JSON_TYPE
    query: str = ""  # with its question mark


def upstream_request(translation: Translation) -> UpstreamRequest:
    """Check the fields of a request that its dialect has translated. Raises HttpRefusal."""
    # the fields, each by itself and then what only all of them show
    path, stream = translation.path, translation.stream
    endpoint = ENDPOINTS[path]
    fields = judged(translation.fields, endpoint)
    if has_remote_media(fields):
        message = "nothing is fetched for a request: send images and sounds as data URLs (`data:…`)"
        raise invalid(message, code="remote_media_not_allowed")
    # the answers that it asks for, which become requests of their own
    answers = count_answers(fields, endpoint)
    if answers > _MOST_ANSWERS:
        which = f"{answers} answers, all prompts together"
        message = f"`n`: {which}; allowed: at most {_MOST_ANSWERS} in one request"
        raise invalid(message, "n", code="invalid_value")
    if stream and answers > 1 and isinstance(fields.get("prompt"), list):
        message = "several prompts cannot be streamed: omit `stream`, or send one request per prompt"
        raise invalid(message, "prompt", code="invalid_value")
    body, parts = encoded(fields), None if stream else split_request(fields, endpoint)
    return UpstreamRequest(
        path,
        body if parts is None else b"",
        stream,
        translation.answering,
        has_seed=fields.get("seed") not in (None, ANY_SEED),
        sampling=sampling_fields(fields),
        can_grow=bool(fields) and len(body) <= LARGEST_COPY,
        needs_fit=endpoint is Endpoint.CHAT and needs_fit(fields),
        notes=(*translation.notes, *not_enforced(fields)),
        answers=answers,
        parts=parts,
    )


def read_form(path: str, body: bytes, content_type: str) -> tuple[UpstreamRequest, object]:
    """Read multipart/form-data (RFC 7578), and the model that it names. Raises HttpRefusal.

    The values are text, which llama-server converts to numbers. No fields are added, because llama-server
    takes no seed from a form.
    """
    if len(content_type) > _MOST_FORM_TYPE:
        raise _bad_form(f"its type is longer than {_MOST_FORM_TYPE} characters")
    boundary = parse_mimetype(content_type).parameters.get("boundary", "").encode(errors="replace")
    if not boundary or not body.startswith(b"--" + boundary + b"\r\n"):
        raise _bad_form("it does not begin with its boundary")
    found: dict[str, str] = {}
    for name, value in _form_parts(body, b"\r\n--" + boundary):
        if name in found:
            raise _bad_form(f"it has `{name}` twice")
        if name in ("model", "stream"):
            if len(value) > _MOST_FORM_VALUE:
                raise _bad_form(f"`{name}` is longer than {_MOST_FORM_VALUE} bytes")
            found[name] = value.tobytes().decode(errors="replace")
    asked = UpstreamRequest(path, body, found.get("stream") == "true", PassedOn(), content_type=content_type)
    return asked, found.get("model")


def _form_parts(body: bytes, mark: bytes) -> Iterator[tuple[str, memoryview]]:
    """Yield name and value of each part of a form, between two marks. Raises HttpRefusal."""
    at = len(mark)  # behind the first one, which lacks its line break, and the line break behind it
    for _ in range(_MOST_FORM_PARTS):
        head_end = body.find(b"\r\n\r\n", at - 2, at + _MOST_FORM_HEAD)
        end = body.find(mark, head_end + 4)
        if head_end < 0 or end < 0:
            raise _bad_form("one of its parts is broken, or it ends early")
        head = BytesHeaderParser().parsebytes(body[at:head_end])
        name = head.get_param("name", "", "content-disposition")
        yield name if isinstance(name, str) else "", memoryview(body)[head_end + 4 : end]
        at = end + len(mark) + 2
        if body.startswith(b"--", at - 2):
            return
    raise _bad_form(f"it has more than {_MOST_FORM_PARTS} parts")


def _bad_form(what: str) -> HttpRefusal:
    return invalid(f"the form cannot be read: {what}", code="invalid_form")


# Parts of messages, in the dialects of OpenAI, its Responses API, llama.cpp and Anthropic; and where each may
# have an address: by itself, or as `url` or `data` of an object.
_MEDIA_PARTS = ("image_url", "input_image", "input_audio", "input_video", "video_url", "image")
_MEDIA_HOLDERS = ("image_url", "input_audio", "input_video", "video_url", "source")
_MEDIA_ADDRESSES = ("url", "data")


def has_remote_media(asked: Mapping[str, object]) -> bool:
    """Return True if a part of this request is media that is neither a data URL nor base64."""
    parts = (value for level in levels(asked) for value in level if isinstance(value, dict))
    media = (part for part in parts if part.get("type") in _MEDIA_PARTS)
    return any(_is_remote(part.get(name)) for part in media for name in _MEDIA_HOLDERS)


def _is_remote(holder: object) -> bool:
    if isinstance(holder, dict):
        return any(_is_text_remote(holder.get(name)) for name in _MEDIA_ADDRESSES)
    return _is_text_remote(holder)


def _is_text_remote(text: object) -> bool:
    if not isinstance(text, str) or text.startswith("data:"):
        return False
    # base64 has no colon; what begins with `http`, llama-server takes for an address
    return ":" in text[:64] or text.startswith("http")


_SYSTEM = ("system", "developer")


def needs_fit(fields: Mapping[str, object]) -> bool:
    """Return True if a chat has anything that some templates do not accept (dialects/template_fit.py)."""
    before = ""
    for at, message in enumerate(objects_of(fields.get("messages"))):
        role = text_of(message, "role")
        if role == before or role == "tool" or message.get("tool_calls"):
            return True
        if at and (role in _SYSTEM or (at == 1 and before in _SYSTEM and role == "assistant")):
            return True
        if not at and role == "assistant":
            return True
        before = role
    return bool(fields.get("tools")) or before in _SYSTEM


_LATEST = ":latest"  # which Ollama's clients add to names
_SHOWN_NAMES = 32  # of models, in an error


class PlainModel:
    """Implements NamedModel, and ModelTurn, for a model that is always loaded or loading."""

    notice = ""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream

    def turn(self) -> Self:
        """Return a turn that begins at once."""
        return self

    def unload_unused(self) -> str:
        """Return why it stays."""
        return "its node does not load it on demand"

    async def begin(self) -> Readiness | None:
        """Return the model's state if it is not ready."""
        now = self.upstream.readiness
        return None if now.state is ModelState.READY else now

    def end(self) -> None:
        """Do nothing."""


class OneModel:
    """Implements Models with one model that answers to every name."""

    on_demand = False
    statuses: Sequence[ModelStatus] = ()

    def __init__(self, upstream: Upstream) -> None:
        self.only = PlainModel(upstream)

    @property
    def all(self) -> Sequence[PlainModel]:
        """Return the model."""
        return (self.only,)

    @property
    def readiness(self) -> Readiness:
        """Return the readiness of the model."""
        return self.only.upstream.readiness

    def find(self, wish: ModelWish) -> PlainModel:
        """Return the model, whatever name a client uses."""
        return self.only


def find_model(models: Models, asked: object, keys: tuple[bytes, ...] = ()) -> NamedModel:
    """Find the model for a request with this name and these keys. Raises HttpRefusal."""
    if models.only is not None:
        return models.only  # whatever a client calls it
    if asked is not None and not isinstance(asked, str):
        raise invalid("`model` must be the name of a model", code="invalid_model")
    name = asked or ""
    found = models.find(ModelWish(name, keys))
    if found is None and name.endswith(_LATEST):
        found = models.find(ModelWish(name.removesuffix(_LATEST), keys))
    if found is None:
        raise HttpRefusal(unknown_model(models, name))
    return found


def model_names(models: Models) -> list[str]:
    """Return the names of all models that can be requested now."""
    return [name for model in models.all if (name := model.upstream.model_name)]


def unknown_model(models: Models, asked: str) -> Failure:
    """Return the failure for a model that is not served; it names those that are."""
    names = [f"`{name}`" for name in model_names(models)]
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
    served = f"{shown} {'is' if len(names) == 1 else 'are'}" if names else "no model is"
    message = f"the model `{asked[:200]}` is not served here; {served}"
    return Failure(404, message, code="model_not_found")


def not_ready(now: Readiness, *, has_waited: bool = False) -> Failure:
    """Return the failure for a model that is not ready; `has_waited`: as in Failure."""
    return Failure(
        503,
        f"the model is not ready ({now.state}): {now.reason}",
        type="not_ready_error",  # after `server_error` or "unavailable" some clients ask again without a word
        code=f"model_{now.state}",
        retry_after=now.retry_after,
        is_final=now.state is ModelState.FAILED,
        has_waited=has_waited,
    )


def check_ready(now: Readiness) -> None:
    """Refuse a request whose model is not ready. Raises HttpRefusal."""
    if now.state is not ModelState.READY:
        raise HttpRefusal(not_ready(now))
