"""Invites, reply codes and relay URLs: words that people paste, and the keys of an invite. Pure.

Invites and reply codes are an `Armour`: prefix, length, bytes and checksum in base32. Base32 in lower case
has no character that a shell, a chat or a double click treats in its own way, and survives being turned into
capitals. The length in front tells a word that was cut off from one that was changed. Errors never repeat the
word: it holds a secret.

An invite is a list of fields (tag, length, value). The top bit of a tag says that a reader who does not know
the field must not go on. Addresses in it are hints only: the node that answers there proves itself by the
inviter's key. The inviter counts how often an invite is used.

A reply code is the second half of a two-way paste, if only two people can carry messages. A joiner that
cannot reach the node of its invite prints one; `meshd accept CODE` there makes that node send to the
addresses in it, which opens its own NAT for the joiner. The code is no secret: its MAC shows that its maker
holds the invite, and what it leads to is nothing but datagrams to those addresses.

A relay's URL is `relay://KEY@HOST:PORT`, the key as a node id's 52 characters. The URL is all one has to
trust: a relay at that address with another key is refused.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from meshd.base.errors import LocalProtocolError, RemoteProtocolError, UserError
from meshd.base.hosts import why_no_host
from meshd.identity.keys import KEY_BYTES, MeshId, PeerId, from_base32, to_base32
from meshd.identity.membership import INVITE_ID_BYTES
from meshd.wire.address import Candidate, order, pack_candidates, unpack_candidates

CHECKSUM_BYTES = 4
MAX_PASTED_CHARS = 4096  # longer input is cut; a token has 300 at most

_LENGTH_BYTES = 2
_LENGTH_CHARS = 4  # characters that hold the length
ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz234567")
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
_AROUND = "\"'`´‘’“”«»<>()[]{}.,;:*_"

MAX_TOKEN_CHARS = 300  # what chats and terminals carry in one piece
INVITE_SECRET_BYTES = 16
MAILBOX_BYTES = 16
MAX_RELAY_PLACE_BYTES = 96
FIRST_CANDIDATES = 2  # those that go in before a relay does
_CRITICAL_TAG = 0x80
_MESH, _INVITER, _SECRET, _EXPIRES = (_CRITICAL_TAG | tag for tag in (1, 2, 3, 4))
_CANDIDATES, _RELAY = 5, 6
_TIME_BYTES = 5
MAX_REPLY_CANDIDATES = 6
REPLY_MAC_BYTES = 16
_CONTEXT = b"meshd reply v1\0"

SCHEME = "relay://"
_MAX_URL_CHARS = 300


def _characters(count: int) -> str:
    return f"{count} character{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Armour:
    """One kind of word: its name `what`, its prefix up to the version digit, and its remedy."""

    what: str
    stem: str
    version: int
    remedy: str

    @property
    def prefix(self) -> str:
        """The beginning of every such word."""
        return f"{self.stem}{self.version}"

    def overhead_chars(self, payload_bytes: int) -> int:
        """Return the length of the word for so many bytes, in characters."""
        bits = 8 * (_LENGTH_BYTES + payload_bytes + CHECKSUM_BYTES)
        return len(self.prefix) + -(-bits // 5)

    def write(self, payload: bytes) -> str:
        """Return the word that `read` turns back into `payload`."""
        head = len(payload).to_bytes(_LENGTH_BYTES, "big")
        return self.prefix + to_base32(head + payload + self._checksum(payload))

    def read(self, text: str) -> bytes:
        """Return the payload of a pasted word. Raises UserError that says what is wrong with it.

        White space and line breaks anywhere, quotes around it and capitals are accepted.
        """
        digits = self.digits(text)
        for place, char in enumerate(digits, start=len(self.prefix) + 1):
            if char not in ALPHABET:
                raise self.wrong(f"character {place}, `{char}`, is not allowed")
        return self.payload(digits)

    def digits(self, text: str) -> str:
        """Return what follows the prefix of a pasted word, whatever it is. Raises UserError."""
        word = "".join(text[:MAX_PASTED_CHARS].split()).translate(_INVISIBLE).strip(_AROUND).lower()
        return self._after_prefix(word, len(text))

    def wrong(self, why: str) -> UserError:
        """Return the error for a malformed word of this kind."""
        return UserError(f"cannot read the {self.what}: {why}", hint=self.remedy)

    def _after_prefix(self, word: str, length: int) -> str:
        if length > MAX_PASTED_CHARS:
            raise self.wrong(f"it has {length} characters, far too many")
        if not word:
            raise self.wrong("it is empty")
        if not word.startswith(self.stem):
            raise self.wrong(f"it does not begin with `{self.prefix}`")
        if len(word) < len(self.prefix):
            raise self.wrong(f"it is cut off after `{word}`")
        if not word.startswith(self.prefix):
            if word[len(self.stem)].isdigit():
                raise self.newer()
            raise self.wrong(f"it begins with `{word[: len(self.prefix)]}`, must be `{self.prefix}`")
        return word[len(self.prefix) :]

    def newer(self) -> UserError:
        """Return the error for a word of a version that this code does not know."""
        return UserError(
            f"cannot read the {self.what}: it was made by a newer version of meshd",
            hint="run `meshd upgrade` on this machine",
        )

    def payload(self, digits: str) -> bytes:
        """Return the payload of the characters after the prefix. Raises UserError."""
        if len(digits) < _LENGTH_CHARS:
            raise self.wrong("it is truncated: only its beginning is there")
        bits = 0
        for char in digits[:_LENGTH_CHARS]:
            bits = bits << 5 | (ord(char) - 97 if char >= "a" else ord(char) - 24)
        length = bits >> (5 * _LENGTH_CHARS - 8 * _LENGTH_BYTES)
        expected = self.overhead_chars(length) - len(self.prefix)
        if expected > MAX_PASTED_CHARS:
            raise self.wrong("its first characters are damaged")
        if len(digits) < expected:
            # its beginning says how long it is, and that may be what is damaged
            missing = _characters(expected - len(digits))
            raise self.wrong(
                f"it is truncated ({missing} missing), or a character of its beginning is damaged"
            )
        if len(digits) > expected:
            extra = _characters(len(digits) - expected)
            raise self.wrong(f"it has {extra} too many, or a character of its beginning is damaged")
        try:
            raw = from_base32(digits)
        except ValueError:
            raise self.wrong("its last character is damaged") from None
        payload, checksum = raw[_LENGTH_BYTES:-CHECKSUM_BYTES], raw[-CHECKSUM_BYTES:]
        if checksum != self._checksum(payload):
            raise self.wrong("the checksum does not match, so at least one character is damaged")
        return payload

    def _checksum(self, payload: bytes) -> bytes:
        return hashlib.sha256(self.prefix.encode() + b"\0" + payload).digest()[:CHECKSUM_BYTES]


TOKEN = Armour(
    what="invite",
    stem="meshd",
    version=1,
    remedy="copy the whole line that `meshd worker` or `meshd serve` printed, "
    "or make a new one there with `meshd invite`",
)
REPLY = Armour(
    what="reply code",
    stem="meshdreply",
    version=1,
    remedy="copy the whole line that `meshd serve --join INVITE` printed on the other machine",
)


@dataclass(frozen=True, slots=True)
class RelayHint:
    """A relay: `place` is host:port, `key` its public key."""

    place: str
    key: PeerId


@dataclass(frozen=True, slots=True)
class Invite:
    """The content of an invite. `expires_at` is unix seconds, `secret` 16 bytes."""

    mesh: MeshId
    inviter: PeerId
    secret: bytes = field(repr=False)
    expires_at: int
    candidates: tuple[Candidate, ...] = ()
    relays: tuple[RelayHint, ...] = ()

    def expired(self, now: int) -> bool:
        """Return True if it has expired by this node's clock, which may be wrong: the inviter's decides."""
        return now >= self.expires_at


@dataclass(frozen=True, slots=True)
class JoinKeys:
    """The keys derived from the secret of an invite (HKDF-SHA256, RFC 5869).

    `join_key`: 32 bytes, proves the secret; `mailbox`: 16 bytes, where to meet at a relay; `invite_id`: 8
    bytes, public; ICE user and password as RFC 8445 wants them, so that strangers can punch; `browser_key`
    (32 bytes) and `browser_box` are what the first two are, for browsers.
    """

    join_key: bytes = field(repr=False)
    mailbox: bytes
    invite_id: bytes
    ice_user: str
    ice_password: str = field(repr=False)
    browser_key: bytes = field(repr=False)
    browser_box: bytes


def derive(secret: bytes) -> JoinKeys:
    """Derive the keys of an invite. Raises LocalProtocolError for a secret of the wrong length."""
    if len(secret) != INVITE_SECRET_BYTES:
        raise LocalProtocolError(f"secret of {len(secret)} bytes, must be {INVITE_SECRET_BYTES}")
    middle = hmac.digest(b"meshd invite v1", secret, "sha256")

    def expand(what: str, size: int) -> bytes:
        return hmac.digest(middle, what.encode() + b"\x01", "sha256")[:size]  # one block is enough

    return JoinKeys(
        join_key=expand("join key", hashlib.sha256().digest_size),
        mailbox=expand("mailbox", MAILBOX_BYTES),
        invite_id=expand("invite id", INVITE_ID_BYTES),
        ice_user=to_base32(expand("ice user", 10)),
        ice_password=to_base32(expand("ice password", 20)),
        browser_key=expand("browser key", hashlib.sha256().digest_size),
        browser_box=expand("browser box", MAILBOX_BYTES),
    )


def encode_token(invite: Invite) -> str:
    """Return one word of at most 300 characters. Candidates and relays that do not fit are left out.

    The nearest addresses are kept first; four of IPv4 and two of IPv6 always fit when there is no relay.
    """
    if len(invite.secret) != INVITE_SECRET_BYTES:
        raise LocalProtocolError(f"secret of {len(invite.secret)} bytes, must be {INVITE_SECRET_BYTES}")
    must = (
        _field(_MESH, invite.mesh.raw)
        + _field(_INVITER, invite.inviter.raw)
        + _field(_SECRET, invite.secret)
        + _field(_EXPIRES, invite.expires_at.to_bytes(_TIME_BYTES, "big"))
    )
    kept: list[Candidate] = []
    hints = b""

    def fits(candidates: list[Candidate], relays: bytes) -> bool:
        packed = _field(_CANDIDATES, pack_candidates(candidates))
        return TOKEN.overhead_chars(len(must) + len(packed) + len(relays)) <= MAX_TOKEN_CHARS

    ordered = order(invite.candidates)
    for candidate in ordered[:FIRST_CANDIDATES]:
        kept += [candidate] if fits([*kept, candidate], hints) else []
    for relay in invite.relays:
        more = hints + _field(_RELAY, relay.key.raw + relay.place.encode())
        hints = more if len(relay.place.encode()) <= MAX_RELAY_PLACE_BYTES and fits(kept, more) else hints
    for candidate in ordered[FIRST_CANDIDATES:]:
        kept += [candidate] if fits([*kept, candidate], hints) else []
    return TOKEN.write(must + (_field(_CANDIDATES, pack_candidates(kept)) if kept else b"") + hints)


def _field(tag: int, value: bytes) -> bytes:
    return bytes([tag, len(value)]) + value


def parse_token(text: str) -> Invite:
    """Read an invite as people paste it. Raises UserError saying which part is wrong.

    Expiry is not looked at here (`Invite.expired`).
    """
    if "".join(text[:200].split()).strip("\"'`<>").lower().startswith("meshdroot"):
        raise TOKEN.wrong("this is the backup of a mesh's root key, which must stay secret")
    found: dict[int, bytes] = {}
    relays: list[RelayHint] = []
    for tag, value in _fields(TOKEN.read(text)):
        if tag == _RELAY:
            relays += _relay(value)
        elif tag in (_MESH, _INVITER, _SECRET, _EXPIRES, _CANDIDATES):
            if tag in found:
                raise TOKEN.wrong("a field occurs twice")
            found[tag] = value
        elif tag & _CRITICAL_TAG:
            raise TOKEN.newer()
    try:
        candidates = unpack_candidates(found.get(_CANDIDATES, b""))
    except RemoteProtocolError as error:
        raise TOKEN.wrong(error.what) from None
    return Invite(
        mesh=MeshId(_exact(found, _MESH, KEY_BYTES, "mesh")),
        inviter=PeerId(_exact(found, _INVITER, KEY_BYTES, "inviter")),
        secret=_exact(found, _SECRET, INVITE_SECRET_BYTES, "secret"),
        expires_at=int.from_bytes(_exact(found, _EXPIRES, _TIME_BYTES, "expiry"), "big"),
        candidates=candidates,
        relays=tuple(relays),
    )


def _fields(payload: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(payload):
        head = payload[at : at + 2]
        value = payload[at + 2 : at + 2 + head[-1]]
        if len(head) < 2 or len(value) < head[1]:
            raise TOKEN.wrong("a field in it is cut off")
        yield head[0], value
        at += 2 + len(value)


def _exact(found: dict[int, bytes], tag: int, size: int, what: str) -> bytes:
    value = found.get(tag)
    if value is None or len(value) != size:
        raise TOKEN.wrong(f"its {what} is missing or has the wrong length")
    return value


def _relay(value: bytes) -> list[RelayHint]:
    """Decode a relay hint; one that cannot be used is left out instead of refusing the invite."""
    try:
        place = value[KEY_BYTES:].decode("ascii")
    except UnicodeDecodeError:
        return []
    host, colon, port = place.rpartition(":")
    usable = colon and port.isdigit() and not why_no_host(host.removeprefix("[").removesuffix("]"))
    if not (usable and len(value) > KEY_BYTES):
        return []
    return [RelayHint(place, PeerId(value[:KEY_BYTES]))]


def expired_text(expires_at: int, now: int) -> str:
    """Return how long ago it expired in words: `expired 3 hours ago`."""
    ago = max(0, now - expires_at)
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if ago >= size:
            count = ago // size
            return f"expired {count} {unit}{'' if count == 1 else 's'} ago"
    return "expired less than a minute ago"


def refuse_expired(invite: Invite, now: int) -> None:
    """Raise UserError when the invite has expired by this node's clock by more than a day.

    Within a day the inviter is asked: one of the two clocks may lie.
    """
    if now >= invite.expires_at + 86400:
        raise UserError(
            f"this invite {expired_text(invite.expires_at, now)}",
            hint="run `meshd invite` on the node that founded the mesh, or set this machine's clock",
        ).final()


@dataclass(frozen=True, slots=True)
class Reply:
    """A joiner: its id, its invite, and where its datagrams come from (UDP candidates)."""

    invite_id: bytes
    joiner: PeerId
    candidates: tuple[Candidate, ...]


def encode_reply(reply: Reply, keys: JoinKeys) -> str:
    """Return the reply as one word; `keys` are those of the invite. Raises LocalProtocolError."""
    if not 1 <= len(reply.candidates) <= MAX_REPLY_CANDIDATES:
        raise LocalProtocolError(f"a reply code cannot have {len(reply.candidates)} addresses")
    body = reply.invite_id + reply.joiner.raw + pack_candidates(reply.candidates)
    return REPLY.write(_mac(body, keys) + body)


def parse_reply(text: str, invites: Callable[[bytes], JoinKeys | None]) -> Reply:
    """Read the output of `encode_reply`; `invites` has the keys by an invite's id. Raises UserError."""
    payload = REPLY.read(text)
    mac, body = payload[:REPLY_MAC_BYTES], payload[REPLY_MAC_BYTES:]
    invite_id, key = body[:INVITE_ID_BYTES], body[INVITE_ID_BYTES : INVITE_ID_BYTES + KEY_BYTES]
    try:
        candidates = unpack_candidates(body[INVITE_ID_BYTES + KEY_BYTES :])
        joiner = PeerId(key)
    except (RemoteProtocolError, LocalProtocolError):
        raise REPLY.wrong("its contents cannot be read") from None
    keys = invites(invite_id)
    if keys is None or not hmac.compare_digest(mac, _mac(body, keys)):
        raise UserError(
            "this reply code was made with another node's invite",
            hint="run `meshd accept` on the node that made the invite",
        )
    good = tuple(c for c in candidates if c.proto == "udp" and not c.is_loopback and not c.is_link_local)
    if not 1 <= len(candidates) <= MAX_REPLY_CANDIDATES or not good:
        raise REPLY.wrong("it contains no usable address")
    return Reply(invite_id, joiner, good)


