"""UPnP Internet Gateway Device, the parts that map a port: SSDP search, the description, SOAP calls.

Sources: UPnP Device Architecture 2.0 (SSDP: 1.3; description: 2; control: 3), WANIPConnection:1 and :2. XML
comes from any host that answers in the local network, so it is read with limits: no document type, no
custom entities, bounded depth, number of elements and length of texts.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Proto
from meshd.wire.http_reply import parse_head

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
