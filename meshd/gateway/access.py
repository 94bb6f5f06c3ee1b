"""Let in who may call the API: its port, the guard against foreign web pages, and the API keys.

The port is bound first. None of this needs aiohttp, so connections can wait while that is imported.

A page of any site may send requests to loopback. DNS rebinding makes them look as if they were of the
same origin, which the Host header gives away; other cross-origin requests carry Origin; and those
that need no permission of ours ("simple requests", WHATWG Fetch 4.8) cannot have JSON as their type. Images,
scripts and links carry no Origin: where the browser trusts the connection (HTTPS, loopback) it says by
Sec-Fetch-Site whose page made the request (W3C Fetch Metadata). Command-line programs send none of these.

Desktop programs and browser extensions are built on browsers and send an Origin, with a scheme that no web
site can have. On loopback they are let in, and so are pages that this machine serves itself.

Keys come from a private file and are compared in constant time.
"""

import asyncio
import errno
import hmac
import ipaddress
import os
import re
import socket
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from multidict import CIMultiDictProxy

from meshd.base.errors import UserError
from meshd.base.files import ROOT, open_regular, others_may_use
from meshd.base.hosts import is_loopback
from meshd.base.socket_owners import port_holder
from meshd.base.sockets import listen_at
from meshd.gateway.failure import Failure, HttpRefusal
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits
from meshd.identity.proof import key_digest

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,252}[a-z0-9_])?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]{0,31})://([^/@\s]{1,260})")
_AUTHORITY = re.compile(r"(?:\[([^\]]*)\]|([^:\[]*))(?::([0-9]{0,5}))?")
_WEB_PORTS = {"http": 80, "https": 443}  # browsers omit these in Origin

# Who may call an API on loopback: Ollama's list (envconfig.AllowedOrigins), with `tauri.localhost`, and with
# browser extensions, which the user has installed as well.
_LOCAL_HOSTS = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
_LOCAL_SCHEMES = (
    *("app", "file", "tauri", "vscode-webview", "vscode-file"),
    *("chrome-extension", "moz-extension", "safari-web-extension"),
)
_LOCAL_ORIGINS = (
    *(f"{scheme}://{host}:*" for scheme in _WEB_PORTS for host in _LOCAL_HOSTS),
    *(f"{scheme}://*" for scheme in _LOCAL_SCHEMES),
)

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
    found = _AUTHORITY.fullmatch(text.strip().lower())
    if found is None or (found[1] is not None and not isinstance(_address(found[1]), ipaddress.IPv6Address)):
        return None
    host = normal_host(found[1] or found[2] or "")
    return HttpAuthority(host, int(found[3]) if found[3] else None) if host else None


def normal_host(host: str) -> str:
    """Return the normal form of a name or an address; empty when it is neither."""
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


def origin_pattern(text: str) -> re.Pattern[str]:
    """Return what the `normal_origin` of an origin matches that one entry of `allowed_origins` names.

    The entry is a whole origin, or a pattern such as `https://*.example.com:*` (each name below that one, on
    any port) or `app://*`. Raises UserError for anything that no Origin header could match, and for every web
    site at once.
    """
    found = _ORIGIN.fullmatch(text.strip().lower().removesuffix("/"))
    if found is None:
        raise _no_origin(text)
    scheme, rest = found.groups()
    if scheme not in _WEB_PORTS:
        if "*" in rest.removesuffix("*"):
            raise _no_origin(text)
        return re.compile(re.escape(f"{scheme}://{rest}").replace(r"\*", ".*"), re.DOTALL)
    any_port, below = rest.endswith(":*"), rest.startswith("*.")
    name = rest.removesuffix(":*").removeprefix("*.")
    authority = parse_authority(name)
    if authority is None or (any_port and authority.port is not None):
        raise _no_origin(text)
    host, _, port = normal_origin(f"{scheme}://{name}").rpartition(":")
    before = re.escape(host).replace("://", r"://[^:]+\.") if below else re.escape(host)
    return re.compile(f"{before}:{r'[0-9]+' if any_port else port}")


def normal_origin(origin: str) -> str:
    """Return an origin as patterns know it: in lower case, that of a web page with its port.

    Empty if a web page cannot have it.
    """
    scheme, _, rest = (origin := origin.strip().lower()).partition("://")
    if (port := _WEB_PORTS.get(scheme)) is None:
        return origin.removesuffix("/") if rest.removesuffix("/") else origin
    authority = parse_authority(rest)
    if authority is None:
        return ""
    return f"{scheme}://{authority.host}:{port if authority.port is None else authority.port}"


