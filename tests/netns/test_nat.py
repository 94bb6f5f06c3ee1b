"""Every kind of NAT, firewall and LAN of the bench does what its name says, seen with plain sockets."""

import itertools
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.netns import probe
from tests.netns.nat import Nat
from tests.netns.probe import Filtering
from tests.netns.programs import stun_on
from tests.netns.sites import Kind, Site, site
from tests.netns.world import Host, World

MULTICAST = "224.0.0.251"


@dataclass(slots=True)
class Places:
    """One world for this file: a site of a kind is built when it is first asked for."""

    world: World
    server: Host
    sites: dict[Kind, Site] = field(default_factory=dict)

    def __getitem__(self, kind: Kind) -> Site:
        if kind not in self.sites:
            self.sites[kind] = site(self.world, kind, kind.name.lower())
        return self.sites[kind]


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with World() as world:
        yield Places(world, world.public("server"))


KEEPS = {
    Kind.FULL_CONE,
    Kind.ADDRESS_RESTRICTED,
    Kind.PORT_RESTRICTED,
    Kind.STEALTH,
    Kind.GUEST,
    Kind.NO_CROSSING,
}
NO_NAT = {Kind.PUBLIC, Kind.V6}
SYMMETRIC = {Kind.SYMMETRIC_RANDOM, Kind.SYMMETRIC_COUNTING}
BLOCKED = {Kind.NO_UDP, Kind.ONLY_443}
FILTERING = {
    Kind.PUBLIC: Filtering.ENDPOINT,
    Kind.FULL_CONE: Filtering.ENDPOINT,
    Kind.ADDRESS_RESTRICTED: Filtering.ADDRESS,
}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in BLOCKED])
def test_udp_mapping_and_filtering(places: Places, kind: Kind) -> None:
    client = places[kind].host
    seen = [probe.udp_mapping(client, places.server) for _ in range(3)]
    for one in seen:
        assert len(one.hosts) == 1
        assert (one.hosts == {client.address}) == (kind in NO_NAT)
        assert one.independent == (kind not in SYMMETRIC)
        if kind in KEEPS | NO_NAT:
            assert one.mapped[0] == one.local
    if kind not in KEEPS | NO_NAT:
        assert any(one.mapped[0] != one.local for one in seen)
    assert probe.udp_filtering(client, places.server) is FILTERING.get(kind, Filtering.ADDRESS_PORT)


def test_the_counting_nat_counts(places: Places) -> None:
    """The next flow gets the next port; flows of others count too."""
    seen = probe.udp_mapping(places[Kind.SYMMETRIC_COUNTING].host, places.server)
    assert [port - seen.mapped[0] for port in seen.mapped] == [0, 1, 2]


def test_the_random_nat_does_not_count(places: Places) -> None:
    found = [probe.udp_mapping(places[Kind.SYMMETRIC_RANDOM].host, places.server).mapped for _ in range(3)]
    steps = {two - one for mapped in found for one, two in itertools.pairwise(mapped)}
    assert len(steps) > 1


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in BLOCKED])
def test_tcp_mapping(places: Places, kind: Kind) -> None:
    seen = probe.tcp_mapping(places[kind].host, places.server)
    assert seen.independent == (kind not in SYMMETRIC)
    if kind in KEEPS | NO_NAT:
        assert seen.mapped[0] == seen.local


@pytest.mark.parametrize("kind", Kind)
def test_what_gets_out(places: Places, kind: Kind) -> None:
    client = places[kind].host
    assert probe.udp_arrives(client, places.server) == (kind not in BLOCKED)
    assert probe.tcp_arrives(client, places.server, 8443) == (kind is not Kind.ONLY_443)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in BLOCKED | NO_NAT])
def test_a_mapping_is_forgotten(places: Places, kind: Kind) -> None:
    router = places[kind].router
    assert router is not None
    assert probe.mapping_is_forgotten(places[kind].host, places.server, router.forget)


def test_a_mapping_lives_as_long_as_it_is_used(places: Places) -> None:
    assert not probe.mapping_is_forgotten(places[Kind.PORT_RESTRICTED].host, places.server, lambda: None)


