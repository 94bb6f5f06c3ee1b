"""What may be dialled is asked at each plan of each peer's dials: the same question costs next to nothing."""

from ipaddress import ip_address, ip_network

from meshd.identity.keys import PeerId
from meshd.identity.record import PeerRecord
from meshd.rendezvous.book import MAX_MEMBERS_ASKED, AddressBook, Places, _judged
from meshd.wire.address import Candidate
from meshd.wire.dialable import Here, Source

from tests.unit.identity import cast

PEER = PeerId(bytes(range(32)))
LAN, PUBLIC = Candidate("192.168.7.9", 17430), Candidate("203.0.113.5", 17430)


def made(*looks: Here) -> Places:
    answers = list(looks)
    book = AddressBook(me=PeerId(bytes(32)), verify=lambda _record: None, save=lambda: None)
    return Places(book, look=lambda: answers.pop(0), local_only=False)


def test_the_same_question_is_judged_once() -> None:
    _judged.cache_clear()
    places = made(Here(outside=frozenset({ip_address("203.0.113.1")})))
    first = places.may_dial(PEER, [LAN, PUBLIC], Source.RECORD)
    for _ in range(100):
        assert places.may_dial(PEER, [LAN, PUBLIC], Source.RECORD) == first
    assert _judged.cache_info().misses == 1


def test_a_machine_that_moved_looks_again_at_once() -> None:
    outside = frozenset({ip_address("203.0.113.1")})
    away = Here(outside=outside)
    home = Here(networks=(ip_network("192.168.7.0/24"),), outside=outside)
    places = made(away, home)
    assert LAN not in places.may_dial(PEER, [LAN], Source.RECORD)
    places.moved()
    assert LAN in places.may_dial(PEER, [LAN], Source.RECORD)


def test_relays_tell_first_how_a_tcp_port_is_seen_then_a_few_public_members_then_stun() -> None:
    book = AddressBook(me=PeerId(bytes(32)), verify=lambda _record: None, save=lambda: None)
    for number in range(1, MAX_MEMBERS_ASKED + 3):
        book.add(
            PeerRecord.sign(
                cast.key(f"member {number}"),
                chain=cast.FOUNDER_CHAIN,
                name="m",
                role="worker",
                sequence=1,
                candidates=(Candidate(f"9.9.9.{number}", 17430), Candidate("10.0.0.1", 17430)),
            )
        )
    asked = Places(book, look=Here, local_only=False).tcp_servers(("relay:1",), ("stun:1",))
    assert (asked[0], asked[-1], len(asked)) == ("relay:1", "stun:1", MAX_MEMBERS_ASKED + 2)
    assert all(place.startswith("9.9.9.") for place in asked[1:-1])
    alone = Places(book, look=Here, local_only=True)
    assert alone.tcp_servers(("relay:1",), ()) == ("relay:1",)