def _no_origin(text: str) -> UserError:
    pattern = "a pattern: `https://*.example.com`, `http://box.lan:*`, `app://*`"
    hint = f"give scheme, host and port as a browser sends them, such as `http://box.lan:3000`, or {pattern}"
    return UserError(f"`{text}` is not an origin", hint=hint)


class BrowserGuard:
    """The guard that checks Host and Origin headers.

    `bound_host`: the address where the gateway listens. On loopback, local programs may call. Elsewhere any
    IP address is accepted as Host, because DNS rebinding needs a name. `names`: further host names to accept;
    `origins`: patterns of origins to accept. Raises UserError for a bad name or pattern.
    """

    def __init__(self, *, bound_host: str, names: Sequence[str], origins: Sequence[str]) -> None:
        self._names = {normal_host(bound_host), *_checked_names(names)} - {""}
        self._any_address = not is_loopback(normal_host(bound_host))
        local = () if self._any_address else _LOCAL_ORIGINS
        self._origins = tuple(map(origin_pattern, (*origins, *local)))

    def check(self, headers: CIMultiDictProxy[str], *, opens_page: bool) -> None:
        """Refuse a request that a foreign page may have made. Raises HttpRefusal.

        `opens_page`: the path belongs to the chat page, which any site may link to.
        """
        hosts = headers.getall("Host", [])
        if len(hosts) != 1:
            raise HttpRefusal(Failure(400, "exactly one Host header is needed", code="bad_host"))
        if not self.host_allowed(hosts[0]):
            message = f"host `{hosts[0][:200]}` is not allowed: allow it with `allowed_hosts` in `[serve]`"
            raise _forbidden(message, "host_not_allowed")
        origins = headers.getall("Origin", [])
        if len(origins) > 1 or not self.origin_allowed(next(iter(origins), None), hosts[0]):
            message = f"origin `{origins[0][:200]}` is not allowed: add it to `allowed_origins`"
            raise _forbidden(message, "origin_not_allowed")
        if not self.site_allowed(headers) and not (opens_page and is_navigation(headers)):
            message = "pages of other sites may not call the API: add its origin to `allowed_origins`"
            raise _forbidden(message, "site_not_allowed")

    def host_allowed(self, host: str | None) -> bool:
        """Return True if a request with this Host header was meant for us."""
        authority = parse_authority(host) if host else None
        if authority is None:
            return False
        if is_loopback(authority.host) or authority.host in self._names:
            return True
        return self._any_address and _address(authority.host) is not None

    def origin_allowed(self, origin: str | None, host: str) -> bool:
        """Return True if no browser sent the request, or the page is ours or of an allowed origin."""
        if origin is None:
            return True
        return self.is_foreign_but_allowed(origin) or same_origin(origin, host)

    def site_allowed(self, headers: Mapping[str, str]) -> bool:
        """Return True unless a browser names the page of another site, whose origin is not allowed."""
        site = headers.get("Sec-Fetch-Site")
        if site is None or site.strip().lower() in _OWN_SITES:
            return True
        return self.is_foreign_but_allowed(headers.get("Origin"))

    def is_foreign_but_allowed(self, origin: str | None) -> bool:
        """Return True if `origin` is allowed: answers then carry the CORS headers."""
        normal = normal_origin(origin or "")
        return any(pattern.fullmatch(normal) for pattern in self._origins)


def same_origin(origin: str, host: str) -> bool:
    """Return True if the page of this origin came from where the Host header points."""
    scheme, separator, rest = origin.strip().lower().partition("://")
    theirs = parse_authority(rest) if separator and scheme in _WEB_PORTS else None
    return theirs is not None and theirs == parse_authority(host)


def _checked_names(names: Sequence[str]) -> set[str]:
    for name in names:
        if not normal_host(name):
            hint = "give a name or an address without scheme and port, such as `box.lan`"
            raise UserError(f"`{name}` is not a host name for the API", hint=hint)
    return set(map(normal_host, names))


def _forbidden(message: str, code: str) -> HttpRefusal:
    return HttpRefusal(Failure(403, message, type="permission_error", code=code))


def is_navigation(headers: Mapping[str, str]) -> bool:
    """Return True if a browser opens the answer as a page, from a link or the address bar."""
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"


def may_be_json(headers: Mapping[str, str]) -> bool:
    """Accept `application/json`, with or without parameters, and any type from a program.

    curl calls every body a form. Only browsers have to name the type: they always send Origin with a POST
    (WHATWG Fetch 3.2), and a page cannot name JSON without permission.
    """
    if "Origin" not in headers and "Sec-Fetch-Site" not in headers:
        return True
    return _kind(headers.get("Content-Type")) == JSON_TYPE


