"""Signals as their sender signs them and their receiver checks them (wire/signal.py has the fields). Pure.

A signal carries its sender's chain: its receiver can check that a member sent it, by whatever route.
When it is too old or comes again is judged by SignalGuard.

Accepts each signal only once, and no old ones.

Clocks lie, so that a time in a signal proves little. What proves its age is an *echo*: each signal carries
a cookie that its receiver sends back in its own, and cookies change every minute. A signal without a good
echo (the first one of two nodes) is taken when both clocks agree; else its sender is told the cookie and
sends it again. What comes again is found by the sender's start and sequence, whatever any clock says.
"""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.base.peer_limits import SENDERS_KNOWN
from meshd.identity.keys import KeyPair, MeshId, PeerId, joined
from meshd.identity.membership import Chain, Member, Statement, check_chain
from meshd.wire.signal import COOKIE_BYTES, MAX_PAYLOAD_BYTES, MAX_SIGNAL_BYTES, SignalBody

_CONTEXT = "meshd signal v1"
COOKIE_SECONDS = 60.0  # a cookie is good in its minute and in the next one
CLOCKS_AGREE = 60  # seconds by which clocks that are kept may differ
WINDOW = 128  # sequence numbers by which one signal may overtake another
MOST_SENDERS = SENDERS_KNOWN.most


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


class SignalVerdict(StrEnum):
    """The verdict on a signal; all but GOOD drop it."""

    GOOD = "good"
    REPEATED = "it was received before"
    OLD_START = "it is from an earlier start of its sender"
    STALE = "it is too old, or the clocks differ"


@dataclass(slots=True)
class _SeenSignals:
    start: bytes
    highest: int
    bits: int  # bit n: highest - n has come
    at: float  # when the last one was taken


class SignalGuard:
    """Remembers the last senders; feed it verified signals of members only. `salt` is random bytes."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._seen: dict[PeerId, _SeenSignals] = {}

    def cookie(self, peer: PeerId, now: float) -> bytes:
        """Return the cookie that `peer` is to echo; `now` in seconds of a monotonic clock."""
        return self._cookie(peer, int(now / COOKIE_SECONDS))

    def take(self, signal: Signal, *, now: float, wall: int) -> SignalVerdict:
        """Judge a signal, and remember it if it is good. `wall` is unix seconds by our clock."""
        body = signal.body
        seen = self._seen.get(signal.sender)
        if seen is not None and body.start == seen.start and _came_before(seen, body.sequence):
            return SignalVerdict.REPEATED
        period = int(now / COOKIE_SECONDS)
        echoes = body.echo in (self._cookie(signal.sender, period), self._cookie(signal.sender, period - 1))
        if seen is not None and body.start < seen.start:
            # A state folder that was put back counts from an earlier number. Made within the last two minutes
            # it cannot be a repetition of what came before a longer silence.
            if not echoes or now - seen.at < 2 * COOKIE_SECONDS:
                return SignalVerdict.OLD_START
        elif not echoes and abs(wall - body.at) > body.life + CLOCKS_AGREE:
            return SignalVerdict.STALE
        self._remember(signal.sender, body.start, body.sequence, now)
        return SignalVerdict.GOOD

    def _remember(self, sender: PeerId, start: bytes, sequence: int, now: float) -> None:
        seen = self._seen.pop(sender, None)  # the latest go to the end
        if seen is None or start != seen.start:
            seen = _SeenSignals(start, sequence, 1, now)
        elif sequence > seen.highest:
            seen.bits = (seen.bits << min(sequence - seen.highest, WINDOW) | 1) & ((1 << WINDOW) - 1)
            seen.highest = sequence
        else:
            seen.bits |= 1 << (seen.highest - sequence)
        seen.at = now
        self._seen[sender] = seen
        if len(self._seen) > MOST_SENDERS:
            del self._seen[next(iter(self._seen))]

    def _cookie(self, peer: PeerId, period: int) -> bytes:
        return hashlib.sha256(joined(self._salt, peer.raw, b"%d" % period)).digest()[:COOKIE_BYTES]


def _came_before(seen: _SeenSignals, sequence: int) -> bool:
    behind = seen.highest - sequence
    return behind >= WINDOW or (behind >= 0 and bool(seen.bits >> behind & 1))
