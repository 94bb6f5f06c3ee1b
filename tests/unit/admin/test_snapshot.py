"""Status values of the parts as views."""

from meshd.admin import snapshot
from meshd.admin.request import encode_line, to_json
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.membership import Chain, Member, Role, issue
from meshd.link.interface import LinkInfo, LinkKind
from meshd.peer.interface import PathStatus, PeerState, PeerStatus
from meshd.tunnel.interface import ExposedStatus, TunnelStatus

ROOT = KeyPair.from_seed(b"r" * 32)
NODE = KeyPair.from_seed(b"n" * 32)
NOW, WALL = 1000.0, 1_790_000_000.0


def member() -> Member:
    mesh = MeshId.of(ROOT.peer)
    leaf = issue(
        signer=ROOT, mesh=mesh, node=NODE.peer, roles=[Role.WORK], serial=b"s" * 16, invite=b"", issued_at=0
    )
    return Member(NODE.peer, mesh, frozenset({Role.WORK}), Chain((leaf,), ROOT.peer))


def path(*, selected: bool, kind: LinkKind = LinkKind.TCP, where: str = "lan", why: str = "") -> PathStatus:
    info = LinkInfo(
        kind=kind,
        peer=NODE.peer,
        member=member(),
        local="10.0.0.1:1",
        remote="10.0.0.2:2",
        path=where,
        dialled=True,
        established_at=NOW - 60,
    )
    return PathStatus(link=info, selected=selected, rtt=0.0015, why=why, sent_bytes=10, received_bytes=20)


def peer(*paths: PathStatus, name: str = "garage", state: PeerState = PeerState.CONNECTED) -> PeerStatus:
    return PeerStatus(
        peer=NODE.peer,
        name=name,
        role="worker",
        state=state,
        paths=paths,
        native=None,
        software="0.1.0",
        resumes=3,
        since=NOW - 5,
        last_error="",
        clock_offset=None,
    )


def test_every_state_and_kind_has_a_name() -> None:
    for state in PeerState:
        assert snapshot.peer_view(peer(state=state), now=NOW, wall=WALL).state == state.value
    for kind in LinkKind:
        view = snapshot.link_view(path(selected=True, kind=kind), now=NOW, wall=WALL)
        assert encode_line(to_json(view)).startswith(b'{"kind":"%s",' % kind.encode())
    assert snapshot.link_path("by carrier pigeon") == "public"


def test_tunnels_and_services_carry_the_names_of_peers() -> None:
    tunnel = TunnelStatus(NODE.peer, "web", "127.0.0.1:1", 1, 2, 3, user=True, last_error="gone")
    [view] = snapshot.tunnel_views([tunnel], {NODE.peer: "garage"})
    assert (view.peer_name, view.user, view.last_error) == ("garage", True, "gone")
    assert snapshot.tunnel_views([tunnel])[0].peer_name == ""
    service = ExposedStatus("web", "::1", 80, (NODE.peer, ROOT.peer), 1, 2, 3)
    shown = snapshot.exposed_view(service, {NODE.peer: "garage"})
    assert (shown.target, shown.to_names) == ("[::1]:80", ("garage", ""))
    assert shown.to == (str(NODE.peer), str(ROOT.peer))
