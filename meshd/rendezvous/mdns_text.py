"""The mDNS announcement of a node, and how members read it. Pure.

The TXT record (RFC 6763, section 6) carries a fresh random nonce and two tags, hashes of the mesh and of the
node with that nonce. A node that knows the mesh id computes the same and recognises the mesh and the nodes
that it knows; to anybody else the record is random bytes, others each time a node starts or comes into a
network. So it links neither the members of a mesh, nor a node here with a node there. A node that was invited
once knows the mesh id and recognises it for ever: the tags admit nobody, they only say where a dial is worth
while.

A record of others is hostile until parsed: it may be made by anybody in the network, or copied from a member.
"""

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.keys import MeshId, PeerId, from_base32, joined, to_base32
from meshd.wire.address import Address, Candidate, ScopedCandidate

SERVICE_TYPE = "_meshd._tcp.local."
MDNS_NONCE_BYTES = 16
TAG_BYTES = 10  # 80 bits: nobody meets one by chance, and ours is checked by a proof anyway
MAX_TXT_BYTES = 400  # of a whole TXT record; ours has about 100
MAX_FIELDS = 12
MAX_MDNS_HOSTS = 8  # taken from one record

_INSTANCE_NAME = re.compile(rf"[0-9a-z-]{{1,63}}\.{re.escape(SERVICE_TYPE)}", re.ASCII | re.IGNORECASE)
_MAX_NAME_CHARACTERS = 253
_MAX_LABEL_BYTES = 63  # RFC 1035, section 2.3.4
_REPLACED = "\N{REPLACEMENT CHARACTER}"  # where a byte was not UTF-8: longer than the byte
_VERSION = "1"
_MESH_CONTEXT = b"meshd mdns mesh v1"
_NODE_CONTEXT = b"meshd mdns node v1"


@dataclass(frozen=True, slots=True)
class Sign:
    """The content of one TXT record. `udp_port` is 0 where the node takes no UDP links."""

    nonce: bytes
    mesh_tag: bytes
    node_tag: bytes
    udp_port: int = 0

    @classmethod
    def of(cls, mesh: MeshId, node: PeerId, *, nonce: bytes, udp_port: int = 0) -> "Sign":
        """Return the sign of `node`; the nonce is random and used in one network only."""
        return cls(nonce, _mesh_tag(mesh, nonce), _node_tag(mesh, node, nonce), udp_port)

    def is_of_mesh(self, mesh: MeshId) -> bool:
        """Return True if its maker knows this mesh id."""
        return self.mesh_tag == _mesh_tag(mesh, self.nonce)

    def is_of_node(self, mesh: MeshId, node: PeerId) -> bool:
        """Return True if it claims to be of this node."""
        return self.node_tag == _node_tag(mesh, node, self.nonce)

    def encode(self) -> bytes:
        """Return the TXT record's data: strings behind their length u8."""
        fields = {
            "v": _VERSION,
            "n": to_base32(self.nonce),
            "m": to_base32(self.mesh_tag),
            "p": to_base32(self.node_tag),
        }
        if self.udp_port:
            fields["u"] = str(self.udp_port)
        strings = [f"{name}={value}".encode() for name, value in fields.items()]
        return b"".join(bytes([len(string)]) + string for string in strings)

    @classmethod
    def decode(cls, text: bytes) -> "Sign":
        """Read the output of `encode`. Raises RemoteProtocolError (code `mdns`)."""
        fields = _fields(text)
        if fields.get("v") != _VERSION:
            raise _wrong("of another version")
        try:
            nonce, mesh_tag, node_tag = (from_base32(fields[name]) for name in "nmp")
            udp_port = _port(fields["u"]) if "u" in fields else 0
        except (KeyError, ValueError) as error:
            raise _wrong("without its fields") from error
        if (len(nonce), len(mesh_tag), len(node_tag)) != (MDNS_NONCE_BYTES, TAG_BYTES, TAG_BYTES):
            raise _wrong("with a tag of another size")
        return cls(nonce, mesh_tag, node_tag, udp_port)


