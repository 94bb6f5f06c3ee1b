"""Answers STUN requests, as a relay or a member that others can reach.

Over UDP anybody can forge where a request comes from, and an answer is up to three times as large. So there
is a limit for each address, and one for all: else each forged address would bring its own. Nothing else is
kept. One address is all that is known here: CHANGE-REQUEST is answered with the
error 420, as RFC 5780 6.1 wants it from such a server.
"""

from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import STUN_ANSWERS, STUN_ANSWERS_IN_ALL, STUN_SOURCES
from meshd.base.rate_by_key import Rates
from meshd.base.unproven_connections import origin
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode, message_bytes

MAX_STREAM_REQUESTS = 16  # over one TCP connection
_CHANGE_REQUEST = 0x0003
_UNKNOWN_ATTRIBUTE = 420


def answer_to(data: bytes | memoryview, seen: Endpoint) -> bytes | None:
    """Return the reply to `seen`, whose datagram `data` was; None if that is no request."""
    try:
        request = decode(data)
    except RemoteProtocolError:
        return None
    if request.kind is not StunKind.REQUEST:
        return None
    unknown = request.unknown
    if request.change_ip or request.change_port:
        unknown = (_CHANGE_REQUEST, *unknown)
    if unknown:
        return encode(
            StunMessage(
                kind=StunKind.ERROR,
                transaction=request.transaction,
                error=_UNKNOWN_ATTRIBUTE,
                reason="unknown attribute",
                unknown=unknown[:4],
            )
        )
    return encode(StunMessage(kind=StunKind.SUCCESS, transaction=request.transaction, mapped=seen))


class AnswerRates:
    """The rates at which requests over UDP are answered: for each address, and for all.

    Addresses that others have proven to be theirs, such as members', have rates apart from all the rest, so
    that forged ones do not use theirs up.
    """

    def __init__(self) -> None:
        self._of_address = {known: Rates(STUN_ANSWERS, most=STUN_SOURCES.most) for known in (False, True)}
        self._in_all = Rates(STUN_ANSWERS_IN_ALL)

    def may_answer(self, host: str, now: float, *, is_known: bool) -> bool:
        """Spend one answer to `host`, or return False; `now` in seconds of a clock that never goes back."""
        of_address, address = self._of_address[is_known], origin(host)
        if not (of_address.has(address, now) and self._in_all.has(is_known, now)):
            return False
        return of_address.spend(address, now) and self._in_all.spend(is_known, now)


class StreamAnswers:
    """Answers the requests that come over one TCP connection from `seen`."""

    def __init__(self, seen: Endpoint) -> None:
        self._seen = seen
        self._held = bytearray()
        self._left = MAX_STREAM_REQUESTS

    def feed(self, data: bytes | memoryview) -> bytes:
        """Return the bytes to send back. Raises RemoteProtocolError (code `stun`) for anything but binding
        requests.
        """
        self._held += data
        answers = bytearray()
        while (size := message_bytes(self._held)) is not None and size <= len(self._held):
            answer = answer_to(bytes(self._held[:size]), self._seen)
            del self._held[:size]
            self._left -= 1
            if answer is None or self._left < 0:
                raise RemoteProtocolError("not a STUN request, or too many", code="stun")
            answers += answer
        return bytes(answers)
