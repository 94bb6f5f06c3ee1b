"""What the roles get: who may use a tunnel without a secret, and whose the model's socket is."""

import asyncio
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from meshd.base import log
from meshd.base.listening_socket import listen_in
from meshd.base.tasks import Owner
from meshd.config import Config, LinksConfig, Paths
from meshd.daemon import role_runtime
from meshd.identity.keys import KeyPair
from meshd.peer.interface import Mesh, MetadataValue, PathStatus, PeerStatus, Stream
from meshd.process.connections import Address, ConnectionOwners
from meshd.role.interface import NativeBuild, RoleRuntime, TunnelClient, TunnelRequest
from meshd.rpc.pending_work import Outward
from meshd.rpc.protocol import PEER_SERVED
from meshd.rpc.push_firewall import Vouched
from meshd.tunnel.compressed import COMPRESSED, COMPRESSED_VERSION
from meshd.tunnel.forward import Forward
from meshd.tunnel.pump import Unwatched
from meshd.wire.native import NativeVersion

from tests.conformance.run import run
from tests.unit.admin.test_snapshot import NODE, path, peer
from tests.unit.rpc import talk
from tests.unit.tunnel.far import FarMesh

OTHER = KeyPair.from_seed(bytes(31) + b"o")
SECRET = bytes(range(32))
NATIVE = NativeBuild(
    Path("rpc-server"),
    Path("llama-server"),
    True,
    NativeVersion(rpc="7.0.0", pin="0" * 40, patches="0" * 64, backend="cpu"),
)
HERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


def runtime(home: Path, mesh: object) -> RoleRuntime:
    return role_runtime.make_runtime(Config(paths=Paths(home=home, cache=home)), cast(Mesh, mesh), NATIVE)


class Telling(ConnectionOwners):
    """A system that says the same of every connection."""

    def __init__(self, told: bool | None) -> None:
        super().__init__()
        self._told = told

    async def process_has(self, pid: int, client: Address, server: Address) -> bool | None:
        return self._told


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "meshd.log"
    log.set_up(file=file)
    role_runtime._warn_owner_unknown.cache_clear()
    yield file
    log.set_up(level="warning")


@pytest.mark.parametrize(("told", "taken"), [(True, True), (False, False), (None, True)])
def test_a_system_that_does_not_tell_is_named_once(logged: Path, told: bool | None, taken: bool) -> None:
    async def ask() -> None:
        for _ in range(2):
            owned_by_child = role_runtime._owned_by(lambda: 1, Telling(told))
            assert [await owned_by_child(*HERE) for _ in range(3)] == [taken] * 3

    asyncio.run(ask())
    text = logged.read_text() if logged.exists() else ""
    assert text.count("tunnel_owner_unknown") == (told is None)


def test_without_a_child_no_connection_is_its_own() -> None:
    async def ask() -> bool:
        return await role_runtime._owned_by(lambda: None, Telling(True))(*HERE)

    assert asyncio.run(ask()) is False


def test_the_models_socket_is_closed_to_others() -> None:
    async def ready(place: Path) -> bool:
        return await role_runtime._answers(place)()

    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        place = Path(folder) / "s"
        assert asyncio.run(ready(place)) is False
        server.bind(str(place))
        place.chmod(0o755)
        assert asyncio.run(ready(place)) is False
        assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_what_is_ours_talks_over_unix_sockets_and_a_stock_program_over_tcp() -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        stale, _ = listen_in(home)
        stale.close()
        made = runtime(home, OnePath())
        assert list(home.iterdir()) == [], "of a daemon that was killed"
        for secret in (bytes(32), b""):
            tunnel = made.tunnels.open(
                TunnelRequest(
                    peer=OTHER.peer,
                    service="rpc",
                    metadata={},
                    client=TunnelClient(secret, owner_pid=lambda: 1),
                    on_broken=lambda _error: None,
                )
            )
            assert tunnel.endpoint.startswith("unix:rpc" if secret else "127.0.0.1:")
            tunnel.close()
        number, place = made.processes.unix_listener()
        with socket.socket(fileno=number) as sock:
            assert sock.getsockname() == str(place)


