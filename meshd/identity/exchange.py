"""The part shared by both sides of the proof: its words, its transcript, cutting frames within the budget.
Pure.

The exchange itself, and how a driver uses it, is described in proof.py.
"""

import hmac
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from meshd.base.errors import BANNED_HINT, LocalProtocolError, Refused, RemoteProtocolError
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import SIGNATURE_BYTES, KeyPair, MeshId, PeerId, joined, verify
from meshd.identity.membership import Chain, Member
from meshd.wire.limits import MAX_CHAIN_BYTES, MAX_NAME_BYTES, MAX_TEXT_BYTES, MAX_UNPROVEN_BYTES
from meshd.wire.message import Fields, Value, pack, unpack

MAGIC = b"MESHD"
LOWEST_VERSION = 1
HIGHEST_VERSION = 1
NONCE_BYTES = 32
MAC_BYTES = 32

_BODY_LENGTH_BYTES = 2
DIALLER = "meshd proof dialler v1"
LISTENER = "meshd proof listener v1"
_JOIN = b"meshd proof join v1"


class Purpose(StrEnum):
    """The purpose of a link."""

    JOIN = "join"
    MEMBER = "member"
    RELAY = "relay"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A node's key and, if it is a member, its chain."""

    key: KeyPair
    chain: Chain | None


@dataclass(frozen=True, slots=True)
class Proven:
    """The identity of the other end. `member` is None for a joiner (and for a relay that is no member).

    `leftover`: bytes behind the exchange, the first of the link's own data.
    """

    peer: PeerId
    purpose: Purpose
    member: Member | None
    invite_id: bytes | None
    leftover: bytes


class ProofFailed(RemoteProtocolError):
    """The other side could not prove itself: send `farewell` (may be empty), then close."""

    def __init__(self, what: str, *, code: str, hint: str = "", farewell: bytes = b"") -> None:
        super().__init__(what, code=code, hint=hint)
        self.farewell = farewell


def never_banned(chain: Chain) -> str | None:
    """Return None: joiners know of no bans yet."""
    return None


@dataclass(frozen=True, slots=True)
class Transcript:
    """The data that both sides sign."""

    low: int
    high: int
    version: int
    purpose: Purpose
    mesh: MeshId
    dialler: PeerId
    listener: PeerId
    binding: bytes
    dial_nonce: bytes
    listen_nonce: bytes

    def encode(self) -> bytes:
        versions = b"".join(number.to_bytes(2, "big") for number in (self.low, self.high, self.version))
        return joined(
            versions,
            self.purpose.encode(),
            self.mesh.raw,
            self.dialler.raw,
            self.listener.raw,
            self.binding,
            self.dial_nonce,
            self.listen_nonce,
        )

    def mac(self, keys: JoinKeys) -> bytes:
        """Return the MAC by which a joiner proves that it knows the invite's secret."""
        return hmac.digest(keys.join_key, joined(_JOIN, keys.invite_id, self.encode()), "sha256")


def frame(fields: dict[str, Value]) -> bytes:
    body = pack(fields)
    if len(body) > MAX_UNPROVEN_BYTES:
        raise LocalProtocolError(f"proof message of {len(body)} bytes")
    return len(body).to_bytes(_BODY_LENGTH_BYTES, "big") + body


