"""Who was seen by mDNS: peers by their tags, changes told once, limits whatever the network says."""

from collections.abc import Sequence

from meshd.identity.keys import MeshId, PeerId
from meshd.rendezvous.mdns_records import (
    MAX_CANDIDATES_PER_PEER,
    MAX_SEEN,
    MDNS_NONCE_BYTES,
    TELL_SECONDS,
    Neighbours,
    Sign,
)
from meshd.wire.address import Candidate

from tests.unit.identity.cast import FOUNDER, GUEST, MESH, WORKER

OWN = ("192.168.1.9",)


class Net:
    """A node's view, and records that come to it."""

    def __init__(self, *known: PeerId) -> None:
        self.neighbours = Neighbours(MESH, FOUNDER.peer)
        self.neighbours.know(known)
        self.now = 1000.0
        self._nonce = 0

    def text(self, peer: PeerId, mesh: MeshId = MESH) -> bytes:
        self._nonce += 1
        return Sign.of(mesh, peer, nonce=self._nonce.to_bytes(MDNS_NONCE_BYTES, "big")).encode()

    def saw(self, name: str, text: bytes, *hosts: str, interface: str = "eth0", port: int = 7447) -> bool:
        return self.neighbours.saw(
            (interface, name), text, hosts=hosts or ("192.168.1.4",), port=port, own=OWN, now=self.now
        )

    def heard(self) -> bool:
        return self.neighbours.heard_at == self.now

    def told(self) -> list[tuple[PeerId, Sequence[Candidate]]]:
        return list(self.neighbours.tell(self.now))


def at(*hosts: str, port: int = 7447) -> tuple[Candidate, ...]:
    return tuple(Candidate(host, port) for host in hosts)


def test_a_known_peer_is_told_once() -> None:
    net = Net(WORKER.peer)
    text = net.text(WORKER.peer)
    assert net.saw("a", text)
    assert net.told() == [(WORKER.peer, at("192.168.1.4"))]
    assert not net.saw("a", text)
    net.now += 100
    assert net.told() == []


def test_a_peer_that_is_learnt_of_later_is_found_then() -> None:
    net = Net()
    assert net.saw("a", net.text(WORKER.peer))
    assert net.told() == []
    net.neighbours.know([GUEST.peer, WORKER.peer])
    assert net.told() == [(WORKER.peer, at("192.168.1.4"))]


def test_another_mesh_and_oneself_are_nobody() -> None:
    net = Net(WORKER.peer, FOUNDER.peer)
    assert not net.saw("own", net.text(FOUNDER.peer))
    assert not net.heard()  # one's own voice proves nothing
    assert not net.saw("other", net.text(WORKER.peer, MeshId(b"o" * 32)))
    assert net.heard()
    assert net.told() == [] and net.neighbours.members == 0


def test_a_restart_is_told_again_though_the_address_is_the_same() -> None:
    net = Net(WORKER.peer)
    net.saw("a", net.text(WORKER.peer))
    assert len(net.told()) == 1
    assert net.saw("b", net.text(WORKER.peer))
    assert net.told() == []  # too soon
    net.now += TELL_SECONDS
    assert net.told() == [(WORKER.peer, at("192.168.1.4"))]


def test_a_goodbye_and_a_network_left() -> None:
    net = Net(WORKER.peer)
    net.saw("a", net.text(WORKER.peer), "192.168.1.4")
    net.saw("b", net.text(WORKER.peer), "192.168.1.5", interface="eth1")
    assert net.told() == [(WORKER.peer, at("192.168.1.5", "192.168.1.4"))]
    net.now += TELL_SECONDS
    assert net.neighbours.lost(("eth0", "a")) and not net.neighbours.lost(("eth0", "a"))
    assert net.told() == [(WORKER.peer, at("192.168.1.5"))]
    net.now += TELL_SECONDS
    net.neighbours.lost_network("eth1")
    assert net.told() == [(WORKER.peer, ())]
    net.now += TELL_SECONDS
    assert net.told() == [] and net.neighbours.members == 0


def test_records_that_change_all_the_time_are_told_seldom() -> None:
    net = Net(WORKER.peer)
    told = 0
    for number in range(100):
        net.saw("a", net.text(WORKER.peer), f"192.168.1.{number + 10}")
        net.now += TELL_SECONDS / 10
        told += len(net.told())
    assert told == 10


def test_what_is_kept_is_bounded_and_one_node_displaces_only_itself() -> None:
    net = Net(WORKER.peer, GUEST.peer)
    net.saw("guest", net.text(GUEST.peer))
    for number in range(2 * MAX_SEEN):
        host = f"192.168.{number // 200}.{number % 200 + 1}"
        net.saw(f"w{number}", net.text(WORKER.peer), host)
    found = net.neighbours.of(WORKER.peer)
    assert len(found) == MAX_CANDIDATES_PER_PEER
    assert found[0] == Candidate("192.168.2.112", 7447)  # the newest: it may have started again
    assert found[1] == Candidate("192.168.0.1", 7447)  # the oldest: the others may be copies
    assert net.neighbours.of(GUEST.peer) == at("192.168.1.4")
    assert net.neighbours.members == 2


def test_made_up_nodes_displace_no_known_one() -> None:
    net = Net(WORKER.peer)
    net.saw("worker", net.text(WORKER.peer))
    for number in range(2 * MAX_SEEN):
        net.saw(f"m{number}", net.text(PeerId(number.to_bytes(32, "big"))))
    assert net.told() == [(WORKER.peer, at("192.168.1.4"))]
    assert net.neighbours.members == MAX_SEEN


def test_a_record_that_becomes_useless_is_forgotten() -> None:
    net = Net(WORKER.peer)
    text = net.text(WORKER.peer)
    net.saw("a", text)
    net.told()
    net.now += TELL_SECONDS
    assert net.saw("a", text, "8.8.8.8")
    assert net.told() == [(WORKER.peer, ())]


def test_a_peer_that_is_not_looked_for_any_more() -> None:
    net = Net(WORKER.peer)
    net.saw("a", net.text(WORKER.peer))
    net.told()
    net.neighbours.know([])
    net.now += TELL_SECONDS
    net.saw("b", net.text(WORKER.peer), "192.168.1.77")
    assert net.told() == []
