"""meshd.worker.local_way: a connection that a mesh-server gets, and that its worker can cut."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from meshd.base.local_way import LocalOffer, come
from meshd.identity.keys import PeerId
from meshd.worker.local_way import LocalWay, way_over

PEER = PeerId(bytes(32))


@contextmanager
def ends(way: LocalWay | None) -> Iterator[socket.socket]:
    """Yield what its mesh-server gets."""
    assert way is not None
    with socket.socket(fileno=way.give()) as given:
        given.settimeout(10)
        yield given
    way.cut()


@pytest.mark.parametrize("cuts", [0, 1])
def test_either_side_can_cut_the_connection(cuts: int) -> None:
    with closing(LocalOffer()) as offer:
        second = way_over(PEER, come(offer.offered))
        first = way_over(PEER, offer.take())
    with ends(first) as here, ends(second) as there:
        here.sendall(b"there")
        assert there.recv(100) == b"there"
        there.sendall(b"back")
        assert here.recv(100) == b"back"
        way = (first, second)[cuts]
        assert way is not None
        way.cut()
        way.cut()
        assert here.recv(100) == there.recv(100) == b"", "whoever still holds it"


def test_its_ends_block_as_a_mesh_server_expects() -> None:
    with closing(LocalOffer()) as offer:
        second = way_over(PEER, come(offer.offered))
        first = way_over(PEER, offer.take())
    for way in (first, second):
        assert way is not None
        given = way.give()
        assert os.get_blocking(given)
        os.close(given)
        way.cut()


def test_there_is_none_without_a_connection_or_a_free_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert way_over(PEER, None) is None

    def none_free(_descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    ours, theirs = socket.socketpair()
    monkeypatch.setattr(os, "dup", none_free)
    with theirs:
        assert way_over(PEER, ours) is None
        assert theirs.recv(1) == b""


def test_status_has_what_the_server_reports() -> None:
    with closing(LocalOffer()) as offer:
        second = way_over(PEER, come(offer.offered))
        with ends(way_over(PEER, offer.take())), ends(second):
            assert second is not None
            second.count(sent=7)
            second.count(received=8)
            status = second.status
    assert (status.peer, status.listen, status.sent_bytes, status.received_bytes) == (PEER, "local", 7, 8)