def is_form(content_type: str | None) -> bool:
    """Recognise `multipart/form-data`. A page may send it without a preflight; only Origin identifies it."""
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
    """Return the headers that let a page of an allowed origin read an answer."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "Retry-After",
        "Vary": "Origin",
    }


MIN_KEY_CHARS = 8  # shorter ones are guessed over a LAN
KEY_NAME_CHARS = 63
LARGEST_LIMIT = 10**12
_KEY_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{KEY_NAME_CHARS - 1}}}")


LIMIT_NAMES = tuple(limit.name for limit in fields(KeyLimits))
OPTION_NAMES = ("name", *LIMIT_NAMES)


def parse_keys(text: str, *, label: str) -> tuple[ApiKey, ...]:
    """Read one key from each line; empty lines and lines that begin with `#` are skipped.

    A key may be followed by `name=NAME` and by limits, such as `tokens_per_day=100000`. Without a name the
    second key is `key-2`. `label` names the file in errors. Raises UserError, which never repeats what a line
    holds.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1)]
    given = [(number, words) for number, words in lines if words and not words[0].startswith("#")]
    keys = tuple(
        _parsed_line(words, where=f"line {number} of the key file `{label}`", nth=nth)
        for nth, (number, words) in enumerate(given, start=1)
    )
    names = Counter(key.name for key in keys)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise UserError(f"two keys of `{label}` are named `{twice[0]}`", hint="give each key its own name")
    return keys


def _parsed_line(words: list[str], *, where: str, nth: int) -> ApiKey:
    secret, *options = words
    if len(secret) < MIN_KEY_CHARS or not all("!" <= char <= "~" for char in secret):
        hint = f"a key has {MIN_KEY_CHARS} or more printable ASCII characters and no spaces"
        raise UserError(f"{where} is not a key", hint=hint)
    given: dict[str, str] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in OPTION_NAMES or name in given:
            limits = f"at most one each of {', '.join(LIMIT_NAMES)}, as in `requests_per_minute=60`"
            what = f"{where} has something else behind the key than its name and limits"
            raise UserError(what, hint=f"write `KEY name=NAME` and {limits}")
        given[name] = value
    name = given.pop("name", f"key-{nth}")
    if not _KEY_NAME.fullmatch(name):
        hint = f"use 1 to {KEY_NAME_CHARS} letters, digits, dots, hyphens or underscores"
        raise UserError(f"`name=` on {where} is not a name", hint=hint)
    for limit, value in given.items():
        if not (value.isascii() and value.isdigit() and len(value) < 14 and 0 < int(value) <= LARGEST_LIMIT):
            hint = f"give a whole number of at least 1: `{limit}=100`"
            raise UserError(f"`{limit}=` on {where} is not a number", hint=hint)
    return ApiKey(secret, name, KeyLimits(**{limit: int(value) for limit, value in given.items()}))


MAX_KEY_FILE_BYTES = 1 << 20


def load_keys(path: Path, root: Path = ROOT) -> tuple[ApiKey, ...]:
    """Read API keys, with names and limits: see `parse_keys`.

    The file must be a plain file that only its owner can read (0600; any mode for a secret of a container)
    and that belongs to this user or root. Raises UserError, which never repeats a key.
    """
    keys = parse_keys(_read_private(path, root), label=str(path))
    if not keys:
        hint = f"put one key on each line, for example: `openssl rand -hex 24 > {path}`"
        raise UserError(f"the key file `{path}` contains no key", hint=hint)
    return keys


def _read_private(path: Path, root: Path) -> str:
    file, text = f"the key file `{path}`", "name a text file with one key per line"
    try:
        descriptor = open_regular(path)
    except OSError as error:
        hint = "give the path of a text file with one key per line"
        raise UserError(f"cannot read {file}: {_reason(error)}", hint=hint) from error
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        if others_may_use(path, found.st_mode, root):
            mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
            raise UserError(f"{file} is accessible to others ({mode})", hint=f"run `chmod 600 {path}`")
        if found.st_uid not in (os.geteuid(), 0):
            whose = f"belongs to another user (uid {found.st_uid})"
            raise UserError(f"{file} {whose}", hint="make your own copy, with mode 0600")
        data = opened.read(MAX_KEY_FILE_BYTES + 1)
    if len(data) > MAX_KEY_FILE_BYTES:
        raise UserError(f"{file} is larger than 1 MiB", hint=text)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not text", hint=text) from error


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


