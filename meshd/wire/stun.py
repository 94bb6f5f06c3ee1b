"""STUN binding messages (RFC 8489) with what NAT discovery adds to them (RFC 5780), as bytes and values.

One question, "which address do you see me come from?", and its answer. Understood: the mapped address,
plain or xored (14.1, 14.2), OTHER-ADDRESS, RESPONSE-ORIGIN, CHANGE-REQUEST (RFC 5780 7.2–7.4), USERNAME,
ERROR-CODE, FINGERPRINT, and MESSAGE-INTEGRITY-SHA256 with a short-term key (14.6, 9.1). SOFTWARE and every
other attribute that may be skipped is skipped. What cannot be read raises RemoteProtocolError (code `stun`).

Answers STUN requests, as a relay or a member that others can reach.

Over UDP anybody can forge where a request comes from, and an answer is up to three times as large. So there
is a limit for each address, and one for all: else each forged address would bring its own. Nothing else is
kept. One address is all that is known here: CHANGE-REQUEST is answered with the
error 420, as RFC 5780 6.1 wants it from such a server.
"""

import hashlib
import hmac
import ipaddress
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from meshd.base.admission import Rates
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.base.peer_limits import STUN_ANSWERS, STUN_ANSWERS_IN_ALL, STUN_SOURCES
from meshd.base.unproven_connections import origin

_MAGIC = b"\x21\x12\xa4\x42"
HEAD_BYTES = 20
TRANSACTION_BYTES = 12
MAX_STUN_BYTES = 1500  # a whole message; answers of real servers have under 200
MAX_ATTRIBUTES = 32
MAX_USERNAME_BYTES = 508  # RFC 8489 14.3
MAX_REASON_BYTES = 763  # RFC 8489 14.8
_HEAD = struct.Struct(">HH4s12s")
_ATTRIBUTE = struct.Struct(">HH")
_MAPPED, _CHANGE, _USERNAME, _INTEGRITY_SHA1 = 0x0001, 0x0003, 0x0006, 0x0008
_ERROR, _UNKNOWN, _INTEGRITY, _XOR_MAPPED = 0x0009, 0x000A, 0x001C, 0x0020
_FINGERPRINT, _ORIGIN, _OTHER = 0x8028, 0x802B, 0x802C
_OPTIONAL = 0x8000  # attributes from here on may be skipped by those that do not know them
_CHANGE_IP, _CHANGE_PORT = 4, 2
_FINGERPRINT_XOR = 0x5354554E
_INTEGRITY_BYTES = 32
MAX_STREAM_REQUESTS = 16  # over one TCP connection
_CHANGE_REQUEST = 0x0003
_UNKNOWN_ATTRIBUTE = 420


