"""Links that open the page of the mesh once, and the sessions of the browsers that opened one. Pure.

Only digests of secrets are kept. Every kept digest is compared, in constant time, so that the time of an
answer does not tell which secret was close.

A cookie has no port (RFC 6265, 8.5): browsers send those of all programs on `127.0.0.1`, and any of these may
set one for our path. Hence the port is in the name, and a request may carry several values.
"""

import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from meshd.identity.proof import key_digest

LINK_SECONDS = 60.0
SESSION_SECONDS = 12 * 3600.0
FRESH_SECONDS = 600.0  # after the link, in which the page may also do what cannot be undone
MOST_LINKS = 16
MOST_SESSIONS = 32
SECRET_BYTES = 32  # of chance in a secret; as text, base64url without padding (RFC 4648, 5)
_MOST_VALUES = 8  # of one cookie's name in a request
_MOST_HEADER_CHARS = 256 << 10  # of all Cookie headers
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_NAME_CHARS = 12  # of a digest in hex

LinkState = Literal["waiting", "opened", "ended"]


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """One browser's session. `began`: when its link was opened.

    `uid`: the user whose programs may use it; None: any.
    """

    digest: bytes
    began: float
    uid: int | None

    def is_over(self, now: float) -> bool:
        """Return True once its cookie is no longer accepted."""
        return now >= self.began + SESSION_SECONDS

    def is_fresh(self, now: float) -> bool:
        """Return True for some minutes after the link."""
        return now < self.began + FRESH_SECONDS


class Sessions:
    """The outstanding links and the sessions of one node. `now`: seconds of a clock that counts sleep."""

    def __init__(self) -> None:
        self._links: dict[bytes, float] = {}  # by the digest of the secret: when it was made
        self._spent: dict[bytes, None] = {}  # the newest digests, for those who ask what became of a link
        self._sessions: dict[bytes, Session] = {}  # the oldest first

    def add_link(self, secret: str, now: float) -> str:
        """Let `secret` open the page once; the oldest link ends if there are too many. Return its name."""
        self._drop(now)
        _make_room(self._links, MOST_LINKS)
        digest = key_digest(secret)
        self._links[digest] = now
        return _name(digest)

    def link_state(self, name: str, now: float) -> LinkState:
        """Return what became of the link of this name: only the newest links that were opened are known."""
        self._drop(now)
        if any(_name(digest) == name for digest in self._links):
            return "waiting"
        return "opened" if any(_name(digest) == name for digest in self._spent) else "ended"

    def spend(self, secret: str, now: float) -> bool:
        """End the link of `secret`; return False if there is none."""
        self._drop(now)
        digest = _find(self._links, [secret])
        if digest is None:
            return False
        del self._links[digest]
        _make_room(self._spent, MOST_LINKS)
        self._spent[digest] = None
        return True

    def begin(self, cookie: str, now: float, uid: int | None) -> Session:
        """Begin a session for `cookie`, after a link was spent; the oldest one ends if there are too many.

        `uid`: the user whose program opened the link; None if the system does not tell.
        """
        self._drop(now)
        _make_room(self._sessions, MOST_SESSIONS)
        session = Session(key_digest(cookie), now, uid)
        self._sessions[session.digest] = session
        return session

    def find(self, cookies: Sequence[str], now: float) -> Session | None:
        """Return the session of one of these values of our cookie."""
        self._drop(now)
        digest = _find(self._sessions, cookies)
        return self._sessions[digest] if digest is not None else None

    def end(self, session: Session) -> None:
        """End a session before its time. Idempotent."""
        self._sessions.pop(session.digest, None)

    def is_open(self, session: Session, now: float) -> bool:
        """Return True while the session lasts."""
        self._drop(now)
        return session.digest in self._sessions

    def _drop(self, now: float) -> None:
        for digest in [digest for digest, made in self._links.items() if now >= made + LINK_SECONDS]:
            del self._links[digest]
        for digest in [digest for digest, session in self._sessions.items() if session.is_over(now)]:
            del self._sessions[digest]


def _find(known: dict[bytes, float] | dict[bytes, Session], secrets: Sequence[str]) -> bytes | None:
    """Return the known digest of one of these secrets."""
    found: bytes | None = None
    for digest in map(key_digest, secrets):
        for candidate in known:
            # no early exit: the time does not tell which one was close
            found = candidate if hmac.compare_digest(digest, candidate) else found
    return found


def _name(digest: bytes) -> str:
    return digest.hex()[:_NAME_CHARS]


def _make_room(kept: dict[bytes, float] | dict[bytes, Session] | dict[bytes, None], most: int) -> None:
    while len(kept) >= most:
        del kept[next(iter(kept))]


def cookie_name(port: int) -> str:
    """Return the name of our cookie: nodes on other ports of the same host have another one."""
    return f"meshd-{port}"


def is_secret(text: str) -> bool:
    """Return True if `text` has the form of our secrets."""
    return _SECRET.fullmatch(text) is not None


def cookie_values(headers: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the values of the cookie `name` in these Cookie headers that have the form of a secret.

    At most 8; the rest, and whatever is no cookie (RFC 6265, 4.2.1), is skipped.
    """
    if sum(map(len, headers)) > _MOST_HEADER_CHARS:
        return ()
    found: list[str] = []
    for key, value in _pairs(headers):
        if key == name and is_secret(value) and value not in found:
            found.append(value)
            if len(found) == _MOST_VALUES:
                break
    return tuple(found)


def _pairs(headers: Sequence[str]) -> Iterator[tuple[str, str]]:
    for header in headers:
        for pair in header.split(";"):
            key, _, value = pair.partition("=")
            yield key.strip(" \t"), value.strip(" \t")


def set_cookie(name: str, secret: str) -> str:
    """Return the header Set-Cookie for a new session (RFC 6265, 4.1; RFC 6265bis, 4.1.2.7)."""
    return f"{name}={secret}; Path=/mesh; Max-Age={SESSION_SECONDS:.0f}; HttpOnly; SameSite=Strict"


def drop_cookie(name: str) -> str:
    """Return the header Set-Cookie that makes a browser drop its session (RFC 6265, 3.1)."""
    return f"{name}=; Path=/mesh; Max-Age=0; HttpOnly; SameSite=Strict"
