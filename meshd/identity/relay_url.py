"""The URL of a relay: where it is, and the key that it must prove. Pure.

`relay://KEY@HOST:PORT`, the key as a node id's 52 characters. The URL is all one has to trust: a
relay at that address with another key is refused.
"""

from meshd.base.errors import UserError
from meshd.base.hosts import why_no_host
from meshd.identity.invite import MAX_RELAY_PLACE_BYTES, RelayHint
from meshd.identity.keys import PeerId

SCHEME = "relay://"
_MAX_URL_CHARS = 300


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
