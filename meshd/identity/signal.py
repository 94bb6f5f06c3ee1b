"""Signals as their sender signs them and their receiver checks them (wire/signal.py has the fields). Pure.

A signal carries its sender's chain: its receiver can check that a member sent it, by whatever route.
When it is too old or comes again is judged in signal_guard.py.
"""

from dataclasses import dataclass, field

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Chain, Member, check_chain
from meshd.identity.signed import Statement
from meshd.wire.signal import MAX_PAYLOAD_BYTES, MAX_SIGNAL_BYTES, SignalBody

_CONTEXT = "meshd signal v1"


@dataclass(frozen=True, slots=True)
class Signal:
    """Made by `sign` and `decode` only; nothing is proven before `verify`."""

    sender: PeerId
    to: PeerId
    body: SignalBody
    statement: Statement = field(repr=False)

    def encode(self) -> bytes:
        """Return at most 6 KiB."""
        return self.statement.encode()

    @classmethod
    def sign(cls, key: KeyPair, body: SignalBody) -> "Signal":
        """Sign `body` with `key`, whose node must be its sender. Raises LocalProtocolError."""
        if body.sender != key.peer.raw:
            raise LocalProtocolError("a signal must be signed by its sender")
        if len(body.payload) > MAX_PAYLOAD_BYTES:
            raise LocalProtocolError(
                f"signal of {len(body.payload)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed"
            )
        try:
            return cls.decode(Statement.make(key, _CONTEXT, body.encode()).encode())
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"signal cannot be made: {error}") from error

    @classmethod
    def decode(cls, data: bytes) -> "Signal":
        """Read the output of `encode`. Raises RemoteProtocolError (code `message`)."""
        statement = Statement.decode(data, limit=MAX_SIGNAL_BYTES)
        body = SignalBody.decode(statement.body)
        return cls(PeerId(body.sender), PeerId(body.to), body, statement)

    def verify(self, mesh: MeshId) -> Member:
        """Return the member that signed it. Raises RemoteProtocolError (code `signal` or `chain`).

        Bans are not checked: ask the RevocationSet with the member's chain.
        """
        if not self.statement.holds(self.sender, _CONTEXT):
            raise RemoteProtocolError("a signal's signature is wrong", code="signal")
        return check_chain(Chain.decode(self.body.chain), mesh, self.sender)
