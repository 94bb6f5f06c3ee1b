"""What the gateway looks at in a request's body: a JSON object, or the form in which a sound comes."""

import asyncio
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp.base_protocol import BaseProtocol
from aiohttp.helpers import parse_mimetype
from aiohttp.http_exceptions import HttpProcessingError

from meshd.gateway.body import LARGEST_COPY, parse_object
from meshd.gateway.failure import Failure, HttpRefusal
from meshd.gateway.remote_media import has_remote_media
from meshd.model.device_sampling import sampling_fields

ANY_SEED = -1  # llama-server takes another one each time
_MOST_PARTS = 64  # of a form; clients send about six
_MOST_VALUE = 4096  # bytes of one that is looked at
_MOST_TYPE = 256  # characters of a form's type, with its boundary (RFC 2046: 70)
_PIECE = 64 << 10


@dataclass(frozen=True, slots=True)
class AskedBody:
    """`model` is as the client gave it, of any type. `sampling`: `sampling_fields` of a JSON object.

    `can_grow`: fields may be added to the body.
    """

    model: object
    stream: bool
    has_seed: bool = False
    sampling: Mapping[str, object] = field(default_factory=dict)
    can_grow: bool = False


def read_json(body: bytes) -> AskedBody:
    """Of a JSON object. Raises HttpRefusal."""
    asked = parse_object(body)
    if has_remote_media(asked):
        message = "nothing is fetched for a request: send images and sounds as data URLs (`data:…`)"
        raise HttpRefusal(Failure(400, message, code="remote_media_not_allowed"))
    return AskedBody(
        asked.get("model"),
        asked.get("stream") is True,
        asked.get("seed") not in (None, ANY_SEED),
        sampling_fields(asked),
        bool(asked) and len(body) <= LARGEST_COPY,
    )


async def read_form(body: bytes, content_type: str) -> AskedBody:
    """Of multipart/form-data (RFC 7578). Raises HttpRefusal.

    Its values are text: llama-server takes those that it knows for numbers. None can be added to it, since it
    takes no seed from a form.
    """
    if len(content_type) > _MOST_TYPE:
        raise _bad(f"its type is longer than {_MOST_TYPE} characters")
    try:
        values = await _values(body, content_type, ("model", "stream"))
    except (ValueError, AssertionError, RuntimeError, HttpProcessingError) as error:
        # aiohttp has no error of its own for a form that cannot be read
        raise _bad("one of its parts is broken, or it ends early") from error
    return AskedBody(values.get("model"), values.get("stream") == "true")


async def _values(body: bytes, content_type: str, names: tuple[str, ...]) -> dict[str, str]:
    """Of the parts with these names; the others are skipped."""
    found: dict[str, str] = {}
    boundary = parse_mimetype(content_type).parameters.get("boundary", "")
    if not body.startswith(f"--{boundary}\r\n".encode()):
        # what comes before it would be read line by line, and nothing else would run meanwhile
        raise _bad("it does not begin with its boundary")
    reader = aiohttp.MultipartReader({"Content-Type": content_type}, _stream(body))
    for _ in range(_MOST_PARTS):
        part, name = await _next(reader)
        if part is None:
            return found
        if name in found:
            raise _bad(f"it has `{name}` twice")
        value = await _value(part, name, kept=_MOST_VALUE if name in names else 0)
        if name in names:
            found[name] = value.decode()
    raise _bad(f"it has more than {_MOST_PARTS} parts")


async def _next(reader: aiohttp.MultipartReader) -> tuple[aiohttp.BodyPartReader | None, str]:
    """The next part, with its name."""
    # all bytes are there, so nothing else runs meanwhile
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # of headers that make no sense: anybody may send them
        part = await reader.next()
        if isinstance(part, aiohttp.MultipartReader):
            raise _bad("one of its parts is a form")
        return part, (part and part.name) or ""


async def _value(part: aiohttp.BodyPartReader, name: str, *, kept: int) -> bytes:
    """The part is read to its end, and its value returned where it is to be `kept`, at most so many bytes."""
    value = b""
    while not part.at_eof():
        chunk = await part.read_chunk(_PIECE)
        if kept:
            value += chunk
            if len(value) > kept:
                raise _bad(f"`{name}` is longer than {kept} bytes")
        await asyncio.sleep(0)  # a part may be all of the largest body: others get their turn
    return value


def _stream(body: bytes) -> aiohttp.StreamReader:
    loop = asyncio.get_running_loop()
    stream = aiohttp.StreamReader(BaseProtocol(loop), limit=len(body) + 1, loop=loop)
    for at in range(0, len(body), _PIECE):
        stream.feed_data(body[at : at + _PIECE])
    stream.feed_eof()
    return stream


def _bad(what: str) -> HttpRefusal:
    return HttpRefusal(Failure(400, f"the form cannot be read: {what}", code="invalid_form"))
