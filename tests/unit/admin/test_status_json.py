"""The JSON of `meshd status`: what programs read stays the same, key by key.

A daemon's parts say of themselves what they do in a mesh with all kinds of peers; status.json has what
scripts get of that. It changes with a decision only: `python -m tests.unit.admin.test_status_json` writes it.
"""

import json
from dataclasses import replace
from pathlib import Path

from meshd.admin import snapshot
from meshd.admin.request import from_json, to_json
from meshd.admin.status import DrainView, HealthWarning, MeshView, NodeView, Status
from meshd.identity.keys import KeyPair
from meshd.link.interface import LinkKind
from meshd.model.device_speed import ReferenceRates
from meshd.model.status import LentMemory, LentState
from meshd.peer.interface import PathStatus, PeerState, PeerStatus
from meshd.process.interface import ChildState, ChildStatus
from meshd.rendezvous.interface import MdnsStatus
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.lease import OfferedDevice
from meshd.wire.versions import NativeVersion

from tests.unit.admin.fake import full_status
from tests.unit.admin.test_snapshot import NODE, NOW, WALL, path, peer

GOLDEN = Path(__file__).with_name("status.json")
ATTIC, BARN, LOFT, SHED = (KeyPair.from_seed(bytes([seed]) * 32).peer for seed in range(1, 5))
NATIVE = NativeVersion("mesh 4", "b6789", "0123456789abcdef0123", "cpu")


def peers() -> list[PeerStatus]:
    """Return a peer in each state, over each kind of path, with all that can be said of one."""
    direct = replace(path(selected=True), rtt=0.00123456, rate=117_440_511.7, rtt_min=0.001, rtt_floor=0.0009)
    spare = path(selected=False, kind=LinkKind.RELAY, where="relayed", why="stands by")
    relayed = replace(path(selected=True, kind=LinkKind.RELAY, where="relayed"), rtt=None)
    punched = path(selected=False, kind=LinkKind.QUIC, where="punched")
    odd = path(selected=True, where="a path of a later version")
    return [
        _peer(
            NODE.peer,
            direct,
            spare,
            name="garage",
            native=NATIVE,
            faults=2,
            last_fault="a frame of 0 bytes",
            grace=120,
        ),
        _peer(
            ATTIC,
            punched,
            relayed,
            name="attic",
            why_not_direct="both NATs map each address to another port",
            paused=True,
            clock_offset=12.0,
        ),
        _peer(BARN, name="barn", state=PeerState.SUSPENDED, last_error="no answer for 8 s", grace=30),
        _peer(
            LOFT, name="loft", state=PeerState.LOST, stopped="it was stopped", says_banned="it was revoked"
        ),
        _peer(
            SHED, name="shed", state=PeerState.KNOWN, present=True, software="", gone="its process has ended"
        ),
        _peer(SHED, odd, name="hut", state=PeerState.CONNECTING, since=NOW + 1),
    ]


def _peer(id_: object, *paths: PathStatus, name: str, **others: object) -> PeerStatus:
    return replace(peer(*paths, name=name), peer=id_, **others)  # type: ignore[arg-type]


def status() -> Status:
    """Return the status of a head with these peers."""
    full, names = full_status(), {NODE.peer: "garage"}
    return Status(
        node=NodeView(
            id=str(BARN),
            name="desk",
            role="serve",
            version="0.1.0",
            pid=4242,
            uptime_s=12.3456,
            rss_bytes=50_000_000,
            listen=("192.168.1.4:17430", "[2001:db8::1]:17430"),
            home="/home/u/.local/state/meshd",
            draining=DrainView(models=0, requests=2),
        ),
        mesh=MeshView(id=str(LOFT), members=7, roles=("use", "work")),
        peers=snapshot.peer_views(peers(), now=NOW, wall=WALL, draining={"attic", "garage"}),
        tunnels=snapshot.tunnel_views(
            [
                TunnelStatus(NODE.peer, "rpc", "127.0.0.1:4000", 3, 9, 8),
                TunnelStatus(ATTIC, "web", "127.0.0.1:4001", 0, 1, 2, user=True, last_error="refused"),
            ],
            names,
        ),
        children=snapshot.child_views(
            [
                ChildStatus("llama-server", ChildState.READY, 99, 1, "it was asked for", ("a line",)),
                ChildStatus("mesh-server", ChildState.FAILED, reason="exit code 1", exit_code=1),
            ]
        ),
        model=full.model,
        models=(full.model,) if full.model is not None else (),
        api=full.api,
        mdns=MdnsStatus(state="heard", networks=("eth0", "wlan0"), members=2),
        store=full.store,
        devices=(
            snapshot.device_view(
                OfferedDevice("CUDA0", "gpu", "some card", 1 << 30, 2 << 30),
                ReferenceRates(1.5e9, 2e12),
                age=1.23456,
            ),
            snapshot.device_view(OfferedDevice("CPU", "cpu", "a CPU", 1, 2), ReferenceRates(), age=-1.0),
        ),
        storage=full.storage,
        lent=snapshot.lent_views(
            [
                LentMemory(str(NODE.peer), "SmolLM2", 5, LentState.LOADED),
                LentMemory(str(ATTIC), "x", 6, LentState.STANDBY),
            ],
            names,
        ),
        warnings=(HealthWarning(code="relayed", severity="info", what="`attic` is relayed", hint="wait"),),
    )


def test_programs_read_what_they_always_read() -> None:
    assert json.loads(json.dumps(to_json(status()))) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_a_program_of_meshd_reads_it_back() -> None:
    body = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert to_json(from_json(Status, body)) == body


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(to_json(status()), indent=2) + "\n", encoding="utf-8")
