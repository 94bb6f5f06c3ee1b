"""TCP to a relay, straight or through an HTTP proxy (CONNECT, RFC 9110 9.3.6) that the environment names.

`https_proxy` or `HTTPS_PROXY`, `no_proxy` or `NO_PROXY`: as curl reads them.
"""

import asyncio
import base64
import contextlib
import ipaddress
import socket
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from meshd.base.errors import Broken, LocalProtocolError, UserError
from meshd.base.tasks import first_success
from meshd.identity.invite import split_place
from meshd.link.net.happy_eyeballs import STAGGER_SECONDS
from meshd.link.tcp import sockets
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, trusted

MAX_PROXY_REPLY_BYTES = 8 << 10  # of a proxy, to CONNECT
MAX_PROXY_ADDRESSES = 8  # of one name

Allow = Callable[[Sequence[Candidate]], Sequence[Dialable]]


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """An HTTP proxy; `authorization` is the value of Proxy-Authorization, or empty."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)


def proxy_for(host: str, port: int, environ: Mapping[str, str]) -> HttpProxy | None:
    """Return the proxy to use for `host`, if any. Raises UserError for one that cannot be used. Pure."""
    text = environ.get("https_proxy") or environ.get("HTTPS_PROXY") or ""
    without = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if not text or _is_loopback(host) or _excepted(host, port, without):
        return None
    word = text if "://" in text else f"http://{text}"
    try:
        parts = urllib.parse.urlsplit(word)
        place = (parts.hostname, parts.port or 80)
        user = urllib.parse.unquote(parts.username or "")
        password = urllib.parse.unquote(parts.password or "")
    except ValueError:
        place, user, password = (None, 0), "", ""
        parts = urllib.parse.SplitResult("", "", "", "", "")
    if parts.scheme != "http" or not place[0]:
        raise UserError(
            "the proxy in https_proxy cannot be used: only http://HOST:PORT is supported",
            hint="set https_proxy to the address of an HTTP proxy, or put the relay's host into no_proxy",
        )
    secret = base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
    return HttpProxy(place[0], place[1], f"Basic {secret}" if secret else "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _excepted(host: str, port: int, without: str) -> bool:
    host = host.lower().rstrip(".")
    for entry in (word.strip().lower() for word in without.replace(" ", ",").split(",")):
        name, _, only = entry.partition(":") if entry.count(":") == 1 else (entry, "", "")
        name = name.strip("[]").removeprefix("*").removeprefix(".").rstrip(".")
        if entry == "*" or (name and only in ("", str(port)) and (host == name or host.endswith(f".{name}"))):
            return True
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
    return False


async def connect(place: str, environ: Mapping[str, str], allow: Allow) -> socket.socket:
    """Return a connected, non-blocking socket that leads to `place`.

    `allow` decides which addresses of its name may be dialled. Raises OSError, Broken, UserError. A proxy
    looks up the name of a relay that the user named. Of any other relay it gets an address that `allow` has
    let pass: what the proxy reaches may be out of reach for the peer that names it.
    """
    host, port = split_place(place)
    proxy = proxy_for(host, port, environ)
    if proxy is None:
        return await _reach(host, port, allow)
    if allow is not trusted:
        place = (await _allowed(host, port, allow))[0].place
    sock = await _reach(proxy.host, proxy.port, trusted)
    try:
        await _ask(sock, place, proxy)
    except BaseException:
        sock.close()
        raise
    return sock


async def _reach(host: str, port: int, allow: Allow) -> socket.socket:
    """Connect to every address of the name, staggered (RFC 8305); the first that answers wins."""
    starts = [
        (at * STAGGER_SECONDS, partial(sockets.connect, place))
        for at, place in enumerate(await _allowed(host, port, allow))
    ]
    try:
        return await first_success(starts, discard=_discard)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _allowed(host: str, port: int, allow: Allow) -> Sequence[Dialable]:
    """Return the addresses of a name that may be dialled, at least one. Raises OSError."""
    try:
        found = [str(ipaddress.ip_address(host))]
    except ValueError:
        loop = asyncio.get_running_loop()
        answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = list(dict.fromkeys(str(address[0]) for *_, address in answers))
    places = _places(found, port)
    allowed = allow(places)[:MAX_PROXY_ADDRESSES]
    if not allowed:
        why = "none of its addresses may be dialled" if places else "no address is known"
        raise OSError(f"{host}: {why}")
    return allowed


def _places(addresses: Sequence[str], port: int) -> list[Candidate]:
    """Return those that one machine can have."""
    places = []
    for address in addresses:
        with contextlib.suppress(LocalProtocolError):
            places.append(Candidate(address, port))
    return places


async def _discard(sock: socket.socket) -> None:
    sock.close()


async def _ask(sock: socket.socket, place: str, proxy: HttpProxy) -> None:
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    lines += [f"Proxy-Authorization: {proxy.authorization}"] if proxy.authorization else []
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, "\r\n".join([*lines, "", ""]).encode())
    reply = b""
    while b"\r\n\r\n" not in reply:
        chunk = await loop.sock_recv(sock, MAX_PROXY_REPLY_BYTES)
        reply += chunk
        if not chunk or len(reply) > MAX_PROXY_REPLY_BYTES:
            raise Broken(f"the proxy `{proxy.host}:{proxy.port}` sent an unreadable answer")
    read_reply(reply, f"{proxy.host}:{proxy.port}")


def read_reply(reply: bytes, proxy: str) -> None:
    """Check a proxy's reply to CONNECT. Raises Broken unless the way is open. Pure."""
    head, _, rest = reply.partition(b"\r\n\r\n")
    line = head.split(b"\r\n", 1)[0].decode("latin-1")
    words = line.split(" ", 2)
    if (
        len(words) < 2
        or not words[0].startswith("HTTP/1.")
        or not (words[1].isascii() and words[1].isdigit())
    ):
        raise Broken(f"`{proxy}` is not an HTTP proxy")
    if not 200 <= int(words[1]) < 300:
        shown = "".join(char for char in line[:80] if char.isprintable())
        hint = "put the user name and password into https_proxy" if words[1] == "407" else ""
        raise Broken(f"the proxy `{proxy}` refused: {shown}", hint=hint)
    if rest:
        raise Broken(f"the proxy `{proxy}` sent unexpected data")
