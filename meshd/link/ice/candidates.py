"""Which addresses of the other side are checked, and what a chosen pair says of the path. Pure."""

import ipaddress
from collections.abc import Iterable, Sequence

from meshd.link.net.local_addresses import path_between
from meshd.wire.address import Candidate, CandidateKind, order
from meshd.wire.signal import MAX_OFFERED


def checkable(offered: Iterable[Candidate], *, hosts: Sequence[str]) -> list[Candidate]:
    """Return addresses worth checking, best first: UDP, of a family that one of `hosts` (ours) has.

    wire/dialable.py decides which of them may be sent to. Relays' ports belong to another kind of link.
    """
    families = {ipaddress.ip_address(host).version for host in hosts}
    return [
        candidate
        for candidate in order(offered)
        if candidate.proto == "udp" and candidate.kind != "relay" and candidate.ip.version in families
    ][:MAX_OFFERED]


def path_of(local: str, remote: str, remote_kind: CandidateKind | None) -> str:
    """Return LinkInfo.path of a pair: `local` and `remote` are hosts, `remote_kind` is the kind they
    announced.

    `mapped`: through a port that a router was asked for. `punched`: both sides sent through a NAT. A side
    that itself has a public address calls the path `public`, whichever side it is.
    """
    path = path_between(local, remote)
    if path != "public":
        return path
    if remote_kind == "mapped":
        return "mapped"
    if remote_kind == "host" or ipaddress.ip_address(local).is_global:
        return "public"
    return "punched"
