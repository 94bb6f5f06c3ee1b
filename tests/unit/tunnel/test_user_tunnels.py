"""Tunnels of users: only named nodes get in, kept ones come back, and closing is immediate."""

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.admission import Release
from meshd.base.errors import Broken, MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.peer_limits import TUNNELLED, TUNNELLED_OF_PEER
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.keys import PeerId
from meshd.identity.membership import check_chain
from meshd.mux.events import Code
from meshd.peer.interface import Allow, Handler, MetadataValue, Stream
from meshd.peer.streams import MeshStream
from meshd.tunnel import user_tunnels
from meshd.tunnel import user_tunnels as module
from meshd.tunnel.pump import Counter
from meshd.tunnel.user_tunnels import (
    MAX_ALLOWED_PEERS,
    MAX_CLIENTS,
    MAX_EXPOSED,
    TUNNEL_SERVICE,
    Exposed,
    Forward,
    Kept,
    Opened,
    OwnTunnels,
    check_name,
    connect_through,
    is_name,
    unique,
)
from meshd.wire.message import Value, pack

from tests.conformance.run import run, ticks, until
from tests.unit.identity.cast import GUEST, GUEST_CHAIN, MESH, WORKER, WORKER_CHAIN
from tests.unit.tunnel.far import PEER, FarMesh, Port, echoing, streams

ME = check_chain(WORKER_CHAIN, MESH, WORKER.peer)
THEM = GUEST.peer
OTHER = check_chain(GUEST_CHAIN, MESH, GUEST.peer)
peers = st.binary(min_size=32, max_size=32).map(PeerId)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
hosts = st.sampled_from(["127.0.0.1", "::1", "nas.lan"])
exposed = st.builds(
    Exposed,
    name=names,
    host=hosts,
    port=st.integers(1, 65535),
    peers=st.lists(peers, max_size=4, unique=True).map(tuple),
)
opened = st.builds(Opened, peer=peers, service=names, host=hosts, port=st.integers(0, 65535))


class Serving(FarMesh):
    """A mesh that takes services, and opens streams to those of another one."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(lambda _stream: None)
        self.owner = owner
        self.services: dict[str, tuple[Handler, Allow]] = {}
        self.far: Serving | None = None
        self.bulk: list[bool] = []

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        self.services[service] = handler, allow

    def begin(
        self, far: MeshStream, metadata: Mapping[str, MetadataValue], release: Release | None = None
    ) -> None:
        """A stream that was let in is served."""
        assert self.far is not None
        handler, _ = self.far.services[TUNNEL_SERVICE]

        async def serve() -> None:
            await handler(Named(far, WORKER.peer, metadata))

        task = self.owner.start(serve(), name="far handler")
        if release is not None:
            task.add_done_callback(lambda _: release())

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        if self.far is None:
            raise Broken("no session to the peer")
        self.opened.append((peer, service, metadata))
        self.bulk.append(bulk)
        _, allow = self.far.services[service]
        near, far, _, _ = streams()
        why = allow(ME, metadata)
        if isinstance(why, str):
            near = MeshStream(
                port=Port(window=0, most=1),
                wake=lambda: None,
                pass_on=lambda _id, _data: False,
                on_done=lambda _id: None,
                stream_id=1,
                peer=peer,
                service=service,
                metadata=metadata,
            )
            near.feed_reset(Code.REFUSED, why)
            return near
        self.begin(far, metadata, why)
        return near


class Named:
    """A stream that says whose it is; all else is the stream's own."""

    def __init__(self, stream: MeshStream, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> None:
        self.peer = peer
        self.service = TUNNEL_SERVICE
        self.metadata = metadata
        self.accepted, self.read, self.divert = stream.accepted, stream.read, stream.divert
        self.try_write, self.consumed, self.write = stream.try_write, stream.consumed, stream.write
        self.write_eof, self.reset = stream.write_eof, stream.reset


class Both:
    """This node, which opens, and the other one, which exposes; and a service that answers in capitals."""

    def __init__(self, owner: Owner, port: int) -> None:
        self.port = port
        self.saved: list[bytes] = []
        self.near_mesh, self.far_mesh = Serving(owner), Serving(owner)
        self.near_mesh.far = self.far_mesh
        self.near = OwnTunnels(mesh=self.near_mesh, save=self.saved.append, owned_by_user=self.owned_by_user)
        self.far = OwnTunnels(mesh=self.far_mesh, save=self.saved.append)
        self.ours, self.asked = True, list[tuple[str, int]]()
        self.tasks = [owner.start(one.serve(), name="tunnels") for one in (self.near, self.far)]

    async def owned_by_user(self, client: tuple[str, int], server: tuple[str, int]) -> bool:
        assert client[0] == "127.0.0.1" and client[1] != server[1]
        self.asked.append(server)
        return self.ours

    def expose(self, name: str = "web", *peers: PeerId) -> None:
        self.far.expose(name, host="127.0.0.1", port=self.port, peers=peers or [WORKER.peer])

    async def ask(self, listen: str, data: bytes = b"hello") -> bytes:
        """Return what the service answers; empty when the connection is reset."""
        host, _, port = listen.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            writer.write_eof()
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.transport.abort()


@asynccontextmanager
async def both() -> AsyncIterator[Both]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data.upper())
        except ConnectionResetError:
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with Owner() as owner:
            made = Both(owner, server.sockets[0].getsockname()[1])
            await ticks(2)  # both serve
            yield made
            owner.cancel()
    finally:
        server.close()
        await server.wait_closed()


