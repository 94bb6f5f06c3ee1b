"""What may be dialled is asked at each plan of each peer's dials: the same question costs next to nothing."""

from ipaddress import ip_address, ip_network

import pytest
from meshd.daemon.peer_addresses import Places, _judged
from meshd.identity.keys import PeerId
from meshd.link.net import local_addresses
from meshd.rendezvous.book import AddressBook
from meshd.wire.address import Candidate
from meshd.wire.dialable import Here, Source

PEER = PeerId(bytes(range(32)))
LAN, PUBLIC = Candidate("192.168.7.9", 17430), Candidate("203.0.113.5", 17430)


def made(monkeypatch: pytest.MonkeyPatch, answers: list[Here]) -> Places:
    def here(_outside: object, *, local_only: bool) -> Here:
        assert not local_only
        return answers.pop(0)

    monkeypatch.setattr(local_addresses, "here", here)
    book = AddressBook(me=PeerId(bytes(32)), verify=lambda _record: None, save=lambda: None)
    return Places(book, local_only=False, outside=lambda: ("203.0.113.1",))


def test_the_same_question_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _judged.cache_clear()
    places = made(monkeypatch, [Here(outside=frozenset({ip_address("203.0.113.1")}))])
    first = places.may_dial(PEER, [LAN, PUBLIC], Source.RECORD)
    for _ in range(100):
        assert places.may_dial(PEER, [LAN, PUBLIC], Source.RECORD) == first
    assert _judged.cache_info().misses == 1


def test_a_machine_that_moved_looks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = frozenset({ip_address("203.0.113.1")})
    away = Here(outside=outside)
    home = Here(networks=(ip_network("192.168.7.0/24"),), outside=outside)
    places = made(monkeypatch, [away, home])
    assert LAN not in places.may_dial(PEER, [LAN], Source.RECORD)
    places.moved()
    assert LAN in places.may_dial(PEER, [LAN], Source.RECORD)
