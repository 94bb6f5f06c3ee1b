"""The file of an answer that is kept for its client: records, each with a checksum. Pure.

The first record says what was asked; each later one holds events of a stream as they were sent, or a whole
answer. A record that its checksum does not fit is not there, nor is what follows it: after a loss of power
the end of a file may be anything.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from meshd.gateway.answer_meter import has_end
from meshd.gateway.events import whole_events

MOST_RECORD_BYTES = (8 << 20) + 1024  # a whole answer, as long as the proxy holds one
_MAGIC = b"meshd kept answer 1\n"
_HEAD = struct.Struct(">cI8s")  # kind, length of what follows, checksum
_AT = struct.Struct(">I")  # milliseconds
_MOST_AT = (1 << 32) - 1
_CHECKSUM_BYTES = 8
_DIGEST_BYTES = 32
_MOST_WEIGHTS_BYTES = 64
_SEED_BITS = 32

Read = Callable[[int], bytes]
"""The next so many bytes of the file, fewer at its end."""


class RecordKind(Enum):
    """What a record holds."""

    REQUEST = b"R"
    EVENTS = b"E"
    WHOLE = b"W"


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """What was asked. `digest` of path and body; `seed`: drawn here, None where the client gave one.

    `weights`: the fingerprint of the model that answers.
    """

    digest: bytes
    seed: int | None
    weights: bytes


@dataclass(frozen=True, slots=True)
class KeptContent:
    """What a file holds: so many events in `size` bytes. `is_over`: the last one, or a whole answer."""

    request: KeptRequest
    events: int
    is_over: bool
    size: int


def request_digest(path: str, body: bytes) -> bytes:
    """Two requests with the same one ask for the same."""
    digest = hashlib.blake2b(path.encode() + b"\n", digest_size=_DIGEST_BYTES)
    digest.update(body)
    return digest.digest()


def encode_request(request: KeptRequest) -> bytes:
    """The beginning of a file."""
    fields = {
        "digest": request.digest.hex(),
        "seed": request.seed,
        "weights": request.weights.hex(),
    }
    return _MAGIC + _record(RecordKind.REQUEST, json.dumps(fields).encode())


def encode_events(events: bytes, at: float) -> bytes:
    """Whole events, which came `at` so many seconds after the first one of their run."""
    return _record(RecordKind.EVENTS, _AT.pack(min(int(at * 1000), _MOST_AT)) + events)


def parse_events(payload: bytes) -> tuple[bytes, float]:
    """The events, and when they came."""
    if len(payload) < _AT.size:
        return b"", 0.0
    (at,) = _AT.unpack_from(payload)
    return payload[_AT.size :], at / 1000


def encode_whole(content_type: str, body: bytes) -> bytes:
    """An answer that is not a stream."""
    return _record(RecordKind.WHOLE, content_type.encode() + b"\n" + body)


def parse_whole(payload: bytes) -> tuple[str, bytes]:
    """Content type and body."""
    kind, _, body = payload.partition(b"\n")
    return kind.decode("latin-1"), body


def records(read: Read) -> Iterator[tuple[RecordKind, bytes]]:
    """All that are whole, in their order; none of something else."""
    if read(len(_MAGIC)) != _MAGIC:
        return
    while len(head := read(_HEAD.size)) == _HEAD.size:
        letter, length, checksum = _HEAD.unpack(head)
        if length > MOST_RECORD_BYTES or letter not in (kind.value for kind in RecordKind):
            return
        payload = read(length)
        if len(payload) != length or _checksum(letter, payload) != checksum:
            return
        yield RecordKind(letter), payload


def look_through(read: Read) -> KeptContent | None:
    """What the file holds; None where that is of no use."""
    request: KeptRequest | None = None
    events, is_over, is_whole, size = 0, False, False, len(_MAGIC)
    for kind, payload in records(read):
        if (kind is RecordKind.REQUEST) is not (request is None) or is_whole:
            return None  # no file of ours
        match kind:
            case RecordKind.REQUEST:
                if (request := _parse_request(payload)) is None:
                    return None
            case RecordKind.EVENTS:
                piece, _ = parse_events(payload)
                events += sum(1 for _ in whole_events(piece))
                is_over = is_over or has_end(piece)
            case RecordKind.WHOLE:
                is_whole = is_over = True
        size += _HEAD.size + len(payload)
    if request is None or is_whole == bool(events):
        return None
    return KeptContent(request, events, is_over, size)


def _parse_request(payload: bytes) -> KeptRequest | None:
    try:
        fields: object = json.loads(payload)
        if not isinstance(fields, dict):
            return None
        digest, weights = (bytes.fromhex(str(fields.get(name))) for name in ("digest", "weights"))
    except (ValueError, RecursionError):
        return None
    seed = fields.get("seed")
    if len(digest) != _DIGEST_BYTES or len(weights) > _MOST_WEIGHTS_BYTES:
        return None
    if seed is not None and not (type(seed) is int and 0 <= seed < 1 << _SEED_BITS):
        return None
    return KeptRequest(digest, seed, weights)


def _record(kind: RecordKind, payload: bytes) -> bytes:
    return _HEAD.pack(kind.value, len(payload), _checksum(kind.value, payload)) + payload


def _checksum(letter: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_CHECKSUM_BYTES, key=letter).digest()