async def test_a_node_that_is_named_uses_the_service() -> None:
    async with both() as it:
        it.expose()
        status = await it.near.open(THEM, "web", host="127.0.0.1", port=0)
        assert status.user and status.listen.startswith("127.0.0.1:")
        assert await it.ask(status.listen) == b"HELLO"
        assert it.near_mesh.opened[-1] == (THEM, TUNNEL_SERVICE, {"name": "web"})
        assert it.near_mesh.bulk[-1]  # the model's own traffic goes first
        await until(lambda: it.far.exposed()[0].streams == 0)
        [shown], [service] = it.near.opened(), it.far.exposed()
        assert (shown.sent_bytes, shown.received_bytes) == (5, 5)
        assert (service.sent_bytes, service.received_bytes) == (5, 5)


async def test_who_is_not_named_hears_what_it_would_of_no_service_at_all() -> None:
    async with both() as it:
        it.expose("web", THEM)  # somebody else
        it.expose("nobody")
        it.far.expose("nobody", host="127.0.0.1", port=it.port, peers=[])
        for name in ("web", "nobody", "missing"):
            with pytest.raises(Refused) as caught:
                await it.near.open(THEM, name, host="127.0.0.1", port=0)
            assert caught.value.what.startswith(f"no service `{name}` is exposed to this node")
        assert it.near.opened() == []


async def test_a_name_of_meshd_itself_is_no_service() -> None:
    async with both() as it:
        with pytest.raises(Refused):
            await it.near.open(THEM, "rpc", host="127.0.0.1", port=0)
        assert set(it.far_mesh.services) == {TUNNEL_SERVICE}


async def test_connections_end_when_the_service_or_the_permission_does() -> None:
    async with both() as it:
        it.expose()
        status = await it.near.open(THEM, "web", host="127.0.0.1", port=0)
        for end in (
            lambda: it.far.unexpose("web"),
            lambda: it.far.expose("web", host="127.0.0.1", port=it.port, peers=[THEM]),
            lambda: it.far.expose("web", host="127.0.0.1", port=1, peers=[WORKER.peer]),
        ):
            it.expose()
            reader, writer = await asyncio.open_connection("127.0.0.1", int(status.listen[10:]))
            writer.write(b"x")
            assert await reader.read(1) == b"X"
            it.expose()  # the same again: it goes on
            writer.write(b"y")
            assert await reader.read(1) == b"Y"
            end()
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.transport.abort()
        assert "not exposed" in it.near.opened()[0].last_error


async def test_another_target_leaves_it_as_it_is_who_may() -> None:
    async with both() as it:
        assert it.far.expose("web", host="127.0.0.1", port=1, peers=None).peers == ()
        it.expose()
        moved = it.far.expose("web", host="127.0.0.1", port=1, peers=None)
        assert (moved.port, moved.peers) == (1, (WORKER.peer,))


async def test_programs_of_another_user_stay_out() -> None:
    async with both() as it:
        it.expose()
        status = await it.near.open(THEM, "web", host="127.0.0.1", port=0)
        it.ours = False
        opened = len(it.near_mesh.opened)
        assert await it.ask(status.listen) == b""
        assert it.asked == [("127.0.0.1", int(status.listen[10:]))]
        assert len(it.near_mesh.opened) == opened
        wide = await it.near.open(THEM, "web", host="0.0.0.0", port=0)  # asked for: nobody is asked
        assert await it.ask(wide.listen.replace("0.0.0.0", "127.0.0.1")) == b"HELLO"