@pytest.mark.parametrize(("takes", "expected"), [(0, {}), (COMPRESSED_VERSION, COMPRESSED)])
def test_a_joined_client_gets_a_tunnel_that_listens_nowhere(
    takes: int, expected: Mapping[str, MetadataValue]
) -> None:
    async def main() -> None:
        opened: list[Stream] = []
        mesh = FarMesh(opened.append)
        ours, child = socket.socketpair()
        with tempfile.TemporaryDirectory() as home, child:
            links = LinksConfig(compress="on")
            config = Config(paths=Paths(home=Path(home), cache=Path(home)), links=links)
            tunnel = role_runtime.make_runtime(config, cast(Mesh, mesh), NATIVE).tunnels.open(
                TunnelRequest(
                    peer=OTHER.peer,
                    service="rpc",
                    metadata={"lease": b"1"},
                    client=TunnelClient(joined=ours),
                    on_broken=lambda _error: None,
                    compressed=takes,
                    endpoint="4",
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

    run(main())


def test_who_watches_a_tunnel_is_asked_for_each_connection() -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        made = runtime(home, OnePath())
        watcher = Unwatched()
        tunnel = made.tunnels.open(
            TunnelRequest(
                peer=OTHER.peer,
                service="rpc",
                metadata={},
                client=TunnelClient(bytes(32)),
                on_broken=lambda _error: None,
                watch=lambda: nullcontext(watcher),
            )
        )
        assert isinstance(tunnel, Forward)
        with tunnel._watch() as watched:
            assert watched is watcher
        tunnel.close()


def test_a_server_that_pushes_is_answered_before_its_neighbour_can() -> None:
    """The neighbour here says nothing until its session was greeted, and then only what is known already."""
    greeted, said = asyncio.Event(), talk.peer_hello() + talk.peer_data()

    async def neighbour(stream: Stream) -> None:
        await greeted.wait()
        heard = b""
        while len(heard) < len(said):
            heard += bytes(await stream.read())
        assert heard == said
        await stream.write(PEER_SERVED)
        stream.write_eof()

    async def main(home: Path) -> None:
        pushed: list[int] = []
        async with Owner() as owner:

            def take(far: Stream) -> None:
                owner.start(neighbour(far), name="neighbour")

            mesh = FarMesh(take)
            made = runtime(home, mesh)
            tunnel = made.tunnels.open(
                TunnelRequest(
                    peer=OTHER.peer,
                    service="push",
                    metadata={},
                    client=TunnelClient(SECRET),
                    on_broken=lambda error: pytest.fail(error.what),
                    watch=lambda: nullcontext(Vouched(Outward(pushed.append))),
                    greeting=PEER_SERVED,
                )
            )
            owner.start(tunnel.serve(), name="tunnel")
            place = home / tunnel.endpoint.removeprefix("unix:")
            reader, writer = await asyncio.open_unix_connection(place)
            writer.write(SECRET + said)
            assert await reader.readexactly(len(PEER_SERVED)) == PEER_SERVED
            greeted.set()
            assert await reader.read() == b"", "and is not answered twice"
            assert pushed == [77]
            writer.close()
            await writer.wait_closed()
            owner.cancel()

    with tempfile.TemporaryDirectory() as name:
        run(main(Path(name)))


class OnePath:
    """As much of a mesh as is asked: peers and their paths."""

    def __init__(self, *paths: PathStatus) -> None:
        self._peer = peer(*paths)

    def peers(self) -> list[PeerStatus]:
        return [self._peer]


@pytest.mark.parametrize(
    ("setting", "always", "rtt", "expected"),
    [
        ("auto", False, 0.02, True),
        ("auto", False, 0.0004, False),
        ("auto", True, 0.0004, True),
        ("on", False, 0.0004, True),
        ("off", False, 0.02, False),
        ("off", True, 0.02, False),
    ],
)
def test_a_tunnel_is_compressed_by_the_settings_then_by_the_path(
    setting: str, always: bool, rtt: float, expected: bool
) -> None:
    mesh = cast(Mesh, OnePath(replace(path(selected=True), rtt=rtt)))
    assert role_runtime._compresses(setting, mesh, NODE.peer, always=always) is expected
    assert not role_runtime._compresses("auto", mesh, OTHER.peer, always=False)