class StunKind(IntEnum):
    """Method "binding" with the class of the message, as they stand in its first two bytes."""

    REQUEST = 0x0001
    INDICATION = 0x0011
    SUCCESS = 0x0101
    ERROR = 0x0111


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """An address and port as somebody saw it: `host` is an IP literal, `port` 1–65535."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return `host:port`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StunMessage:
    """A message as `decode` read it, or as `encode` shall write it.

    `mapped` is always there in a SUCCESS, `error` (300–699) in an ERROR, and never elsewhere. `other` is the
    server's second address, `origin` the one the answer was sent from. `unknown` are attributes that must
    not be skipped and were: a server answers them with the error 420.
    """

    kind: StunKind
    transaction: bytes
    mapped: Endpoint | None = None
    other: Endpoint | None = None
    origin: Endpoint | None = None
    change_ip: bool = False
    change_port: bool = False
    username: bytes = b""
    error: int = 0
    reason: str = ""
    unknown: tuple[int, ...] = ()


def looks_like_stun(data: bytes | bytearray | memoryview) -> bool:
    """Return True for a datagram or the start of a stream (20 bytes at least) that can only be STUN.

    QUIC, DTLS and TLS differ in the first two bits or in the magic (RFC 7983, RFC 9443).
    """
    if len(data) < HEAD_BYTES or data[0] & 0xC0:
        return False
    return bytes(data[4:8]) == _MAGIC and data[3] & 3 == 0


def message_bytes(data: bytes | bytearray | memoryview) -> int | None:
    """Return the length of the message at the start of a stream (RFC 8489 6.2.2), or None for "need more".

    Raises RemoteProtocolError when it is not STUN, or too long.
    """
    if len(data) < HEAD_BYTES:
        return None
    if not looks_like_stun(data):
        raise _bad("no STUN message")
    length = HEAD_BYTES + int.from_bytes(data[2:4], "big")
    if length > MAX_STUN_BYTES:
        raise _bad(f"a message of {length} bytes, at most {MAX_STUN_BYTES} are taken")
    return length


def encode(message: StunMessage, *, key: bytes = b"") -> bytes:
    """Encode the message with a fingerprint at its end, preceded by its integrity under `key`, if given.

    Raises LocalProtocolError for a transaction that has not 12 bytes, or a value that does not fit.
    """
    transaction = message.transaction
    if len(transaction) != TRANSACTION_BYTES or len(message.username) > MAX_USERNAME_BYTES:
        raise LocalProtocolError("a STUN message cannot be encoded")
    # Attributes of the message.
    body = bytearray()
    if message.change_ip or message.change_port:
        flags = _CHANGE_IP * message.change_ip | _CHANGE_PORT * message.change_port
        body += _attribute(_CHANGE, flags.to_bytes(4, "big"))
    if message.error:
        reason = message.reason.encode()[:MAX_REASON_BYTES].decode("utf-8", "ignore").encode()
        body += _attribute(_ERROR, bytes([0, 0, message.error // 100, message.error % 100]) + reason)
    if message.unknown:
        body += _attribute(_UNKNOWN, b"".join(attribute.to_bytes(2, "big") for attribute in message.unknown))
    if message.username:
        body += _attribute(_USERNAME, message.username)
    if message.mapped is not None:
        body += _attribute(_XOR_MAPPED, _xored(_packed(message.mapped), transaction))
    if message.origin is not None:
        body += _attribute(_ORIGIN, _packed(message.origin))
    if message.other is not None:
        body += _attribute(_OTHER, _packed(message.other))
    # Integrity covers everything before it, the fingerprint the integrity as well.
    if key:
        head = _head(message, len(body) + _ATTRIBUTE.size + _INTEGRITY_BYTES)
        body += _attribute(_INTEGRITY, hmac.digest(key, head + body, "sha256"))
    head = _head(message, len(body) + _ATTRIBUTE.size + 4)
    body += _attribute(_FINGERPRINT, _checksum(head + body))
    return bytes(head + body)


def _head(message: StunMessage, length: int) -> bytes:
    return _HEAD.pack(message.kind, length, _MAGIC, message.transaction)


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(kind, len(value)) + value + bytes(-len(value) % 4)


def _checksum(data: bytes) -> bytes:
    return (zlib.crc32(data) ^ _FINGERPRINT_XOR).to_bytes(4, "big")


def _packed(endpoint: Endpoint) -> bytes:
    address = ipaddress.ip_address(endpoint.host)
    return bytes([0, 1 if address.version == 4 else 2]) + endpoint.port.to_bytes(2, "big") + address.packed


def _xored(value: bytes, transaction: bytes) -> bytes:
    """XOR port and address with the cookie (RFC 8489 14.2); doing it twice gives the original."""
    pad = _MAGIC[:2] + _MAGIC + transaction
    return value[:2] + bytes(byte ^ other for byte, other in zip(value[2:], pad, strict=False))


def decode(data: bytes | memoryview, *, key: bytes = b"") -> StunMessage:
    """Read one whole message. With `key` its integrity must be there and right, or it is refused.

    Raises RemoteProtocolError (code `stun`).
    """
    data = bytes(data)
    if message_bytes(data) != len(data):
        raise _bad("a STUN message of another length than it says")
    try:
        kind = StunKind(int.from_bytes(data[:2], "big"))
    except ValueError:
        raise _bad("not a binding message") from None
    reader = _Reader(kind, data, key)
    reader.read()
    return reader.message()


class _Reader:
    """The collected attributes of one message."""

    def __init__(self, kind: StunKind, data: bytes, key: bytes) -> None:
        self._kind = kind
        self._data = data
        self._key = key
        self._transaction = data[8:HEAD_BYTES]
        self._addresses: dict[int, Endpoint] = {}
        self._flags = 0
        self._username = b""
        self._error: tuple[int, str] = (0, "")
        self._unknown: list[int] = []
        self._sealed = False  # the integrity was passed: what follows it is not covered and not believed
        self._authentic = False

    def read(self) -> None:
        at, count = HEAD_BYTES, 0
        while at < len(self._data):
            if len(self._data) - at < _ATTRIBUTE.size:
                raise _bad("an attribute is cut off")
            kind, length = _ATTRIBUTE.unpack_from(self._data, at)
            start = at + _ATTRIBUTE.size
            end = start + length
            count += 1
            if end + -length % 4 > len(self._data) or count > MAX_ATTRIBUTES:
                raise _bad("an attribute is cut off, or there are too many")
            self._take(kind, self._data[start:end], at)
            at = end + -length % 4

    def message(self) -> StunMessage:
        if self._key and not self._authentic:
            raise _bad("a STUN message without its integrity")
        mapped = self._addresses.get(_XOR_MAPPED) or self._addresses.get(_MAPPED)
        if self._kind is StunKind.SUCCESS and mapped is None:
            raise _bad("an answer without a usable mapped address")
        code, reason = self._error
        if self._kind is StunKind.ERROR and not code:
            raise _bad("an error without its code")
        return StunMessage(
            kind=self._kind,
            transaction=self._transaction,
            mapped=mapped if self._kind is StunKind.SUCCESS else None,
            other=self._addresses.get(_OTHER),
            origin=self._addresses.get(_ORIGIN),
            change_ip=bool(self._flags & _CHANGE_IP),
            change_port=bool(self._flags & _CHANGE_PORT),
            username=self._username,
            error=code if self._kind is StunKind.ERROR else 0,
            reason=reason if self._kind is StunKind.ERROR else "",
            unknown=tuple(self._unknown),
        )

    def _take(self, kind: int, value: bytes, at: int) -> None:
        if kind == _FINGERPRINT:
            if len(value) != 4 or at + 8 != len(self._data) or value != _checksum(self._data[:at]):
                raise _bad("a STUN message with a wrong fingerprint")
        elif kind == _INTEGRITY:
            self._check_integrity(value, at)
        elif self._sealed:
            return
        elif kind == _INTEGRITY_SHA1:
            self._sealed = (
                not self._key
            )  # the older kind of integrity: not checked, and nothing behind it read
        else:
            self._take_plain(kind, value)

    def _take_plain(self, kind: int, value: bytes) -> None:
        if kind in (_XOR_MAPPED, _MAPPED, _OTHER, _ORIGIN):
            plain = _xored(value, self._transaction) if kind == _XOR_MAPPED else value
            endpoint = _endpoint(plain)
            if endpoint is not None:
                self._addresses.setdefault(kind, endpoint)
        elif kind == _CHANGE:
            if len(value) != 4:
                raise _bad("a CHANGE-REQUEST of another length than 4")
            self._flags = value[3]
        elif kind == _USERNAME:
            if len(value) > MAX_USERNAME_BYTES:
                raise _bad(f"a user name of {len(value)} bytes")
            self._username = self._username or value
        elif kind == _ERROR:
            self._take_error(value)
        elif kind < _OPTIONAL and kind != _UNKNOWN:
            self._unknown.append(kind)

    def _take_error(self, value: bytes) -> None:
        if not 4 <= len(value) <= 4 + MAX_REASON_BYTES or not 3 <= value[2] & 7 <= 6 or value[3] > 99:
            raise _bad("an ERROR-CODE that is none")
        text = value[4:].decode("utf-8", "replace")
        self._error = ((value[2] & 7) * 100 + value[3], "".join(c if c.isprintable() else "?" for c in text))

    def _check_integrity(self, value: bytes, at: int) -> None:
        if self._sealed or not self._key:
            self._sealed = True
            return
        self._sealed = True
        length = at + _ATTRIBUTE.size + len(value) - HEAD_BYTES
        covered = self._data[:2] + length.to_bytes(2, "big") + self._data[4:at]
        right = hmac.new(self._key, covered, hashlib.sha256).digest()
        self._authentic = len(value) == _INTEGRITY_BYTES and hmac.compare_digest(value, right)


def _endpoint(value: bytes) -> Endpoint | None:
    """Return the address in an attribute; None for one that no packet can come from. Raises
    RemoteProtocolError.
    """
    sizes = {1: 8, 2: 20}
    if len(value) < 4 or len(value) != sizes.get(value[1]):
        raise _bad("an address that is none")
    port = int.from_bytes(value[2:4], "big")
    address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(value[4:])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not port or address.is_unspecified or address.is_multicast or str(address) == "255.255.255.255":
        return None
    return Endpoint(str(address), port)


def _bad(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(what, code="stun")


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
