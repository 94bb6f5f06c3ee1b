"""The programs with which tunnel.py measures the tunnel, each a separate process (`python -m` this).

`tls-near`/`tls-far`: a bare pump, client → TCP → here → TLS → there → TCP → server, without meshd.
`mesh-near`/`mesh-far`: the same path through meshd's session, link and tunnel, as the daemon builds them.
Each prints one line when it is ready and runs until its standard input ends.
"""

import asyncio
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from meshd.base import log
from meshd.base.tasks import Owner
from meshd.config.forms import HostPort
from meshd.config.tree import Config, LinksConfig, NodeConfig, Paths
from meshd.daemon.member_node import MemberNode
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.transports import enter
from meshd.identity.keystore import Home
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.secure.tls import dialer_context, listener_context
from meshd.peer.interface import PeerState, Stream
from meshd.tunnel.pump import Counter
from meshd.tunnel.user_tunnels import TUNNEL_SERVICE, Forward, connect_through
from meshd.wire.versions import NativeVersion

BENCH_SERVICE = "bench"
_READ_BYTES = 256 << 10


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # one side hung up: so does the other
    writer.close()


async def _serve_pump(
    onward: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]],
    context: ssl.SSLContext | None,
) -> None:
    async with Owner() as owner:

        async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there_reader, there_writer = await onward()
            try:
                async with Owner() as pumps:
                    pumps.start(_pump(reader, there_writer), name="out")
                    pumps.start(_pump(there_reader, writer), name="in")
            finally:
                writer.close()
                there_writer.close()

        def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            owner.start(both(reader, writer), name="connection")

        server = await asyncio.start_server(client, "127.0.0.1", 0, ssl=context, limit=_READ_BYTES)
        print_line(str(server.sockets[0].getsockname()[1]))
        async with server:
            await until_stdin_ends()
            owner.cancel()


async def tls_near(port: int) -> None:
    """Pump from TCP to TLS at `port`."""
    context = dialer_context()
    await _serve_pump(
        lambda: asyncio.open_connection("127.0.0.1", port, ssl=context, limit=_READ_BYTES), None
    )


async def tls_far(port: int) -> None:
    """Pump from TLS to TCP at `port`."""
    context = listener_context(make_link_certificate())
    await _serve_pump(lambda: asyncio.open_connection("127.0.0.1", port, limit=_READ_BYTES), context)


async def member_at(folder: Path, role: str, token: str) -> MemberNode:
    """Make a node with its home in `folder`; it joins the mesh of the token, or founds one."""
    home = Home(folder)
    config = Config(
        node=NodeConfig(name=role, join=token),
        links=LinksConfig(listen=HostPort("127.0.0.1", 0), kinds=("tcp",)),
        paths=Paths(home=folder, cache=folder / "cache"),
    )
    mesh_port = MeshPort(asked=config.links.listen, home=home)
    key = home.load_or_create_identity()
    entered = await enter(home, key, config, role, mesh_port=mesh_port)
    return MemberNode(
        config=config,
        home=home,
        key=key,
        entered=entered,
        role=role,
        native=NativeVersion("0", "none", "none", "cpu"),
        mesh_port=mesh_port,
    )


async def mesh_far(folder: Path, port: int) -> None:
    """Run a member that exposes the local `port`, and print its token."""
    member = await member_at(folder, "far", "")

    async def handler(stream: Stream) -> None:
        await connect_through(stream, ("127.0.0.1", port), counter=Counter())

    member.mesh.handle(TUNNEL_SERVICE, handler, allow=lambda _member, _metadata: None)
    async with Owner() as owner:
        owner.start(member.serve(), name="peers")
        print_line(member.printed_token() or "")
        await until_stdin_ends()
        owner.cancel()


async def mesh_near(folder: Path, token: str) -> None:
    """Run a member with a tunnel to the far one, and print the tunnel's port."""
    member = await member_at(folder, "near", token)
    async with Owner() as owner:
        owner.start(member.serve(), name="peers")
        seen = -1
        while not any(peer.state is PeerState.CONNECTED for peer in member.mesh.peers()):
            seen = await member.mesh.changed(seen)
        forward = Forward(
            mesh=member.mesh,
            peer=member.mesh.peers()[0].peer,
            service="bench",
            listen=("127.0.0.1", 0),
            owner_check=None,
            on_broken=lambda _error: None,
        )
        owner.start(forward.serve(), name="forward")
        print_line(str(forward.port))
        await until_stdin_ends()
        owner.cancel()


def print_line(text: str) -> None:
    """Print a line to the process that started this one."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def until_stdin_ends() -> None:
    """Wait until the starter closes the pipe, or has died."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass


def main(argv: list[str]) -> None:
    """Run `tls-near PORT`, `tls-far PORT`, `mesh-far FOLDER PORT` or `mesh-near FOLDER TOKEN`."""
    log.set_up(level="error")
    match argv:
        case ["tls-near", port]:
            work = tls_near(int(port))
        case ["tls-far", port]:
            work = tls_far(int(port))
        case ["mesh-far", folder, port]:
            work = mesh_far(Path(folder), int(port))
        case ["mesh-near", folder, token]:
            work = mesh_near(Path(folder), token)
        case _:
            raise SystemExit(main.__doc__)
    asyncio.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