def _mac(body: bytes, keys: JoinKeys) -> bytes:
    return hmac.digest(keys.join_key, _CONTEXT + body, "sha256")[:REPLY_MAC_BYTES]


def relay_url(hint: RelayHint) -> str:
    """Return the URL that `parse_relay_url` reads."""
    return f"{SCHEME}{hint.key}@{hint.place}"


def parse_relay_url(text: str) -> RelayHint:
    """Read what `meshd relay` printed. Raises UserError saying what is wrong."""
    word = text.strip()
    if len(word) > _MAX_URL_CHARS or not word.isascii() or not word.isprintable() or " " in word:
        raise _wrong(text, "its form is wrong")
    if not word.lower().startswith(SCHEME):
        raise _wrong(text, f"it does not begin with {SCHEME}")
    key, at, place = word[len(SCHEME) :].rstrip("/").rpartition("@")
    if not at:
        raise _wrong(text, "the relay's key is missing before the @")
    split_place(place)
    return RelayHint(place, PeerId.parse(key))


def split_place(place: str) -> tuple[str, int]:
    """Return host (a name or an address, without brackets) and port of `host:port`. Raises UserError."""
    host, _, port = place.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _wrong(place, "an IPv6 address needs brackets")
    if not host or len(place) > MAX_RELAY_PLACE_BYTES or any(char in host for char in "/@[]"):
        raise _wrong(place, "its host is missing or wrong")
    if why := why_no_host(host):
        raise _wrong(place, why)
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise _wrong(place, f"port `{port[:16]}` is not between 1 and 65535")
    return host, int(port)


def _wrong(text: str, why: str) -> UserError:
    return UserError(
        f"`{text[:120]}` is not a relay URL: {why}",
        hint="copy the line that `meshd relay` printed: relay://KEY@HOST:PORT",
    )
