"""The proof: the exchange inside every link that shows who both ends are. Sans-IO. Pure.

    dialler                                     listener
    MESHD hi (versions, purpose, mesh, ids, nonce) ->
                                               <- answer (version, nonce)
    proof (signature, chain or invite + HMAC)     ->
                                               <- proof (signature, chain)
    done                                          ->

Each message is a u16 length and a msgpack map. Both sign the same transcript under different contexts;
it holds the version, the purpose, the mesh, both ids, both nonces and the *binding*: the hash of the
certificate that the listener showed below. A man in the middle has another certificate there, so that a
forwarded signature does not fit; fresh nonces of both sides make a recorded one useless. Either side may
send `refused` (code, text, hint) instead of its next message.

How a driver uses either side: send what `start` gave (dialler), then for each chunk received send what
`receive` returns, and only then look at `result`. On ProofFailed send its `farewell`, then close.
A refusal is not authenticated: show it, but never change stored trust because of one.

Before the proof, a listener under a flood must choose whom to keep before anybody has proven anything. So a
dialler that knows the mesh, as a member or by a token, puts a mark (`caller_mark`) where the server name of
its TLS ClientHello (RFC 6066, section 3) stands: a random nonce, and a hash of it with the mesh id and the
listener's id. To strangers it is a random name, another one for each connection. It proves nothing and admits
nobody: it only earns a place apart from those who do not have it. A node that was invited once can make marks
for ever, and an eavesdropper can repeat one; among the marked, addresses share the places as strangers do.

After the proof, a member shows a head that it has one of its API keys (`prove_key`) without revealing the
key. Any member may say that it serves a model. One that receives a key could use it elsewhere; a proof is of
use only with the head it was made for, in a session of the member that made it.
"""

import hashlib
import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshd.base.errors import BANNED_HINT, LocalProtocolError, Refused, RemoteProtocolError
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    KeyPair,
    MeshId,
    PeerId,
    from_base32,
    joined,
    to_base32,
    verify,
)
from meshd.identity.membership import INVITE_ID_BYTES, Chain, Member, check_chain
from meshd.wire.limits import MAX_CHAIN_BYTES, MAX_NAME_BYTES, MAX_TEXT_BYTES, MAX_UNPROVEN_BYTES
from meshd.wire.message import Fields, Value, pack, unpack
from meshd.wire.versions import OLDEST_WIRE_VERSION, VERSION_CODE, WIRE_VERSION, older_hint

MAGIC = b"MESHD"
NONCE_BYTES = 32
MAC_BYTES = 32
_BODY_LENGTH_BYTES = 2
DIALLER = "meshd proof dialler v1"
LISTENER = "meshd proof listener v1"
_JOIN = b"meshd proof join v1"
__all__ = [
    "NONCE_BYTES",
    "Credentials",
    "DialProof",
    "ListenProof",
    "ProofFailed",
    "Proven",
    "Purpose",
    "never_banned",
]

MARK_NONCE_BYTES = 10
_MARK_TAG_BYTES = 10
_MARK_CHARS = 32
_MARK_CONTEXT = b"meshd caller mark v1"
# The extension as it is for a name of this length: type, length, length of the list, kind of name, length.
_SERVER_NAME = bytes((0, 0, 0, _MARK_CHARS + 5, 0, _MARK_CHARS + 3, 0, 0, _MARK_CHARS))

PROOF_BYTES = 32
MAX_PROOFS = 2  # a request may carry two keys, in two headers
_KEY_CONTEXT = b"meshd api key v1"


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