def test_the_stealth_host_answers_nobody(places: Places) -> None:
    stealth = places[Kind.STEALTH]
    near = stealth.neighbour("near-stealth").host
    with (
        probe.udp_socket(stealth.host.space, stealth.host.address) as asking,
        probe.udp_socket(stealth.host.space, stealth.host.address) as hidden,
        probe.udp_socket(near.space, near.address) as ours,
    ):
        asking.sendto(b"hello", ours.getsockname())
        assert ours.recv(64) == b"hello"
        for number in range(
            2
        ):  # the first also finds out where the other is: only then do packets overtake none
            ours.sendto(b"unasked", hidden.getsockname())
            ours.sendto(bytes([number]), asking.getsockname())
            assert asking.recv(64) == bytes([number])
        assert not select.select([hidden], [], [], 0)[0]
    with probe.tcp_listener(stealth.host, stealth.host.address) as listener, probe.tcp_socket(near) as ours:
        ours.setblocking(False)
        ours.connect_ex(listener.getsockname())
        probe.fence(near, places.server)
        assert not select.select([listener, ours], [ours], [], 0)[0]


def test_guests_do_not_see_each_other(places: Places) -> None:
    guest = places[Kind.GUEST]
    other = guest.neighbour("other-guest").host
    with probe.udp_socket(guest.host.space, guest.host.address) as theirs:
        place = theirs.getsockname()
        assert not probe.reaches(other, place, theirs, lambda: probe.fence(other, places.server))


def test_neighbours_see_each_other(places: Places) -> None:
    here = places[Kind.PORT_RESTRICTED]
    other = here.neighbour("other").host
    with probe.udp_socket(here.host.space, here.host.address) as theirs:
        place = theirs.getsockname()
        assert probe.reaches(other, place, theirs, lambda: _unicast(other, theirs))
        assert theirs.recv(64) == b"hello"


def _unicast(sender: Host, receiver: socket.socket) -> None:
    """A fence between neighbours: the answer to what went the same way."""
    with probe.udp_socket(sender.space, sender.address) as ours:
        with probe.tcp_socket(sender) as closed:  # a refused connection is an answer, too
            closed.connect_ex(receiver.getsockname())
        assert ours.getsockname()


@pytest.mark.parametrize("multicast", [True, False])
def test_multicast_in_a_lan(world: World, multicast: bool) -> None:
    router = world.router("router")
    near, far = router.host("near", multicast=multicast), router.host("far", multicast=multicast)
    with probe.udp_socket(far.space, MULTICAST) as group:
        member = struct.pack("4s4s", socket.inet_aton(MULTICAST), socket.inet_aton(far.address))
        group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        place = (MULTICAST, group.getsockname()[1])
        with probe.udp_socket(far.space, far.address) as unicast:
            assert probe.reaches(near, place, group, lambda: _unicast(near, unicast)) == multicast


@pytest.mark.parametrize("hairpin", [True, False])
@pytest.mark.parametrize("kind", [Nat.PORT_RESTRICTED, Nat.PORT_NOT_KEPT])
def test_hairpin(world: World, kind: Nat, hairpin: bool) -> None:
    server = world.public("server")
    router = world.router("router", kind, hairpin=hairpin)
    near, far = router.host("near"), router.host("far")
    with (
        probe.udp_socket(far.space, far.address) as theirs,
        probe.udp_socket(server.space, server.address) as asked,
    ):
        theirs.sendto(b"who am I", asked.getsockname())
        mapped = asked.recvfrom(64)[1]
        assert probe.reaches(near, mapped, theirs, lambda: probe.fence(near, server)) == hairpin
        if hairpin:
            _, seen = theirs.recvfrom(64)
            assert seen[0] == router.outer


