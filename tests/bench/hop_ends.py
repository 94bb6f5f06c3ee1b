"""The processes of `python -m tests.bench.hop`; it starts this module once for each.

`near`: a member whose tunnel leads from an inherited socket to the other member, over their link or, with
`local`, over a direct connection. `far`: that member, which
joins the tunnel's stream to its own inherited socket, and reads along as it does for a lent mesh-server.
`server`: what sits there in place of a mesh-server and computes nothing: it keeps no data, and answers READ
with zeros. Near and far answer each line of their standard input with the CPU time they have used.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.local_way import LOCAL, come
from meshd.base.processes import keep_freed_memory
from meshd.base.tasks import Owner
from meshd.base.wakeful_loop import WakefulLoop
from meshd.identity.membership import Member
from meshd.peer.interface import MetadataValue, PeerState, Stream
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_lease_view import MeshLeaseView
from meshd.tunnel.joined import JoinedTunnel, join
from meshd.tunnel.pump import Unwatched

from tests.bench.endpoints import BENCH_SERVICE, member_at, print_line

BUFFER_BYTES = 64 << 20
_READ_BYTES = 1 << 20


async def _near(folder: Path, token: str, way: str, end: socket.socket) -> None:
    member = await member_at(folder, "near", token)
    async with Owner() as owner:
        owner.start(member.serve(), name="peers")
        seen = -1
        while not any(peer.state is PeerState.CONNECTED for peer in member.mesh.peers()):
            seen = await member.mesh.changed(seen)
        peer = member.mesh.peers()[0].peer
        tunnel = JoinedTunnel(
            mesh=member.mesh,
            peer=peer,
            service=BENCH_SERVICE,
            metadata={},
            end=end,
            endpoint="bench",
            inspector=Unwatched(),
            on_broken=_say,
            is_here=lambda: way == LOCAL,
        )
        owner.start(tunnel.serve(), name="tunnel")
        print_line("ready")
        await _tell_cpu_time()
        owner.cancel()


async def _far(folder: Path, end: socket.socket) -> None:
    member = await member_at(folder, "far", "")
    direct: list[socket.socket | None] = [None]

    def allow(_near: Member, metadata: Mapping[str, MetadataValue]) -> None:
        if isinstance(offered := metadata.get(LOCAL), bytes):
            direct.append(come(offered))

    async def handler(stream: Stream) -> None:
        inspector = MeshLeaseView()
        await join(stream, end, inspector=inspector, on_broken=_say, asks=True, direct=direct.pop())

    member.mesh.handle(BENCH_SERVICE, handler, allow=allow)
    async with Owner() as owner:
        owner.start(member.serve(), name="peers")
        print_line(member.printed_token() or "")
        await _tell_cpu_time()
        owner.cancel()


def _say(error: MeshdError) -> None:
    sys.stderr.write(f"{error.what}\n")


async def _tell_cpu_time() -> None:
    """Returns when the starter closes the pipe, or has died."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while await reader.readline():
        print_line(str(time.process_time_ns()))


def serve(end: socket.socket, pause: float) -> None:
    """Answer until the other end closes; `pause` is in seconds, and keeps the processor as computing does."""
    held = bytearray()
    space = memoryview(bytearray(_READ_BYTES))
    flowing = 0  # bytes of a WRITE that have not come yet
    while count := end.recv_into(space):
        skipped = min(flowing, count)
        flowing -= skipped
        held += space[skipped:count]
        at = 0
        answers: list[bytes | memoryview] = []
        while len(held) - at >= wire.HEADER.size:
            size, kind, _zero, identity = wire.HEADER.unpack_from(held, at)
            whole = wire.HEADER.size + size
            if kind == wire.WRITE:
                flowing = max(0, at + whole - len(held))
            elif len(held) - at < whole:
                break
            answers += _answer(kind, identity, held, at + wire.HEADER.size)
            at += whole
        del held[:at]
        if answers:
            until = time.perf_counter() + pause
            while time.perf_counter() < until:
                pass
        for answer in answers:
            end.sendall(answer)


def _answer(kind: int, identity: int, data: bytearray, at: int) -> list[bytes | memoryview]:
    match kind:
        case wire.HELLO:
            device = wire.DEVICE.pack(b"BENCH", b"", 0, 64, BUFFER_BYTES, BUFFER_BYTES, BUFFER_BYTES, 0, 1, 0)
            body = wire.MESSAGES[wire.WELCOME].body.pack(wire.VERSION, 1, 0, 0) + device
            return [message(wire.WELCOME, identity, body)]
        case wire.ALLOCATE:
            return [message(wire.ALLOCATED, identity, wire.MESSAGES[wire.ALLOCATED].body.pack(1))]
        case wire.READ:
            _buffer, size, *_rest = wire.MESSAGES[wire.READ].body.unpack_from(data, at)
            return [message(wire.DATA, identity, bytes(size))]
        case wire.MEET:
            return [message(wire.MET, identity, b"")]
        case wire.SYNC:
            return [message(wire.SYNCED, identity, b"")]
        case _:
            return []


def message(kind: int, identity: int, body: bytes) -> bytes:
    """A whole message."""
    return wire.HEADER.pack(len(body), kind, 0, identity) + body


def _run(work: Coroutine[object, object, None]) -> None:
    keep_freed_memory()
    with asyncio.Runner(loop_factory=WakefulLoop) as runner:
        runner.run(work)


def main(argv: list[str]) -> None:
    """`near FOLDER TOKEN WAY FD`, `far FOLDER FD`, `server SECONDS FD`; FD is an inherited socket."""
    log.set_up(level="error")
    end = socket.socket(fileno=int(argv[-1]))
    match argv:
        case ["near", folder, token, way, _]:
            _run(_near(Path(folder), token, way, end))
        case ["far", folder, _]:
            _run(_far(Path(folder), end))
        case ["server", pause, _]:
            serve(end, float(pause))
        case _:
            raise SystemExit(main.__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
