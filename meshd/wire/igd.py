"""UPnP Internet Gateway Device, the parts that map a port: SSDP search, the description, SOAP calls.

Sources: UPnP Device Architecture 2.0 (SSDP: 1.3; description: 2; control: 3), WANIPConnection:1 and :2. XML
comes from any host that answers in the local network, so it is read with limits: no document type, no
custom entities, bounded depth, number of elements and length of texts.

Reading one HTTP/1 reply (RFC 9112), as far as routers' UPnP services need it: status, headers, body.

Small limits, no continuation lines, no trailers, no compression (none is asked for). Routers write careless
HTTP, so a bare line feed is taken for a line's end.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Proto

MAX_HEAD_BYTES = 16 << 10
MAX_BODY_BYTES = 256 << 10  # descriptions of routers have 2 to 20 KiB
SSDP_GROUP = "239.255.255.250"
SSDP_PORT = 1900
MAX_SSDP_BYTES = 2048
MAX_XML_BYTES = 256 << 10
MAX_ELEMENTS = 2000  # descriptions of routers have some hundreds
MAX_XML_DEPTH = 32
MAX_TEXT = 1024  # of one element that is read
MAX_URL = 512
DEVICES = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
)
# That can map ports, the best first: version 2 knows leases well, PPP is the same for dialled lines.
SERVICES = (
    "urn:schemas-upnp-org:service:WANIPConnection:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
# Error codes of AddPortMapping that have a remedy (WANIPConnection:1, 2.4.16; version 2, 2.5.16)
CONFLICT = 718
PERMANENT_ONLY = 725
NO_SUCH_ENTRY = 714


@dataclass(frozen=True, slots=True)
class HttpReply:
    """`headers` have lower-case names; of a repeated one the first counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ReplyParser:
    """Takes bytes as they come; `reply` is None until all is there."""

    def __init__(self, *, most: int = MAX_BODY_BYTES) -> None:
        self._most = most
        self._buffer = bytearray()
        self._status = 0
        self._headers: dict[str, str] | None = None
        self._left: int | None = None  # of the body; None: until the connection ends
        self._chunked = False
        self._body = bytearray()
        self.reply: HttpReply | None = None

    def feed(self, data: bytes) -> None:
        """Take bytes in. Raises RemoteProtocolError (code `http`)."""
        if self.reply is not None:
            return
        self._buffer += data
        while self._headers is None:
            end = _head_end(self._buffer)
            if end is None:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise _broken("its head is too long")
                return
            head = bytes(self._buffer[:end])
            del self._buffer[:end]
            self._status, headers = parse_head(head)
            if self._status >= 200:  # 100 Continue and its like come before the reply itself
                self._begin_body(headers)
        self._take_body()

    def eof(self) -> HttpReply:
        """Handle the end of the connection. Raises RemoteProtocolError when the reply is incomplete."""
        if self.reply is None and self._headers is not None and self._left is None and not self._chunked:
            self.reply = HttpReply(self._status, self._headers, bytes(self._body))
        if self.reply is None:
            raise _broken("it ends too early")
        return self.reply

    def _begin_body(self, headers: dict[str, str]) -> None:
        self._headers = headers
        coding = headers.get("transfer-encoding", "").strip().lower()
        if coding:
            if coding != "chunked":
                raise _broken(f"its coding is `{coding[:32]}`")
            self._chunked = True
        elif (length := headers.get("content-length")) is not None:
            if not (length.isascii() and length.isdigit() and len(length) <= 9):
                raise _broken("its length is not a number")
            self._left = int(length)
            if self._left > self._most:
                raise _broken(f"it announces {self._left} bytes")

    def _take_body(self) -> None:
        assert self._headers is not None
        done = self._take_chunks() if self._chunked else self._take_plain()
        if len(self._body) > self._most:
            raise _broken(f"it has more than {self._most} bytes")
        if done:
            self.reply = HttpReply(self._status, self._headers, bytes(self._body))

    def _take_plain(self) -> bool:
        take = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        self._body += self._buffer[:take]
        del self._buffer[:take]
        if self._left is None:
            return False
        self._left -= take
        return self._left == 0

    def _take_chunks(self) -> bool:
        while len(self._body) <= self._most:
            line_end = self._buffer.find(b"\n")
            if line_end < 0:
                if len(self._buffer) > 64:
                    raise _broken("a chunk's length is too long")
                return False
            text = bytes(self._buffer[:line_end]).split(b";")[0].strip()
            if not 1 <= len(text) <= 8 or not all(c in b"0123456789abcdefABCDEF" for c in text):
                raise _broken("a chunk's length is not a number")
            size = int(text, 16)
            if size > self._most:
                raise _broken(f"it announces {size} bytes")
            if size == 0:
                return True
            at = line_end + 1
            mark = bytes(self._buffer[at + size : at + size + 2])
            if mark in (b"", b"\r"):
                return False
            if not mark.startswith((b"\r\n", b"\n")):
                raise _broken("a chunk does not end where announced")
            self._body += self._buffer[at : at + size]
            del self._buffer[: at + size + (1 if mark[0] == 10 else 2)]
        return False


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return status and headers of a reply's head. Raises RemoteProtocolError (code `http`)."""
    if len(head) > MAX_HEAD_BYTES:
        raise _broken("its head is too long")
    first, *lines = head.decode("latin-1").replace("\r\n", "\n").split("\n")
    version, _, rest = first.partition(" ")
    code = rest.strip()[:3]
    if not version.startswith("HTTP/1.") or not (len(code) == 3 and code.isascii() and code.isdigit()):
        raise _broken("its first line is not HTTP")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name.strip():
            headers.setdefault(name.strip().lower(), value.strip())
    return int(code), headers