def test_hosts_of_one_carrier(world: World) -> None:
    """Two homes behind one carrier have one public address, and no way to each other but by the carrier."""
    server = world.public("server")
    carrier = world.router("carrier", Nat.PORT_NOT_KEPT, carrier=True)
    homes = [world.router(f"home{number}", behind=carrier) for number in range(2)]
    hosts = [home.host("host") for home in homes]
    assert {probe.udp_mapping(host, server).hosts for host in hosts} == {frozenset({carrier.outer})}
    assert homes[0].outer != homes[1].outer


def test_private_addresses_of_another_place_lead_nowhere(places: Places) -> None:
    """Dropped by the core without a word, as on the real internet."""
    one, two = places[Kind.PORT_RESTRICTED].host, places[Kind.FULL_CONE].host
    with probe.udp_socket(two.space, two.address) as theirs, probe.tcp_socket(one) as ours:
        ours.setblocking(False)
        ours.connect_ex(theirs.getsockname())
        place = theirs.getsockname()
        assert not probe.reaches(one, place, theirs, lambda: probe.fence(one, places.server))
        assert not select.select([ours], [ours], [], 0)[1], "somebody has answered"


@pytest.mark.parametrize("kind", [Kind.PORT_RESTRICTED, Kind.V6])
def test_the_stun_server_tells_the_mapping(places: Places, kind: Kind) -> None:
    """Test against what the server's kernel sees; another address and port answer when asked to."""
    client = places[kind].host
    with stun_on(places.server), probe.udp_socket(client.space, client.address) as ours:
        first, second = probe.addresses_for(client, places.server)
        ours.sendto(struct.pack("!HHI12s", 1, 0, 0x2112A442, b"transaction1"), (first, 3478))
        data, seen = ours.recvfrom(2048)
        assert seen[:2] == (first, 3478)
        assert struct.unpack_from("!HHI12s", data) == (0x0101, len(data) - 20, 0x2112A442, b"transaction1")
        attribute, _, _, port = struct.unpack_from("!HHHH", data, 20)
        assert attribute == 0x0020
        assert port ^ 0x2112 == ours.getsockname()[1]  # these NATs keep it
        # open the way back, then ask for an answer from the other address and port
        ours.sendto(b"open", (second, 3479))
        ours.sendto(struct.pack("!HHI12sHHI", 1, 8, 0x2112A442, b"transaction2", 3, 4, 6), (first, 3478))
        data, seen = ours.recvfrom(2048)
        assert data[8:20] == b"transaction2"
        assert seen[:2] == (second, 3479)


@pytest.mark.parametrize(
    ("first", "second", "opens"),
    [
        (Kind.PORT_RESTRICTED, Kind.PORT_NOT_KEPT, True),
        (Kind.PORT_RESTRICTED, Kind.NO_CROSSING, True),
        (Kind.NO_CROSSING, Kind.PORT_RESTRICTED, False),  # until the other side sends another SYN
    ],
)
def test_tcp_simultaneous_open_between_two_nats(
    places: Places, first: Kind, second: Kind, *, opens: bool
) -> None:
    """Both connect from a port whose mapping they know: the first SYN is dropped, the second opens.

    A router that refuses crossing SYNs drops the second one as well; it is passed by a SYN-ACK.
    """
    one, two = places[first], places[second]
    with probe.tcp_listener(places.server, places.server.address) as listener:
        ends = []
        for end in (one.host, two.host):
            with probe.tcp_socket(end) as asking:
                asking.connect(listener.getsockname())
                local = asking.getsockname()[1]
                theirs, mapped = listener.accept()
                theirs.close()
            ends.append((end, local, mapped))
    (here, here_port, here_mapped), (there, there_port, there_mapped) = ends
    with probe.tcp_socket(here, here_port) as left, probe.tcp_socket(there, there_port) as right:
        left.setblocking(False)
        left.connect_ex(there_mapped)
        if not opens:
            right.setblocking(False)
            right.connect_ex(here_mapped)
            assert not select.select([], [left, right], [], 0.5)[1]
            return
        right.connect(here_mapped)
        assert select.select([], [left], [], probe.SECONDS)[1]
        left.setblocking(True)
        left.sendall(b"through")
        assert right.recv(64) == b"through"
