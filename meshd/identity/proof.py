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
"""

import hmac
from collections.abc import Callable

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.exchange import (
    DIALLER,
    HIGHEST_VERSION,
    LISTENER,
    LOWEST_VERSION,
    MAC_BYTES,
    MAGIC,
    NONCE_BYTES,
    Credentials,
    Exchange,
    ProofFailed,
    Proven,
    Purpose,
    Transcript,
    check_inputs,
    check_signature,
    expect,
    frame,
    never_banned,
    read_chain,
    refuse_banned,
    refuse_often,
)
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import KEY_BYTES, MeshId, PeerId
from meshd.identity.membership import INVITE_ID_BYTES, Chain, Member, check_chain
from meshd.wire.message import Fields, Value

__all__ = [
    "HIGHEST_VERSION",
    "LOWEST_VERSION",
    "NONCE_BYTES",
    "Credentials",
    "DialProof",
    "ListenProof",
    "ProofFailed",
    "Proven",
    "Purpose",
    "never_banned",
]


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
                "lo": LOWEST_VERSION,
                "hi": HIGHEST_VERSION,
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
            low=LOWEST_VERSION,
            high=HIGHEST_VERSION,
            version=fields.number("version", low=LOWEST_VERSION, high=HIGHEST_VERSION),
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
        if high < LOWEST_VERSION or low > HIGHEST_VERSION or low > high:
            raise RemoteProtocolError(
                f"the dialler speaks protocol versions {low} to {high}, "
                f"this node {LOWEST_VERSION} to {HIGHEST_VERSION}",
                code="version",
                hint="install the same version of meshd on both sides (`meshd --version`)",
            )
        self._transcript = Transcript(
            low=low,
            high=high,
            version=min(high, HIGHEST_VERSION),
            purpose=(purpose := self._check_target(fields)),
            mesh=self._check_mesh(fields),
            dialler=self._check_dialler(fields, purpose),
            listener=self._credentials.key.peer,
            binding=self._binding,
            dial_nonce=fields.raw("nonce", exact=NONCE_BYTES),
            listen_nonce=self._nonce,
        )
        return frame({"t": "answer", "version": self._transcript.version, "nonce": self._nonce})

    def _check_target(self, fields: Fields) -> Purpose:
        if PeerId(fields.raw("to", exact=KEY_BYTES)) != self._credentials.key.peer:
            raise RemoteProtocolError(
                "another node answers at this address", code="target", hint="its address may have changed"
            )
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
