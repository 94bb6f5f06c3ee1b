"""Test what the roles get: tunnels of a child, and whose the model's socket is."""

import asyncio
import socket
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from meshd.base.tasks import Owner
from meshd.config.tree import Config, LinksConfig, Paths
from meshd.daemon import role_runtime
from meshd.devices.interface import NativeBuild, TunnelRequest
from meshd.identity.keys import KeyPair
from meshd.peer.interface import Mesh, MetadataValue, PathStatus, PeerStatus, Stream
from meshd.store.hash_cache import PieceCache
from meshd.tunnel.compressed import COMPRESSED, COMPRESSED_VERSION
from meshd.tunnel.pump import Unwatched
from meshd.wire.compressed import Compression
from meshd.wire.versions import NativeVersion

from tests.unit.admin.test_snapshot import NODE, path, peer
from tests.unit.tunnel.far import FarMesh

OTHER = KeyPair.from_seed(bytes(31) + b"o")
NATIVE = NativeBuild(
    llama_server=Path("llama-server"),
    mesh_server=Path("mesh-server"),
    module=Path("libggml-mesh.so"),
    version=NativeVersion(protocol="mesh 4", pin="0" * 40, sources="0" * 12, backend="cpu"),
    plain_rpc="7.0.0",
)


def test_the_models_socket_is_closed_to_others() -> None:
    async def ready(place: Path) -> bool:
        return await role_runtime.socket_answers(place)()

    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        place = Path(folder) / "s"
        assert asyncio.run(ready(place)) is False
        server.bind(str(place))
        place.chmod(0o755)
        assert asyncio.run(ready(place)) is False
        assert stat.S_IMODE(place.stat().st_mode) == 0o600


@pytest.mark.parametrize(("takes", "expected"), [(0, {}), (COMPRESSED_VERSION, COMPRESSED)])
async def test_a_child_gets_a_tunnel_that_listens_nowhere(
    takes: int, expected: Mapping[str, MetadataValue]
) -> None:
    opened: list[Stream] = []
    mesh = FarMesh(opened.append)
    ours, child = socket.socketpair()
    with tempfile.TemporaryDirectory() as home, child:
        links = LinksConfig(compress="on")
        config = Config(paths=Paths(home=Path(home), cache=Path(home)), links=links)
        pieces = PieceCache.below(Path(home))
        runtime = role_runtime.make_runtime(config, cast(Mesh, mesh), NATIVE, pieces, gives=lambda: False)
        tunnel = runtime.tunnels.open(
            TunnelRequest(
                peer=OTHER.peer,
                service="rpc",
                metadata={"lease": b"1"},
                end=ours,
                endpoint="4",
                inspector=Unwatched(),
                on_broken=lambda _error: None,
                compressed=takes,
            )
        )
        assert (tunnel.endpoint, tunnel.status.listen) == ("4", "socketpair")
        async with Owner() as owner:
            owner.start(tunnel.serve(), name="tunnel")
            while not opened:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
            owner.cancel()
        assert mesh.opened == [(OTHER.peer, "rpc", {"lease": b"1", **expected})]
        child.settimeout(10)
        assert child.recv(1) == b"", "it is closed with the tunnel"


class OnePath:
    """As much of a mesh as is asked: peers and their paths."""

    def __init__(self, *paths: PathStatus) -> None:
        self._peer = peer(*paths)

    def peers(self) -> list[PeerStatus]:
        return [self._peer]


@pytest.mark.parametrize(
    ("setting", "always", "rtt", "expected"),
    [
        ("auto", False, 0.02, "all"),
        ("auto", False, 0.0004, "nothing"),
        ("auto", True, 0.0004, "all"),
        ("on", False, 0.0004, "all"),
        ("off", False, 0.02, "nothing"),
        ("off", True, 0.02, "nothing"),
    ],
)
def test_a_tunnel_is_compressed_by_the_settings_then_by_the_path(
    setting: str, always: bool, rtt: float, expected: str
) -> None:
    mesh = cast(Mesh, OnePath(replace(path(selected=True), rtt=rtt)))
    assert role_runtime.compression_of(setting, mesh, NODE.peer, always=always) is Compression(expected)
    none = role_runtime.compression_of("auto", mesh, OTHER.peer, always=False)
    assert none is Compression.NOTHING