def _spoken(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


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


class DialProof(Exchange):
    """The dialler's side. `binding`: SHA-256 of the certificate it was shown; `nonce`: 32 random bytes.

    `join` is needed for purpose JOIN. For MEMBER the credentials need a chain.
    """

    def __init__(
        self,
        *,
        credentials: Credentials,
        mesh: MeshId,
        expect: PeerId,
        purpose: Purpose,
        binding: bytes,
        nonce: bytes,
        join: JoinKeys | None = None,
        why_banned: Callable[[Chain], str | None] = never_banned,
    ) -> None:
        super().__init__(magic=b"")
        check_inputs(binding, nonce)
        if (purpose is Purpose.JOIN) != (join is not None):
            raise LocalProtocolError("join keys belong to purpose join, and to it alone")
        if purpose is Purpose.MEMBER and credentials.chain is None:
            raise LocalProtocolError("a member proof needs a chain")
        self._credentials = credentials
        self._mesh = mesh
        self._expect = expect
        self._purpose = purpose
        self._binding = binding
        self._nonce = nonce
        self._join = join
        self._why_banned = why_banned
        self._transcript: Transcript | None = None

    def start(self) -> bytes:
        """Return the first bytes to send."""
        return MAGIC + frame(
            {
                "t": "hi",
                "lo": OLDEST_WIRE_VERSION,
                "hi": WIRE_VERSION,
                "purpose": self._purpose,
                "mesh": self._mesh.raw,
                "to": self._expect.raw,
                "from": self._credentials.key.peer.raw,
                "nonce": self._nonce,
            }
        )

    def _on(self, fields: Fields) -> bytes:
        if self._transcript is None:
            return self._on_answer(fields)
        return self._on_proof(fields, self._transcript)

    def _on_answer(self, fields: Fields) -> bytes:
        expect(fields, "answer")
        self._transcript = transcript = Transcript(
            low=OLDEST_WIRE_VERSION,
            high=WIRE_VERSION,
            version=fields.number("version", low=OLDEST_WIRE_VERSION, high=WIRE_VERSION),
            purpose=self._purpose,
            mesh=self._mesh,
            dialler=self._credentials.key.peer,
            listener=self._expect,
            binding=self._binding,
            dial_nonce=self._nonce,
            listen_nonce=fields.raw("nonce", exact=NONCE_BYTES),
        )
        message: dict[str, Value] = {
            "t": "proof",
            "sig": self._credentials.key.sign(DIALLER, transcript.encode()),
        }
        if self._join is not None:
            message |= {"invite": self._join.invite_id, "mac": transcript.mac(self._join)}
        elif self._credentials.chain is not None:
            message["chain"] = self._credentials.chain.encode()
        return frame(message)

    def _on_proof(self, fields: Fields, transcript: Transcript) -> bytes:
        expect(fields, "proof")
        check_signature(fields, self._expect, LISTENER, transcript)
        chain = read_chain(fields)
        member = None
        if chain is not None:
            member = check_chain(chain, self._mesh, self._expect)
            refuse_banned(self._why_banned(chain))
        elif self._purpose is not Purpose.RELAY:
            raise RemoteProtocolError("the other side did not prove that it is a member", code="chain")
        self._finish(self._expect, self._purpose, member, self._join.invite_id if self._join else None)
        return frame({"t": "done"})


class ListenProof(Exchange):
    """The listener's side. `binding`: SHA-256 of its own certificate; `nonce`: 32 random bytes.

    `invites` gives the keys of an invite id, or None. `mesh` None takes members of any mesh (a relay that
    serves all); `purposes` are those it takes. `why_node_banned` refuses joiners whose key is banned,
    `refusal_reason` members by the key that they say is theirs, before anything is signed.
    """

    def __init__(
        self,
        *,
        credentials: Credentials,
        mesh: MeshId | None,
        binding: bytes,
        nonce: bytes,
        invites: Callable[[bytes], JoinKeys | None],
        why_banned: Callable[[Chain], str | None] = never_banned,
        why_node_banned: Callable[[PeerId], str | None] | None = None,
        refusal_reason: Callable[[PeerId], str | None] | None = None,
        purposes: frozenset[Purpose] = frozenset({Purpose.JOIN, Purpose.MEMBER}),
    ) -> None:
        super().__init__(magic=MAGIC)
        check_inputs(binding, nonce)
        if purposes != {Purpose.RELAY} and (credentials.chain is None or mesh is None):
            raise LocalProtocolError("a member's listener needs a mesh and a chain")
        self._credentials = credentials
        self._mesh = mesh
        self._binding = binding
        self._nonce = nonce
        self._invites = invites
        self._why_banned = why_banned
        self._why_node_banned = why_node_banned
        self._refusal_reason = refusal_reason
        self._purposes = purposes
        self._transcript: Transcript | None = None
        self._shown: tuple[Member | None, bytes | None] | None = None

    def _on(self, fields: Fields) -> bytes:
        if self._transcript is None:
            return self._on_hi(fields)
        if self._shown is None:
            return self._on_proof(fields, self._transcript)
        expect(fields, "done")
        self._finish(self._transcript.dialler, self._transcript.purpose, *self._shown)
        return b""

    def _on_hi(self, fields: Fields) -> bytes:
        expect(fields, "hi")
        low = fields.number("lo", low=0, high=0xFFFF)
        high = fields.number("hi", low=0, high=0xFFFF)
        if low > high:
            raise RemoteProtocolError(f"proof: versions {low} to {high}", code="proof")
        self._check_sought(fields)  # a stranger learns nothing
        if high < OLDEST_WIRE_VERSION or low > WIRE_VERSION:
            here, there = self._credentials.key.peer, PeerId(fields.raw("from", exact=KEY_BYTES))
            older = there if high < OLDEST_WIRE_VERSION else here
            raise RemoteProtocolError(
                f"node {there.short} speaks version {_spoken(low, high)} of meshd's protocol, "
                f"node {here.short} version {_spoken(OLDEST_WIRE_VERSION, WIRE_VERSION)}",
                code=VERSION_CODE,
                hint=older_hint(older.short),
            )
        self._transcript = Transcript(
            low=low,
            high=high,
            version=min(high, WIRE_VERSION),
            purpose=(purpose := self._check_purpose(fields)),
            mesh=self._check_mesh(fields),
            dialler=self._check_dialler(fields, purpose),
            listener=self._credentials.key.peer,
            binding=self._binding,
            dial_nonce=fields.raw("nonce", exact=NONCE_BYTES),
            listen_nonce=self._nonce,
        )
        return frame({"t": "answer", "version": self._transcript.version, "nonce": self._nonce})

    def _check_sought(self, fields: Fields) -> None:
        if PeerId(fields.raw("to", exact=KEY_BYTES)) != self._credentials.key.peer:
            raise RemoteProtocolError(
                "another node answers at this address", code="target", hint="its address may have changed"
            )

    def _check_purpose(self, fields: Fields) -> Purpose:
        purpose = fields.text("purpose", most=16)
        for known in self._purposes:
            if known == purpose:
                return known
        raise RemoteProtocolError(f"this node does not accept links for `{purpose}`", code="purpose")

    def _check_mesh(self, fields: Fields) -> MeshId:
        mesh = MeshId(fields.raw("mesh", exact=KEY_BYTES))
        if self._mesh is not None and mesh != self._mesh:
            raise RemoteProtocolError(
                "this node is in another mesh",
                code="mesh",
                hint="a node can be in one mesh only: get a new invite from the mesh that it is in now",
            )
        return mesh

    def _check_dialler(self, fields: Fields, purpose: Purpose) -> PeerId:
        dialler = PeerId(fields.raw("from", exact=KEY_BYTES))
        if dialler == self._credentials.key.peer:
            raise RemoteProtocolError(
                "a node cannot link to itself",
                code="self",
                hint="this invite or address is the node's own; if its state was copied, run `meshd "
                "leave --new-identity` and join again",
            )
        if purpose is Purpose.MEMBER and self._refusal_reason is not None:
            refuse_often(self._refusal_reason(dialler))
        return dialler

    def _on_proof(self, fields: Fields, transcript: Transcript) -> bytes:
        expect(fields, "proof")
        check_signature(fields, transcript.dialler, DIALLER, transcript)
        if transcript.purpose is Purpose.JOIN:
            self._shown = (None, self._check_joiner(fields, transcript))
        else:
            self._shown = (self._check_member(fields, transcript), None)
        message: dict[str, Value] = {
            "t": "proof",
            "sig": self._credentials.key.sign(LISTENER, transcript.encode()),
        }
        if self._credentials.chain is not None:
            message["chain"] = self._credentials.chain.encode()
        return frame(message)

    def _check_joiner(self, fields: Fields, transcript: Transcript) -> bytes:
        invite_id = fields.raw("invite", exact=INVITE_ID_BYTES)
        keys = self._invites(invite_id)
        mac = fields.raw("mac", exact=MAC_BYTES)
        if keys is None or not hmac.compare_digest(transcript.mac(keys), mac):
            raise RemoteProtocolError(
                "this invite is unknown here",
                code="unknown",
                hint="ask for a new one: `meshd invite` on a machine of that mesh",
            )
        if self._why_node_banned is not None:
            refuse_banned(self._why_node_banned(transcript.dialler))
        return invite_id

    def _check_member(self, fields: Fields, transcript: Transcript) -> Member | None:
        chain = read_chain(fields)
        if chain is None:
            if transcript.purpose is Purpose.RELAY:
                return None
            raise RemoteProtocolError("the dialler did not prove that it is a member", code="chain")
        member = check_chain(chain, transcript.mesh, transcript.dialler)
        refuse_banned(self._why_banned(chain))
        return member


def caller_mark(mesh: MeshId, listener: PeerId, nonce: bytes) -> str:
    """Return the server name that a dialler of `listener` sends; `nonce` is MARK_NONCE_BYTES random bytes."""
    return to_base32(nonce + _mark_tag(mesh, listener, nonce))


def has_caller_mark(hello: bytes | bytearray, mesh: MeshId, listener: PeerId) -> bool:
    """Return True if the first bytes of a connection hold a mark for `listener` in `mesh`.

    The bytes are searched, not parsed: they are TLS or anything else, whole or cut off.
    """
    _, found, rest = bytes(hello).partition(_SERVER_NAME)
    text = rest[:_MARK_CHARS]
    if not found or len(text) < _MARK_CHARS:
        return False
    try:
        mark = from_base32(text.decode("ascii"))
    except ValueError:
        return False
    nonce, tag = mark[:MARK_NONCE_BYTES], mark[MARK_NONCE_BYTES:]
    return hmac.compare_digest(tag, _mark_tag(mesh, listener, nonce))


def _mark_tag(mesh: MeshId, listener: PeerId, nonce: bytes) -> bytes:
    return hashlib.sha256(joined(_MARK_CONTEXT, mesh.raw, listener.raw, nonce)).digest()[:_MARK_TAG_BYTES]


def key_digest(key: str) -> bytes:
    """Return the SHA-256 of a key, read as text of a header, whose other bytes are surrogates."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def prove_key(digest: bytes, *, head: PeerId, member: PeerId) -> bytes:
    """Return the proof from `member` to `head` for the key with this digest."""
    return hmac.digest(digest, joined(_KEY_CONTEXT, head.raw, member.raw), hashlib.sha256)


def proven_key(proofs: bytes, digests: Sequence[bytes], *, head: PeerId, member: PeerId) -> bytes | None:
    """Return the one of `digests` that one of these concatenated proofs is for, or None."""
    found: bytes | None = None
    for at in range(0, min(len(proofs), MAX_PROOFS * PROOF_BYTES), PROOF_BYTES):
        given = proofs[at : at + PROOF_BYTES]
        for digest in digests:
            # no early exit, as in KeyRing.match
            right = hmac.compare_digest(given, prove_key(digest, head=head, member=member))
            found = digest if right else found
    return found
