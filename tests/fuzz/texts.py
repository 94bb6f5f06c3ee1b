"""Targets that people paste or files hold: token, address, GGUF header, a line of the control socket."""

import json
import random
from collections.abc import Sequence

from meshd.admin import api
from meshd.admin.request import (
    Request,
    decode_line,
    decode_request,
    encode_line,
    encode_request,
    from_json,
    to_json,
)
from meshd.admin.status import Status
from meshd.base.errors import RemoteProtocolError, UserError
from meshd.identity.invite import TOKEN, Invite, RelayHint, encode_token, parse_token
from meshd.identity.membership import Role
from meshd.model.gguf import read_header
from meshd.wire.address import Candidate, pack_candidates, unpack_candidates

from tests.fuzz.mutate import flip, twist
from tests.fuzz.target import Target
from tests.gguf_bytes import Plain, gguf, language_model
from tests.unit.admin.fake import full_status
from tests.unit.identity.cast import FOUNDER, MESH, STRANGER

PLACES = ("192.168.1.5:17430", "10.0.0.1:1/udp", "[fd00::1]:80/tcp", "127.0.0.1:9/tcp/mapped")
CANDIDATES = tuple(map(Candidate.parse, PLACES))
INVITES = (
    Invite(MESH, FOUNDER.peer, b"s" * 16, 1 << 31, CANDIDATES),
    Invite(
        MESH, FOUNDER.peer, b"t" * 16, 1 << 30, CANDIDATES[:1], (RelayHint("r.example:443", STRANGER.peer),)
    ),
)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _make_token(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    good = rng.choice(samples)
    if rng.random() < 0.5:
        return flip(rng, good, samples)
    # behind a good checksum, or nothing beyond it would ever be reached
    return TOKEN.write(flip(rng, TOKEN.read(_text(good)), ())[:4000]).encode()


def _feed_token(data: bytes) -> None:
    invite = parse_token(_text(data))
    assert parse_token(encode_token(invite)).secret == invite.secret


def _feed_address(data: bytes) -> None:
    candidate = Candidate.parse(_text(data))
    assert Candidate.parse(str(candidate)) == candidate


def _feed_candidates(data: bytes) -> None:
    found = unpack_candidates(data)
    assert unpack_candidates(pack_candidates(found)) == found


def _make_flipped(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return flip(rng, rng.choice(samples), samples)


def _ggufs() -> tuple[bytes, ...]:
    made = [gguf(*language_model()), gguf(*language_model(layers=1, tied=False), version=2)]
    odd: dict[str, Plain] = {"a.b": 1.5, "flags": [True, False], "text": "x" * 5000, "general.alignment": 64}
    made.append(gguf(*language_model(layers=2, extra=odd), alignment=64))
    return tuple(made)


def _make_gguf(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    good = rng.choice(samples)
    # changes near the front: the header is what is read
    edge = rng.choice((64, 512, len(good)))
    return flip(rng, good[:edge], samples) + good[edge:]


def _feed_gguf(data: bytes) -> None:
    header = read_header(lambda at, count: data[at : at + count], size=len(data), label="hostile.gguf")
    assert all(one.offset + one.size <= len(data) for one in header.tensors)


_REQUESTS: tuple[Request[object], ...] = (
    api.StatusRequest(),
    api.PingRequest(peer="garage", timeout_s=2.5),
    api.InviteRequest(expires_s=3600, uses=1, roles=(Role.USE, Role.WORK)),
    api.InviteListRequest(),
    api.InviteRevokeRequest(id="abcdef"),
    api.RevokeRequest(peer="q" * 52),
    api.StopRequest(),
)


def _make_line(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    good = rng.choice(samples)
    if rng.random() < 0.5:
        return flip(rng, good, samples)
    try:
        return json.dumps(twist(rng, json.loads(good))).encode() + b"\n"
    except (TypeError, ValueError, RecursionError):
        return flip(rng, good, ())


def _feed_status(data: bytes) -> None:
    status = from_json(Status, decode_line(data))
    assert from_json(Status, decode_line(encode_line(to_json(status)))) == status


def _feed_request(data: bytes) -> None:
    request = decode_request(data)
    assert decode_request(encode_request(request)) == request


TARGETS = (
    Target(
        name="token",
        samples=tuple(encode_token(invite).encode() for invite in INVITES),
        make=_make_token,
        feed=_feed_token,
        allowed=(UserError,),
        share=14,
    ),
    Target(
        name="address",
        samples=tuple(place.encode() for place in PLACES),
        make=_make_flipped,
        feed=_feed_address,
        allowed=(UserError,),
        share=6,
    ),
    Target(
        name="candidates",
        samples=(pack_candidates(CANDIDATES), pack_candidates(CANDIDATES[:1])),
        make=_make_flipped,
        feed=_feed_candidates,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
    Target(
        name="gguf",
        samples=_ggufs(),
        make=_make_gguf,
        feed=_feed_gguf,
        allowed=(UserError,),
        share=10,
        most_bytes=8 << 20,
    ),
    Target(
        name="request",
        samples=tuple(map(encode_request, _REQUESTS)),
        make=_make_line,
        feed=_feed_request,
        allowed=(RemoteProtocolError,),
        share=6,
    ),
    Target(
        name="status",
        samples=(encode_line(to_json(full_status())),),
        make=_make_line,
        feed=_feed_status,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
)
