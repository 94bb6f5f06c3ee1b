"""Targets that anybody in the local network reaches: records of multicast DNS."""

import random
from collections.abc import Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.rendezvous.mdns_records import MAX_CANDIDATES_PER_PEER, MDNS_NONCE_BYTES, Neighbours, Sign

from tests.fuzz.mutate import flip
from tests.fuzz.target import Target
from tests.unit.identity.cast import FOUNDER, GUEST, MESH, STRANGER

OWN = ("192.168.1.9", "fd00::9")
TEXTS = tuple(
    Sign.of(MESH, who.peer, nonce=bytes([number]) * MDNS_NONCE_BYTES, udp_port=number).encode()
    for number, who in enumerate((FOUNDER, GUEST, STRANGER))
)


def _record(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """A record as `_feed_mdns` takes it apart: the text's length u16, the text, a port, hosts."""
    text = rng.choice(samples)
    if rng.random() < 0.7:
        text = flip(rng, text, samples)
    hosts = [
        rng.choice(("192.168.1.4", "fd00::4", "8.8.8.8", "::ffff:10.0.0.1", "fe80::1%eth0", "\0", "x" * 99))
        for _ in range(rng.randrange(20))
    ]
    port = rng.choice((0, 7447, 65535))
    return len(text).to_bytes(2, "big") + text + port.to_bytes(2, "big") + "\n".join(hosts).encode()


def _feed_mdns(data: bytes) -> None:
    size = int.from_bytes(data[:2], "big")
    text, rest = data[2 : 2 + size], data[2 + size :]
    port, hosts = int.from_bytes(rest[:2], "big"), rest[2:].decode("utf-8", "replace").split("\n")
    neighbours = Neighbours(MESH, FOUNDER.peer)
    neighbours.know((GUEST.peer, STRANGER.peer))
    neighbours.saw(("eth0", "name"), text, hosts=hosts, port=port, own=OWN, now=1.0)
    for peer, candidates in neighbours.tell(1.0):
        assert peer in (GUEST.peer, STRANGER.peer)
        assert 0 < len(candidates) <= MAX_CANDIDATES_PER_PEER
        assert all(candidate.is_private for candidate in candidates)


TARGETS = (
    Target(
        name="mdns",
        samples=TEXTS,
        make=_record,
        feed=_feed_mdns,
        allowed=(RemoteProtocolError,),
        share=6,
    ),
)