def _head_end(data: bytearray) -> int | None:
    ends = [at + len(mark) for mark in (b"\r\n\r\n", b"\n\n") if (at := data.find(mark)) >= 0]
    return min(ends, default=None)


def _broken(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"a reply that is not HTTP: {why}", code="http")


def escape(text: str) -> str:
    """Escape the text of an element. (xml.sax.saxutils has it, and two megabytes of imports.)"""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class SoapFault(RemoteProtocolError):
    """The router refused a call: its UPnP error code, and its words."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"the router refuses over UPnP: {text or 'no reason given'} ({number})", code="soap")
        self.number = number


@dataclass(frozen=True, slots=True)
class IgdControl:
    """A service to call: its type and the URL, which is at the address that was asked."""

    service: str
    url: str


def search(device: str, *, group: bool) -> bytes:
    """Return an M-SEARCH for a kind of device (UDA 2.0, 1.3.2): to the group, or to one address alone."""
    wait = "MX: 1\r\n" if group else ""
    head = f'M-SEARCH * HTTP/1.1\r\nHOST: {SSDP_GROUP}:{SSDP_PORT}\r\nMAN: "ssdp:discover"\r\n'
    return f"{head}{wait}ST: {device}\r\n\r\n".encode("ascii")


def read_search_answer(data: bytes, *, sender: str) -> str:
    """Return the URL of the description. Raises RemoteProtocolError (code `ssdp`).

    Only a URL at the sender's own address is accepted: a reply must not choose whom this node calls.
    """
    if len(data) > MAX_SSDP_BYTES:
        raise RemoteProtocolError("an SSDP answer is too long", code="ssdp")
    try:
        status, headers = parse_head(data)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"an SSDP answer: {error.what}", code="ssdp") from None
    if status != 200 or headers.get("st", "") not in DEVICES:
        raise RemoteProtocolError("an SSDP answer is not from a gateway", code="ssdp")
    return at_address(headers.get("location", ""), sender)


def at_address(url: str, host: str) -> str:
    """Return `url` if it is plain HTTP at that IP address. Raises RemoteProtocolError (code `ssdp`)."""
    split_url(url, host)
    return url


def split_url(url: str, host: str) -> tuple[int, str]:
    """Return port and path (with query) of a URL that must be at the address `host`. Raises
    RemoteProtocolError.
    """
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise RemoteProtocolError("an unusable URL", code="ssdp")
    parts, port = _split(url)
    if parts.scheme != "http" or parts.username is not None or not port:
        raise RemoteProtocolError(f"`{url}` is not plain HTTP", code="ssdp")
    try:
        same = ipaddress.ip_address(parts.hostname or "") == ipaddress.ip_address(host)
    except ValueError:
        same = False
    if not same:
        raise RemoteProtocolError(f"`{url}` is not on `{host}`, which sent it", code="ssdp")
    path = parts.path or "/"
    return port, f"{path}?{parts.query}" if parts.query else path


def _split(url: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url)
        return parts, 80 if parts.port is None else parts.port
    except ValueError:
        raise RemoteProtocolError("an unreadable URL", code="ssdp") from None


def read_description(data: bytes, *, url: str, host: str) -> IgdControl:
    """Return the best service that maps ports. Raises RemoteProtocolError (code `xml` or `ssdp`)."""
    found: dict[str, str] = {}
    base = url
    service: dict[str, str] = {}
    for path, text in _elements(data):
        name = path[-1]
        if name == "URLBase" and len(path) == 2 and text:
            base = text
        elif name in ("serviceType", "controlURL") and path[-2:-1] == ("service",):
            service[name] = text
        elif name == "service":
            if service.get("serviceType") in SERVICES and service.get("controlURL"):
                found.setdefault(service["serviceType"], service["controlURL"])
            service = {}
    for kind in SERVICES:
        if kind in found:
            try:
                joined = urljoin(base, found[kind])
            except ValueError:
                raise RemoteProtocolError("an unreadable URL", code="ssdp") from None
            return IgdControl(kind, at_address(joined, host))
    raise RemoteProtocolError("the gateway's description has no port mapping service", code="xml")


def soap(control: IgdControl, action: str, arguments: Mapping[str, str]) -> tuple[Mapping[str, str], bytes]:
    """Return headers and body of a call (UDA 2.0, 3.2.1)."""
    inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in arguments.items())
    body = (
        '<?xml version="1.0"?>\r\n'
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" '
        's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>'
        f'<u:{action} xmlns:u="{control.service}">{inner}</u:{action}></s:Body></s:Envelope>\r\n'
    ).encode()
    headers = {
        "Content-Type": 'text/xml; charset="utf-8"',
        "SOAPAction": f'"{control.service}#{action}"',
    }
    return headers, body


def read_soap(status: int, body: bytes, action: str) -> Mapping[str, str]:
    """Return the results of a call. Raises SoapFault, RemoteProtocolError (code `xml` or `soap`)."""
    if status == 500:
        raise _fault(body)
    if status != 200:
        raise RemoteProtocolError(f"the router answers a UPnP call with status {status}", code="soap")
    values: dict[str, str] = {}
    seen = False
    for path, text in _elements(body):
        if path[-1] == f"{action}Response":
            seen = True
        elif path[-2:-1] == (f"{action}Response",):
            values[path[-1]] = text
    if not seen:
        raise RemoteProtocolError(f"the router's reply does not answer `{action}`", code="soap")
    return values


def _fault(body: bytes) -> RemoteProtocolError:
    number, text = 501, ""
    for path, value in _elements(body):
        if path[-1] == "errorCode" and value.isascii() and value.isdigit() and len(value) <= 5:
            number = int(value)
        elif path[-1] == "errorDescription" and value.isprintable():
            text = value[:128]
    return SoapFault(number, text)


def add_arguments(
    *, proto: Proto, external_port: int, internal_host: str, internal_port: int, lifetime: int, name: str
) -> Mapping[str, str]:
    """Return the arguments of `AddPortMapping`; `lifetime` in seconds, 0 for ever."""
    return {
        **entry_arguments(proto=proto, external_port=external_port),
        "NewInternalPort": str(internal_port),
        "NewInternalClient": internal_host,
        "NewEnabled": "1",
        "NewPortMappingDescription": name,
        "NewLeaseDuration": str(lifetime),
    }


def entry_arguments(*, proto: Proto, external_port: int) -> Mapping[str, str]:
    """Return the arguments of `DeletePortMapping` and `GetSpecificPortMappingEntry`."""
    return {"NewRemoteHost": "", "NewExternalPort": str(external_port), "NewProtocol": proto.upper()}


def read_address(values: Mapping[str, str]) -> str:
    """Return the address in a reply to `GetExternalIPAddress`. Raises RemoteProtocolError (code `soap`)."""
    text = values.get("NewExternalIPAddress", "").strip()
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise RemoteProtocolError("the router knows no public address", code="soap") from None


def _elements(data: bytes) -> list[tuple[tuple[str, ...], str]]:
    """Return each element with the local names from the root to it, and its text, in the order in which they
    end.
    """
    from xml.parsers import expat  # most nodes never meet a router that describes itself

    if len(data) > MAX_XML_BYTES:
        raise _bad_xml(f"{len(data)} bytes")
    reader = _XmlReader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.EntityDeclHandler = reader.entity
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(data.rstrip(b"\0 \r\n\t"), True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # ValueError: an encoding of many bytes
        raise _bad_xml(str(error)[:80]) from None
    return reader.found


class _XmlReader:
    """The handlers that expat calls; exceeding a limit ends the parsing."""

    def __init__(self) -> None:
        self.found: list[tuple[tuple[str, ...], str]] = []
        self._path: list[str] = []
        self._text = ""
        self._count = 0

    def doctype(self, *_rest: object) -> None:
        raise _bad_xml("it declares a document type")

    def entity(self, *_rest: object) -> None:
        raise _bad_xml("it declares an entity")

    def start(self, name: str, _attributes: object) -> None:
        self._count += 1
        self._path.append(name.rpartition(":")[2][:64])
        self._text = ""
        if self._count > MAX_ELEMENTS or len(self._path) > MAX_XML_DEPTH:
            raise _bad_xml("too many elements")

    def end(self, _name: str) -> None:
        self.found.append((tuple(self._path), self._text.strip()))
        self._path.pop()
        self._text = ""

    def text(self, data: str) -> None:
        if len(self._text) < MAX_TEXT:
            self._text = (self._text + data)[:MAX_TEXT]


def _bad_xml(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"unsupported XML: {why}", code="xml")