def is_instance_name(name: str) -> bool:
    """Return True if a node may be called `name`: letters, digits, hyphens, then the service type."""
    return _INSTANCE_NAME.fullmatch(name) is not None


def is_well_formed_name(name: str) -> bool:
    """Return True if the domain name `name`, as read from a packet, can be written into one again."""
    labels = name.removesuffix(".").split(".")
    return (
        len(name) <= _MAX_NAME_CHARACTERS
        and name.isprintable()
        and _REPLACED not in name
        and all(0 < len(label.encode()) <= _MAX_LABEL_BYTES for label in labels)
    )


def nearby(
    hosts: Iterable[str], port: int, *, udp_port: int, own: Sequence[str], interface: str
) -> tuple[Candidate, ...]:
    """Return the addresses of a record that are worth a dial: those that may be in one network with `own`.

    So that nobody makes the nodes of a mesh knock at a machine elsewhere. At most MAX_MDNS_HOSTS hosts. A
    link-local IPv6 address gets the zone `interface`, on which the record came; it is dialled over TCP alone.
    """
    here = [ipaddress.ip_address(host) for host in own]
    found: list[Candidate] = []
    for host in list(dict.fromkeys(hosts))[:MAX_MDNS_HOSTS]:
        try:
            candidate = Candidate(host, port)
            if candidate.is_v6 and candidate.is_link_local:
                candidate = ScopedCandidate(f"{candidate.host}%{interface}", port)
        except LocalProtocolError:
            continue
        if not any(_neighbours(address, candidate.ip) for address in here):
            continue
        found.append(candidate)
        if udp_port and not isinstance(candidate, ScopedCandidate):
            found.append(Candidate(host, udp_port, "udp"))
    return tuple(found)


def _neighbours(here: Address, there: Address) -> bool:
    if here.version != there.version or there.is_loopback:
        return False
    if there.version == 6 and (here.is_link_local or there.is_link_local):
        return here.is_link_local and there.is_link_local
    if _inside(here) and _inside(there):
        return True
    host_bits = 64 if there.version == 6 else 8  # a public network in one building, as far as one can tell
    return int(here) >> host_bits == int(there) >> host_bits


def _inside(address: Address) -> bool:
    candidate = Candidate(str(address), 1)
    return candidate.is_private or candidate.is_link_local


def _fields(text: bytes) -> dict[str, str]:
    if len(text) > MAX_TXT_BYTES:
        raise _wrong(f"of more than {MAX_TXT_BYTES} bytes")
    fields: dict[str, str] = {}
    at = 0
    while at < len(text):
        size = text[at]
        string = text[at + 1 : at + 1 + size]
        at += 1 + size
        if len(string) != size:
            raise _wrong("cut off")
        name, equals, value = string.partition(b"=")
        if not equals:
            continue
        if len(fields) >= MAX_FIELDS:
            raise _wrong(f"of more than {MAX_FIELDS} fields")
        try:
            fields.setdefault(
                name.decode("ascii").lower(), value.decode("ascii")
            )  # the first counts: RFC 6763
        except UnicodeDecodeError:
            raise _wrong("that is no text") from None
    return fields


def _port(text: str) -> int:
    if not (len(text) <= 5 and text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ValueError("not a port")
    return int(text)


def _mesh_tag(mesh: MeshId, nonce: bytes) -> bytes:
    return hashlib.sha256(joined(_MESH_CONTEXT, mesh.raw, nonce)).digest()[:TAG_BYTES]


def _node_tag(mesh: MeshId, node: PeerId, nonce: bytes) -> bytes:
    return hashlib.sha256(joined(_NODE_CONTEXT, mesh.raw, node.raw, nonce)).digest()[:TAG_BYTES]


def _wrong(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"an mDNS record {what}", code="mdns")
