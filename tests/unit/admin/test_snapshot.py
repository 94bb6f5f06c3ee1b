"""Status values of the parts as views."""

from dataclasses import replace

from meshd.admin import snapshot
from meshd.admin.request import encode_line, to_json
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.membership import Chain, Member, Role, issue
from meshd.link.interface import LinkInfo, LinkKind
from meshd.peer.interface import PathStatus, PeerState, PeerStatus
from meshd.process.interface import ChildState, ChildStatus
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


def test_the_selected_path_is_the_link_and_the_others_stand_by() -> None:
    view = snapshot.peer_view(peer(path(selected=False), path(selected=True)), now=NOW, wall=WALL)
    assert view.link is not None
    assert (view.link.kind, view.link.path, view.link.remote) == ("tcp", "lan", "10.0.0.2:2")
    assert (view.link.rtt_ms, view.link.since) == (1.5, WALL - 60)
    assert (view.link.sent_bytes, view.link.received_bytes, view.link.bytes_s) == (10, 20, None)
    assert len(view.standby_links) == 1
    assert (view.id, view.state, view.resumes, view.state_s) == (str(NODE.peer), "connected", 3, 5.0)
    assert view.why_not_direct is None


def test_a_link_that_was_full_has_a_rate() -> None:
    full = replace(path(selected=True), rate=1_234_567.8)
    assert snapshot.link_view(full, now=NOW, wall=WALL).bytes_s == 1_234_568


def test_a_relayed_peer_says_why() -> None:
    relayed = path(selected=True, kind=LinkKind.RELAY, where="relayed")
    status = replace(peer(relayed), why_not_direct="both symmetric")
    assert snapshot.peer_view(status, now=NOW, wall=WALL).why_not_direct == "both symmetric"


def test_a_peer_without_a_link() -> None:
    view = snapshot.peer_view(peer(state=PeerState.SUSPENDED), now=NOW, wall=WALL)
    assert (view.link, view.standby_links, view.state) == (None, (), "suspended")


def test_peers_stand_in_a_fixed_order() -> None:
    views = snapshot.peer_views([peer(name="b"), peer(name="a")], now=NOW, wall=WALL)
    assert [view.name for view in views] == ["a", "b"]


def test_every_state_and_kind_has_a_name() -> None:
    for state in PeerState:
        assert snapshot.peer_view(peer(state=state), now=NOW, wall=WALL).state == state.value
    for kind in LinkKind:
        view = snapshot.link_view(path(selected=True, kind=kind), now=NOW, wall=WALL)
        assert encode_line(to_json(view)).startswith(b'{"kind":"%s",' % kind.encode())
    assert snapshot.link_path("by carrier pigeon") == "public"


def test_children_and_tunnels() -> None:
    child = ChildStatus("rpc-server", ChildState.FAILED, None, 2, "exit code 1", ())
    view = snapshot.child_views([child])[0]
    assert (view.name, view.pid, view.state, view.restarts, view.reason) == (
        "rpc-server",
        None,
        "failed",
        2,
        "exit code 1",
    )
    tunnel = TunnelStatus(NODE.peer, "rpc", "127.0.0.1:4000", 2, 5, 6)
    assert snapshot.tunnel_views([tunnel])[0].peer == str(NODE.peer)


def test_tunnels_and_services_carry_the_names_of_peers() -> None:
    tunnel = TunnelStatus(NODE.peer, "web", "127.0.0.1:1", 1, 2, 3, user=True, last_error="gone")
    [view] = snapshot.tunnel_views([tunnel], {NODE.peer: "garage"})
    assert (view.peer_name, view.user, view.last_error) == ("garage", True, "gone")
    assert snapshot.tunnel_views([tunnel])[0].peer_name == ""
    service = ExposedStatus("web", "::1", 80, (NODE.peer, ROOT.peer), 1, 2, 3)
    shown = snapshot.exposed_view(service, {NODE.peer: "garage"})
    assert (shown.target, shown.to_names) == ("[::1]:80", ("garage", ""))
    assert shown.to == (str(NODE.peer), str(ROOT.peer))
