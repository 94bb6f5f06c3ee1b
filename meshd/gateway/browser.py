"""Keeps foreign web pages out of a local API: checks Host, Origin, Sec-Fetch-Site and Content-Type.

A page of any site may send requests to loopback. DNS rebinding makes them look as if they were of the
same origin, which the Host header gives away; other cross-origin requests carry Origin; and those
that need no permission of ours ("simple requests", WHATWG Fetch 4.8) cannot have JSON as their type. Images,
scripts and links carry no Origin: where the browser trusts the connection (HTTPS, loopback) it says by
Sec-Fetch-Site whose page made the request (W3C Fetch Metadata). Programs send none of these.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.base.errors import UserError
from meshd.base.hosts import is_loopback

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,252}[a-z0-9_])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]{0,31}://[^/@\s]{1,260}")

# Names of headers that a preflight may ask for; the OpenAI client sends about ten `x-stainless-*`.
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]{1,64}(\s*,\s*[A-Za-z0-9-]{1,64}){0,63}")

JSON_TYPE = "application/json"
FORM_TYPE = "multipart/form-data"
_OWN_SITES = ("same-origin", "none")  # a page of ours; the user, by an address or a bookmark


@dataclass(frozen=True, slots=True)
class HttpAuthority:
    """Host and port of a Host header or an origin; the host in lower case, an address in its short form."""

    host: str
    port: int | None


def parse_authority(text: str) -> HttpAuthority | None:
    """Read `name`, `name:port`, `address:port` or `[v6]:port`, else None (RFC 9110, 7.2)."""
    host, port_text = text.strip().lower(), ""
    if host.startswith("["):
        host, bracket, after = host[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            return None
        port_text = after[1:]
        address = _address(host)
        if not isinstance(address, ipaddress.IPv6Address):
            return None
    elif ":" in host:
        host, _, port_text = host.partition(":")
    if port_text and not (port_text.isascii() and port_text.isdigit() and len(port_text) <= 5):
        return None
    host = normal_host(host)
    if not host:
        return None
    return HttpAuthority(host, int(port_text) if port_text else None)


def normal_host(host: str) -> str:
    """The one form of a name or an address; empty when it is neither."""
    host = host.strip().lower().removesuffix(".")
    address = _address(host.removeprefix("[").removesuffix("]"))
    if address is not None:
        return str(address)
    return host if _NAME.fullmatch(host) else ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class BrowserGuard:
    """Which Host and Origin headers may pass.

    `bound_host` is where the gateway listens. Beyond loopback every plain address passes as Host: DNS
    rebinding needs a name. `names` are those by which users call this machine.
    """

    def __init__(self, *, bound_host: str, names: Sequence[str], origins: Sequence[str]) -> None:
        self._names = {normal_host(bound_host), *_checked_names(names)} - {""}
        self._origins = frozenset(_checked_origin(origin) for origin in origins)
        self._any_address = not is_loopback(normal_host(bound_host))

    def host_allowed(self, host: str | None) -> bool:
        """True when a request with this Host header was meant for us."""
        authority = parse_authority(host) if host else None
        if authority is None:
            return False
        if is_loopback(authority.host) or authority.host in self._names:
            return True
        return self._any_address and _address(authority.host) is not None

    def origin_allowed(self, origin: str | None, host: str) -> bool:
        """True when no browser sent it, a page of ours did, or one of an allowed origin."""
        if origin is None:
            return True
        return self.is_foreign_but_allowed(origin) or _same(origin, host)

    def site_allowed(self, headers: Mapping[str, str]) -> bool:
        """True when no browser says that another site's page sent it, or that is one of an allowed origin."""
        site = headers.get("Sec-Fetch-Site")
        if site is None or site.strip().lower() in _OWN_SITES:
            return True
        return self.is_foreign_but_allowed(headers.get("Origin"))

    def is_foreign_but_allowed(self, origin: str | None) -> bool:
        """True for an origin of the configuration: its pages are told that they may read the answers."""
        return origin is not None and origin.strip().lower() in self._origins


def _same(origin: str, host: str) -> bool:
    scheme, separator, rest = origin.strip().lower().partition("://")
    if not separator or scheme not in ("http", "https"):
        return False
    theirs, ours = parse_authority(rest), parse_authority(host)
    return theirs is not None and theirs == ours


def _checked_names(names: Sequence[str]) -> set[str]:
    checked = set()
    for name in names:
        normal = normal_host(name)
        if not normal:
            raise UserError(
                f"`{name}` is not a host name for the API",
                hint="give a name or an address without scheme and port, such as `box.lan`",
            )
        checked.add(normal)
    return checked


def _checked_origin(origin: str) -> str:
    normal = origin.strip().lower().removesuffix("/")
    if not _ORIGIN.fullmatch(normal):
        raise UserError(
            f"`{origin}` is not an origin",
            hint="give scheme, host and port as a browser sends them, such as `http://localhost:3000`",
        )
    return normal


def opens_page(headers: Mapping[str, str]) -> bool:
    """True when a browser shows the answer as a page: the user followed a link or typed the address."""
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"


def is_json(content_type: str | None) -> bool:
    """True for `application/json`, with or without parameters."""
    return _kind(content_type) == JSON_TYPE


def is_form(content_type: str | None) -> bool:
    """True for `multipart/form-data`. A page can send that unasked: only Origin tells whose page it is."""
    return _kind(content_type) == FORM_TYPE


def _kind(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def preflight_headers(origin: str, *, asked: str | None, private_network: bool) -> dict[str, str]:
    """Answer to a preflight of an allowed origin, with the headers it asked for (WHATWG Fetch, 3.3.3)."""
    headers = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
    if asked is not None and _HEADER_NAMES.fullmatch(asked.strip()):
        headers["Access-Control-Allow-Headers"] = asked.strip()
    if private_network:
        headers["Access-Control-Allow-Private-Network"] = "true"
    return headers


def foreign_headers(origin: str) -> dict[str, str]:
    """Headers that let a page of an allowed origin read an answer."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "Retry-After",
        "Vary": "Origin",
    }