class Exchange(ABC):
    """The part that both sides share: cutting frames within the budget, refusals, the result."""

    def __init__(self, *, magic: bytes) -> None:
        self._magic = magic
        self._buffer = bytearray()
        self._budget = MAX_UNPROVEN_BYTES
        self._result: Proven | None = None
        self._failed = False
        self._silent = bool(magic)  # a stranger that does not even speak our language is told nothing

    @property
    def result(self) -> Proven | None:
        """Set when both sides are proven; look after sending what `receive` returned."""
        return self._result

    def receive(self, data: bytes) -> bytes:
        """Take a chunk in; return what to send. Raises Refused (the other side refused) and ProofFailed (we
        do).
        """
        if self._failed or self._result is not None:
            raise LocalProtocolError("the proof is over")
        self._buffer += data
        try:
            return self._advance()
        except Refused:
            self._failed = True
            raise
        except ProofFailed:
            self._failed = True
            raise
        except RemoteProtocolError as error:
            self._failed = True
            farewell = b"" if self._silent else _refusal(error)
            raise ProofFailed(error.what, code=error.code, hint=error.hint, farewell=farewell) from error

    def _advance(self) -> bytes:
        answer = b""
        while self._result is None and (fields := self._next()) is not None:
            if fields.text("t", most=16) == "refused":
                raise Refused(
                    fields.text("text", most=MAX_TEXT_BYTES),
                    code=fields.text("code", most=MAX_NAME_BYTES),
                    hint=fields.text("hint", most=MAX_TEXT_BYTES, default=""),
                )
            answer += self._on(fields)
        return answer

    @abstractmethod
    def _on(self, fields: Fields) -> bytes:
        """Handle the next message, within the limits; return the reply. Raises RemoteProtocolError."""

    def _next(self) -> Fields | None:
        """Return the next whole message, or None for "need more". Raises RemoteProtocolError."""
        if self._magic:
            start = bytes(self._buffer[: len(self._magic)])
            if start != self._magic[: len(start)]:
                raise RemoteProtocolError("the other side does not speak meshd's protocol", code="magic")
            if len(start) < len(self._magic):
                return None
            del self._buffer[: len(self._magic)]
            self._magic, self._silent = b"", False
        if len(self._buffer) < _BODY_LENGTH_BYTES:
            return None
        size = int.from_bytes(self._buffer[:_BODY_LENGTH_BYTES], "big")
        if size > self._budget:
            raise RemoteProtocolError(
                f"more than {MAX_UNPROVEN_BYTES} bytes before the proof", code="too_long"
            )
        end = _BODY_LENGTH_BYTES + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_BODY_LENGTH_BYTES:end])
        del self._buffer[:end]
        self._budget -= end
        return unpack(body)

    def _finish(self, peer: PeerId, purpose: Purpose, member: Member | None, invite: bytes | None) -> None:
        self._result = Proven(peer, purpose, member, invite, bytes(self._buffer))
        self._buffer.clear()


def _refusal(error: RemoteProtocolError) -> bytes:
    text, hint = _short(error.what), _short(error.hint)
    return frame({"t": "refused", "code": error.code, "text": text, "hint": hint})


def _short(text: str) -> str:
    """Return the text printable and cut to what the other side accepts."""
    plain = "".join(char if char.isprintable() else "?" for char in text[: MAX_TEXT_BYTES // 4])
    return plain.encode("utf-8", "replace").decode()


def expect(fields: Fields, kind: str) -> None:
    got = fields.text("t", most=16)
    if got != kind:
        raise RemoteProtocolError(f"proof: got `{got}`, expected `{kind}`", code="proof")


def check_inputs(binding: bytes, nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES or not binding:
        raise LocalProtocolError("a proof needs a binding and a nonce of 32 bytes")


def read_chain(fields: Fields) -> Chain | None:
    return Chain.decode(fields.raw("chain", most=MAX_CHAIN_BYTES)) if "chain" in fields else None


def check_signature(fields: Fields, signer: PeerId, context: str, transcript: Transcript) -> None:
    signature = fields.raw("sig", exact=SIGNATURE_BYTES)
    if not verify(signer, context, transcript.encode(), signature):
        raise RemoteProtocolError(
            "the other side's signature does not match this connection",
            code="signature",
            hint="this may be a man in the middle, or the other side is not the node that it claims to be",
        )


def refuse_banned(why: str | None) -> None:
    if why is not None:
        raise RemoteProtocolError(why, code="banned", hint=BANNED_HINT)


def refuse_often(why: str | None) -> None:
    if why is not None:
        raise RemoteProtocolError(
            why,
            code="often",
            hint="it is admitted again within seconds; if this persists, find out what ends its links",
        )
