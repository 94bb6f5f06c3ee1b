"""The mDNS announcement of a node, how members read it, and whom they have seen. Pure.

The TXT record (RFC 6763, section 6) carries a fresh random nonce and two tags, hashes of the mesh and of the
node with that nonce. A node that knows the mesh id computes the same and recognises the mesh and the nodes
that it knows; to anybody else the record is random bytes, others each time a node starts or comes into a
network. So it links neither the members of a mesh, nor a node here with a node there. A node that was invited
once knows the mesh id and recognises it for ever: the tags admit nobody, they only say where a dial is worth
while.

A record of others is hostile until parsed: it may be made by anybody in the network, or copied from a member.

`places` says on which interfaces this node is announced, `Neighbours` keeps the members seen. All is bounded,
whatever the network says: who is seen, how many addresses each has, and how often a change is told.
"""

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.base.peer_limits import NEARBY, NEARBY_OF_PEER
from meshd.identity.keys import MeshId, PeerId, from_base32, joined, to_base32
from meshd.wire.address import Address, Candidate, ScopedCandidate

MAX_HOSTS = 4  # of each family, told in one network: more do not help

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

MAX_SEEN = NEARBY.most
MAX_CANDIDATES_PER_PEER = NEARBY_OF_PEER.most
TELL_SECONDS = 5.0  # a peer is told of at most that often: records that change all the time cost nothing more


@dataclass(frozen=True, slots=True)
class Place:
    """One interface and its addresses, without zones.

    `port` is 0 where nothing is offered, and the node only looks.
    """

    interface: str
    hosts: tuple[str, ...]
    port: int = 0
    udp_port: int = 0


def places(addresses: Iterable[tuple[str, str]], candidates: Sequence[Candidate]) -> list[Place]:
    """Return one place for each interface; `candidates` are those of the listeners, `addresses` (interface,
    host).

    An interface on which no listener answers is left out, unless there is no listener at all. Loopback never
    counts. Listeners name link-local IPv6 as ScopedCandidate.
    """
    by_interface: dict[str, list[str]] = {}
    for interface, host in addresses:
        if _counts(host):
            by_interface.setdefault(interface, []).append(str(ipaddress.ip_address(host)))
    found = []
    for interface, hosts in by_interface.items():
        scoped = {host: _scoped(interface, host) for host in hosts}
        offered = [
            candidate
            for candidate in candidates
            if candidate.kind == "host" and candidate.host in scoped.values()
        ]
        if candidates:
            hosts = [host for host in hosts if any(candidate.host == scoped[host] for candidate in offered)]
        hosts.sort(key=lambda host: ipaddress.ip_address(host).is_link_local)  # the last that are told
        fours = [host for host in hosts if ":" not in host][:MAX_HOSTS]
        sixes = [host for host in hosts if ":" in host][:MAX_HOSTS]
        if fours or sixes:
            place = Place(
                interface, (*fours, *sixes), _offered_port(offered, "tcp"), _offered_port(offered, "udp")
            )
            if place.port or not candidates:
                found.append(place)
    return found


def _offered_port(candidates: Iterable[Candidate], proto: str) -> int:
    return next((candidate.port for candidate in candidates if candidate.proto == proto), 0)


def _scoped(interface: str, host: str) -> str:
    """Return `host` as a listener on `interface` names it."""
    address = ipaddress.ip_address(host)
    return f"{host}%{interface}" if address.version == 6 and address.is_link_local else host


def _counts(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)


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


@dataclass(slots=True)
class _SeenMember:
    sign: Sign
    candidates: tuple[Candidate, ...]
    peer: PeerId | None = None


@dataclass(slots=True)
class _ToldPlaces:
    candidates: tuple[Candidate, ...] = ()
    at: float = float("-inf")
    news: bool = True  # something was announced anew: the peer is there, even if its addresses are the same