async def test_all_of_it_comes_back_after_a_restart() -> None:
    async with both() as it:
        it.expose("web", WORKER.peer, THEM)
        exposed = it.saved[-1]
        status = await it.near.open(THEM, "web", host="127.0.0.1", port=0)
        opened = it.saved[-1]
        for task in it.tasks:
            task.cancel()
        await asyncio.wait(it.tasks)
        again = Both(it.near_mesh.owner, it.port)
        again.far.load(exposed, file="f")
        assert again.far.exposed()[0].peers == (WORKER.peer, THEM)
        again.near.load(opened, file="f")
        assert [one.listen for one in again.near.opened()] == [status.listen]
        await ticks(2)
        assert await again.ask(status.listen) == b"HELLO"


async def test_a_damaged_file_is_named() -> None:
    async with both() as it:
        with pytest.raises(UserError, match=r"`/h/tunnels\.blob` cannot be read"):
            it.near.load(b"no", file="/h/tunnels.blob")


async def test_a_peer_that_is_away_is_opened_and_said_later() -> None:
    async with both() as it:
        it.near_mesh.far = None
        status = await it.near.open(THEM, "web", host="127.0.0.1", port=0)
        assert await it.ask(status.listen) == b""
        assert it.near.opened()[0].last_error == "no session to the peer"
        it.near_mesh.far = it.far_mesh
        it.expose()
        assert await it.ask(status.listen) == b"HELLO"


async def test_the_same_tunnel_is_opened_once_and_closed() -> None:
    async with both() as it:
        it.expose()
        status = await it.near.open(THEM, "web", host="127.0.0.1", port=0)
        port = int(status.listen[10:])
        for same in (0, port):
            assert await it.near.open(THEM, "web", host="127.0.0.1", port=same) == status
        await it.near.close([status])
        assert it.near.opened() == []
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


async def test_a_port_that_is_taken_is_named() -> None:
    async with both() as it:
        it.expose()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(UserError, match=f"`127.0.0.1:{port}` for a tunnel: the port is taken"):
                await it.near.open(THEM, "web", host="127.0.0.1", port=port)
            assert it.near.opened() == []
        await it.near.open(THEM, "web", host="127.0.0.1", port=port)


async def test_a_port_that_is_taken_at_the_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_tunnels, "_AGAIN_SECONDS", 0.01)
    async with both() as it:
        it.expose()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            kept = Opened(peer=THEM, service="web", host="127.0.0.1", port=port)
            again = Both(it.near_mesh.owner, it.port)
            again.near.load(Kept((), (kept,)).encode(), file="f")
            again.near_mesh.far = it.far_mesh
            await until(lambda: "the port is taken" in again.near.opened()[0].last_error)
        await until(lambda: again.near.opened()[0].last_error == "")
        assert await it.ask(f"127.0.0.1:{port}") == b"HELLO"


async def test_connections_to_a_service_are_counted() -> None:
    async with both() as it:
        it.expose()
        _, allow = it.far_mesh.services[TUNNEL_SERVICE]
        it.far.expose("web", host="127.0.0.1", port=it.port, peers=[WORKER.peer, GUEST.peer])
        asked = [allow(ME, {"name": "web"}) for _ in range(2 * TUNNELLED.most)]  # before any is served
        let_in = [release for release in asked if callable(release)]
        assert len(let_in) == TUNNELLED_OF_PEER.most
        assert asked[-1] == "`web` has its maximum number of connections"
        assert callable(allow(OTHER, {"name": "web"}))  # one peer does not keep out another
        for release in let_in:
            it.near_mesh.begin(streams()[1], {"name": "web"}, release)
        await until(lambda: it.far.exposed()[0].streams == TUNNELLED_OF_PEER.most)
        it.far.unexpose("web")  # ends them
        it.expose()
        await until(lambda: callable(allow(ME, {"name": "web"})))


async def test_what_is_not_there_cannot_be_ended() -> None:
    async with both() as it:
        with pytest.raises(UserError, match="no service `web` is exposed"):
            it.far.unexpose("web")


@given(st.lists(exposed, max_size=4).map(tuple), st.lists(opened, max_size=4).map(tuple))
def test_what_is_kept_is_read_again(these: tuple[Exposed, ...], those: tuple[Opened, ...]) -> None:
    kept = Kept(these, those)
    assert Kept.decode(kept.encode()) == kept


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        Kept.decode(data)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize(
    "damage",
    [
        {"name": "../up"},
        {"name": ""},
        {"port": 0},
        {"port": 65536},
        {"peers": [b"short"]},
        {"peers": [bytes(32)] * (MAX_ALLOWED_PEERS + 1)},
        {"host": "h" * 300},
    ],
)
def test_a_damaged_service_is_refused(damage: dict[str, Value]) -> None:
    good: dict[str, Value] = {"name": "web", "host": "127.0.0.1", "port": 80, "peers": [bytes(32)]}
    assert Kept.decode(pack({"exposed": [good], "opened": []})).exposed[0].name == "web"
    with pytest.raises(RemoteProtocolError):
        Kept.decode(pack({"exposed": [{**good, **damage}], "opened": []}))
    with pytest.raises(RemoteProtocolError):
        Kept.decode(pack({"exposed": [good] * (MAX_EXPOSED + 1), "opened": []}))


