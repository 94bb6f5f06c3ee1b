"""A service of a node that sends back what it gets, and its user."""

from meshd.base.errors import EndOfStream
from meshd.peer.interface import Stream

from tests.sim.world import WorldNode


async def echo(stream: Stream) -> None:
    """Send back what comes, until its end."""
    try:
        while True:
            data = bytes(await stream.read())
            await stream.write(data)
            stream.consumed(len(data))
    except EndOfStream:
        stream.write_eof()


def serve_echo(node: WorldNode) -> None:
    """A service that sends back what it gets."""
    node.mesh.handle("echo", echo, allow=lambda _member, _metadata: None)


async def exchange(stream: Stream, data: bytes) -> bytes:
    """Send it and read as much back."""
    await stream.write(data)
    back = b""
    while len(back) < len(data):
        chunk = await stream.read()
        back += chunk
        stream.consumed(len(chunk))
    return back