@dataclass(slots=True)
class Neighbours:
    """Records of one mesh; `me` is left out. Times are any clock's, seconds."""

    mesh: MeshId
    me: PeerId | None = None
    heard_at: float | None = None  # when anybody else's record came last, of whatever mesh
    _seen: dict[tuple[str, str], _SeenMember] = field(default_factory=dict)
    _known: frozenset[PeerId] = frozenset()
    _reported: dict[PeerId, _ToldPlaces] = field(default_factory=dict)

    @property
    def members(self) -> int:
        """The number of nodes of this mesh seen now."""
        return len(
            {seen.sign.node_tag if seen.peer is None else seen.peer.raw for seen in self._seen.values()}
        )

    def saw(
        self,
        where: tuple[str, str],
        text: bytes,
        *,
        hosts: Iterable[str],
        port: int,
        own: Sequence[str],
        now: float,
    ) -> bool:
        """Handle a record at `where` (interface, name); `own` are our addresses there. Return True if it is
        news.

        Raises RemoteProtocolError when it is malformed.
        """
        # Ignore our own record; any other shows that multicast works.
        sign = Sign.decode(text)
        if self.me is not None and sign.is_of_mesh(self.mesh) and sign.is_of_node(self.mesh, self.me):
            return False
        self.heard_at = now
        candidates = nearby(hosts, port, udp_port=sign.udp_port, own=own, interface=where[0])
        # Forget what is not of this mesh any more, or leads nowhere.
        if not sign.is_of_mesh(self.mesh):
            self._seen.pop(where, None)
            return False
        known = self._seen.pop(where, None)
        if not candidates:
            return known is not None
        # Keep a known record as it is, so that its age stays.
        if known is not None and known.sign == sign and known.candidates == candidates:
            self._seen[where] = known
            return False
        # Add a new one, and find out whose it is.
        seen = self._seen[where] = _SeenMember(sign, candidates)
        self._name(seen, self._known)
        if len(self._seen) > MAX_SEEN:
            self._drop_one()
        return True

    def lost(self, where: tuple[str, str]) -> bool:
        """Drop a record that is withdrawn, or has run out; True if it was one of ours."""
        return self._seen.pop(where, None) is not None

    def lost_network(self, interface: str) -> None:
        """Drop everything seen in a network that this node has left."""
        for where in [where for where in self._seen if where[0] == interface]:
            del self._seen[where]

    def know(self, peers: Iterable[PeerId]) -> None:
        """Set the peers whose tags are looked for."""
        now_known = frozenset(peers)
        fresh = now_known - self._known
        if fresh:
            for seen in self._seen.values():
                if seen.peer is None:
                    self._name(seen, fresh)
        self._known = now_known

    def of(self, peer: PeerId) -> tuple[Candidate, ...]:
        """Return where `peer` was seen: the newest record, then the oldest, the second newest and so on.

        Anybody in the network can repeat a record with other addresses. The newest matters after a restart
        of the peer, the oldest is most likely its own during a flood of copies.
        """
        records = [seen.candidates for seen in self._seen.values() if seen.peer == peer]
        found: dict[Candidate, None] = {}
        while records and len(found) < MAX_CANDIDATES_PER_PEER:
            found.update(dict.fromkeys(records.pop()))
            records.reverse()
        return tuple(found)[:MAX_CANDIDATES_PER_PEER]

    def tell(self, now: float) -> list[tuple[PeerId, tuple[Candidate, ...]]]:
        """Return the changes since the last call: peers, and where they are seen now (nowhere: gone)."""
        changes: list[tuple[PeerId, tuple[Candidate, ...]]] = []
        present = {seen.peer for seen in self._seen.values() if seen.peer is not None}
        for peer in (present | set(self._reported)) & self._known:
            last = self._reported.setdefault(peer, _ToldPlaces())
            candidates = self.of(peer)
            if now - last.at < TELL_SECONDS or not (last.news or set(candidates) != set(last.candidates)):
                continue
            changes.append((peer, candidates))
            if candidates:
                self._reported[peer] = _ToldPlaces(candidates, now, news=False)
            else:
                del self._reported[peer]
        for peer in set(self._reported) - self._known:
            del self._reported[peer]
        return changes

    def _drop_one(self) -> None:
        """Drop a record of the node with the most; records of unknown nodes count as one node's.

        So made-up nodes displace each other, and copies of one node's record displace each other. The oldest
        record of a known node stays, see `of`.
        """
        shares: dict[PeerId | None, list[tuple[str, str]]] = {}
        for where, seen in self._seen.items():
            shares.setdefault(seen.peer, []).append(where)
        owner, largest = max(shares.items(), key=lambda share: len(share[1]))
        del self._seen[largest[0 if owner is None or len(largest) == 1 else 1]]

    def _name(self, seen: _SeenMember, peers: Iterable[PeerId]) -> None:
        """Find the owner of a record: one hash for each of `peers`."""
        seen.peer = next((peer for peer in peers if seen.sign.is_of_node(self.mesh, peer)), None)
        if seen.peer is not None:
            self._reported.setdefault(seen.peer, _ToldPlaces()).news = True