class KeyRing:
    """The keys that open the API; without any, every client may use it."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        # digests have one length: the comparison does not tell how long a key is
        self.digests = tuple(key_digest(key.secret) for key in keys)

    def __len__(self) -> int:
        return len(self.digests)

    def share_of(self, most: int) -> int:
        """Return how many of `most` places one key may take: all if it is the only key, else 3/4."""
        return most if len(self.digests) < 2 else max(1, most * 3 // 4)

    def match(self, headers: Mapping[str, str]) -> bytes | None:
        """Return the digest of the known key in `Authorization: Bearer KEY` or `x-api-key: KEY`.

        None if there is none; empty if no key is required.
        """
        if not self.digests:
            return b""
        found: bytes | None = None
        for digest in given_keys(headers):
            for known in self.digests:
                # no early exit: the time does not tell which key was close
                found = known if hmac.compare_digest(digest, known) else found
        return found


def given_keys(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the digests of the keys that these headers carry."""
    given = []
    scheme, _, value = headers.get("Authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        given.append(value.strip())
    if key := headers.get("X-Api-Key", "").strip():
        given.append(key)
    return tuple(map(key_digest, given))


@dataclass(frozen=True, slots=True)
class ApiPort:
    """The API's bound port and its guards. Connections wait until the gateway serves.

    `port`: the number that was bound, also if port 0 was requested.
    """

    config: GatewayConfig
    guard: BrowserGuard
    keys: KeyRing
    sockets: list[socket.socket]
    port: int

    @classmethod
    async def claim(cls, config: GatewayConfig) -> Self:
        """Bind the port, and make its guards.

        Raises UserError if the port cannot be bound, if the API would be open to a network without a key, or
        for an invalid allowed host or origin.
        """
        addresses = await resolve(config.host)
        loopback_only = all_loopback(addresses)
        keys = KeyRing(config.api_keys)
        if not loopback_only and not keys:
            hint = "give API keys with `--api-key-file FILE`, or listen on 127.0.0.1"
            raise UserError(f"the API on `{config.host}` would be open to everyone in the network", hint=hint)
        guard = BrowserGuard(
            bound_host=config.host,
            names=(*config.allowed_hosts, *(() if loopback_only else _own_names())),
            origins=config.allowed_origins,
        )
        sockets = bind(addresses, config.port)
        return cls(config, guard, keys, sockets, sockets[0].getsockname()[1])

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        for listener in self.sockets:
            listener.close()


def _own_names() -> tuple[str, ...]:
    """Return the names of this machine in the LAN: its host name, with and without `.local`."""
    name = socket.gethostname()
    return tuple(candidate for candidate in (name, f"{name}.local") if normal_host(candidate))


async def resolve(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """Find the addresses to listen on for `host`, each once. Raises UserError."""
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        hint = "use 127.0.0.1 for this machine only, 0.0.0.0 for all networks"
        raise UserError(f"cannot find an address for `{host}` to listen on", hint=hint) from error
    families = (socket.AF_INET, socket.AF_INET6)
    return list(dict.fromkeys((item[0], str(item[4][0])) for item in found if item[0] in families))


def all_loopback(addresses: list[tuple[socket.AddressFamily, str]]) -> bool:
    """Return True if all addresses are loopback."""
    return all(is_loopback(address) for _, address in addresses)


def bind(addresses: list[tuple[socket.AddressFamily, str]], port: int) -> list[socket.socket]:
    """Bind listening sockets on one port for all addresses; port 0 picks a free one.

    Addresses of a family that this machine lacks are skipped, unless none remains. Raises UserError.
    """
    bound: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for family, address in addresses:
            try:
                listener = listen_at(family, address, port)
                listener.setblocking(False)
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise _bind_error(error, address, port) from error
                lacking = error
                continue
            bound.append(listener)
            port = listener.getsockname()[1]
        if not bound:
            raise _bind_error(lacking or OSError(), addresses[0][1] if addresses else "", port)
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


def _bind_error(error: OSError, address: str, port: int) -> UserError:
    if error.errno == errno.EADDRINUSE:
        who = port_holder(address, port)
        what = f"port `{port}` on `{address}` is taken" + (f" by {who}" if who else "")
        hint = "choose another with `--port N`, or `--port 0` for any free one"
    elif error.errno == errno.EACCES:
        what = f"port `{port}` on `{address}` needs privileges that this user lacks"
        hint = "choose a port above 1023"
    elif error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        what = f"this machine has no address `{address}`"
        hint = "use 127.0.0.1, 0.0.0.0 or one of its addresses"
    else:
        what = f"cannot listen on `{address}` port `{port}`: {(error.strerror or 'unknown reason').lower()}"
        hint = "check `--host` and `--port`"
    return UserError(what, hint=hint)