@pytest.mark.parametrize("text", ["", ".web", "-x", "a b", "ä", "a" * 64, "a/b", "a\n"])
def test_what_is_no_name(text: str) -> None:
    assert not is_name(text)
    with pytest.raises(UserError, match="cannot be the name of a service"):
        check_name(text)


def test_a_node_counts_once_and_few_are_named() -> None:
    one, two = PeerId(b"1" * 32), PeerId(b"2" * 32)
    assert unique([one, two, one]) == (one, two)
    with pytest.raises(UserError, match="can be exposed to"):
        unique(PeerId(number.to_bytes(32, "big")) for number in range(MAX_ALLOWED_PEERS + 1))


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Tunnel:
    """A forward that runs, and the far ends of its streams."""

    def __init__(self, owner: Owner, mesh: FarMesh, forward: Forward, broken: list[MeshdError]) -> None:
        self.owner = owner
        self.mesh = mesh
        self.forward = forward
        self.broken = broken
        self._open: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.forward.port)
        self._open.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        for writer in self._open:
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def tunnel() -> AsyncIterator[Tunnel]:
    broken: list[MeshdError] = []
    async with Owner() as owner:
        mesh = echoing(owner)
        forward = Forward(
            mesh=mesh,
            peer=PEER,
            service="web",
            listen=("127.0.0.1", 0),
            owner_check=None,
            on_broken=broken.append,
        )
        owner.start(forward.serve(), name="forward")
        made = Tunnel(owner, mesh, forward, broken)
        try:
            yield made
        finally:
            await made.close()
            owner.cancel()


async def is_reset(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b"impossible"
    except ConnectionResetError:
        return True


async def test_more_connections_than_there_may_be_are_closed() -> None:
    async with tunnel() as it:
        for _ in range(MAX_CLIENTS):
            await it.connect()
        await until(lambda: it.forward.streams == MAX_CLIENTS)
        reader, _ = await it.connect()
        assert await reader.read() == b""
        assert len(it.mesh.opened) == MAX_CLIENTS


async def test_no_descriptor_left_is_a_pause_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NO_ROOM_SECONDS", 0.01)

    loop = asyncio.get_running_loop()
    accept = loop.sock_accept
    failures = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()]

    async def failing(sock: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", failing)
    async with tunnel() as it:
        reader, writer = await it.connect()
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hello"
        assert not failures


async def test_a_reset_of_the_client_reaches_the_peer() -> None:
    async with tunnel() as it:
        reader, writer = await it.connect()
        writer.write(b"hello")
        await reader.readexactly(5)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await until(lambda: len(it.broken) == 1)
        assert "local connection lost" in it.broken[0].what


async def test_its_end_ends_every_connection_even_one_just_taken() -> None:
    for turns in range(12):
        async with tunnel() as it:
            reader, _ = await it.connect()
            for _ in range(turns):
                await asyncio.sleep(0)
        assert await is_reset(reader) or reader.at_eof()


async def with_target(serve: Serve, use: Callable[[int], Awaitable[None]]) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        await use(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()


def test_a_target_that_refuses_is_told() -> None:
    with socket.socket() as taken:  # bound, not listening: nobody else can be there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        async def main() -> None:
            near, far, _, _ = streams()
            await connect_through(near, ("127.0.0.1", port), counter=Counter())
            with pytest.raises(Broken) as caught:
                await far.read()
            assert caught.value.what.endswith("cannot connect to the service: connection refused")

        run(main())


def test_a_target_that_dies_resets_the_stream() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        writer.transport.abort()

    async def use(port: int) -> None:
        near, far, _, _ = streams()
        async with Owner() as owner:
            owner.start(connect_through(near, ("127.0.0.1", port), counter=Counter()), name="x")
            await far.write(b"x")
            with pytest.raises(Broken, match="local connection lost"):
                await far.read()

    run(with_target(serve, use))


def test_cancelled_at_any_turn_nothing_is_left() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionError:
            pass
        writer.close()

    async def use(port: int) -> None:
        for turns in range(12):
            near, far, _, _ = streams()
            async with Owner() as owner:
                task = owner.start(connect_through(near, ("127.0.0.1", port), counter=Counter()), name="x")
                await far.write(bytes(1000))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await cancel_and_wait(task)

    run(with_target(serve, use))
