"""The answering side of STUN: what a relay or a member that others can reach says to "where do I come from?".

It answers with less than three times what it was sent, and only to the asker, so it is no amplifier
worth having; it keeps nothing. One address is all that is known here: CHANGE-REQUEST is answered with the
error 420, as RFC 5780 6.1 wants it from such a server.
"""

from meshd.base.errors import RemoteProtocolError
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode, message_bytes

MAX_STREAM_REQUESTS = 16  # over one TCP connection
_CHANGE_REQUEST = 0x0003
_UNKNOWN_ATTRIBUTE = 420


def answer_to(data: bytes | memoryview, seen: Endpoint) -> bytes | None:
    """What to send back to `seen`, whose datagram `data` was; None for nothing (it is no request)."""
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


class StreamAnswers:
    """Answers the requests that come over one TCP connection from `seen`."""

    def __init__(self, seen: Endpoint) -> None:
        self._seen = seen
        self._held = bytearray()
        self._left = MAX_STREAM_REQUESTS

    def feed(self, data: bytes | memoryview) -> bytes:
        """What to send back. Raises RemoteProtocolError (code `stun`) for anything but binding requests."""
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
