"""native/mesh: neighbours that are handed over while the mesh-server already runs."""

import json
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import CountedPair, MeshServer
from tests.e2e.mesh_server_scene import MARKS, found_build
from tests.e2e.native_rig import DEADLINE

NEIGHBOUR, COMPLETE, LOCAL_NEIGHBOUR = 1, 2, 3
AHEAD = 8  # pieces that are read before neighbours are complete
pytestmark = MARKS


@contextmanager
def _running(folder: Path) -> Iterator[tuple[MeshServer, socket.socket, socket.socket]]:
    """A server, its head's end, and its parent's end. It has one neighbour from the start."""
    pair = CountedPair()
    parent, arrivals = socket.socketpair()
    lone, end = socket.socketpair()
    with (
        closing(pair),
        parent,
        lone,
        MeshServer(found_build(), folder, pair, neighbours={7: end}, arrivals=arrivals) as server,
    ):
        pair.head.settimeout(DEADLINE)
        yield server, pair.head, parent


def _hello() -> bytes:
    said = subprocess.run([found_build().server, "--describe"], capture_output=True, check=True).stdout
    release: str = json.loads(said)["ggml"]
    body = wire.MESSAGES[wire.HELLO].body.pack(wire.VERSION) + release.encode()
    return wire.HEADER.pack(len(body), wire.HELLO, 0, 1) + body


def _answer(head: socket.socket, wanted: int, request: int) -> bytes:
    """The body of the next answer, which is of this kind, to this request."""
    with head.makefile("rb", buffering=0) as stream:
        size, number, _zero, identity = wire.HEADER.unpack(stream.read(wire.HEADER.size))
        assert (number, identity) == (wanted, request)
        return stream.read(size) or b""


@pytest.mark.parametrize("said", [True, False])
def test_the_head_is_welcomed_before_neighbours_are_complete(said: bool, tmp_path: Path) -> None:
    """It hears of them when they are, and what it asks is read meanwhile, more than any socket holds."""
    with _running(tmp_path) as (_server, head, parent):
        head.sendall(_hello())
        assert _answer(head, wire.WELCOME, 1)
        head.sendall(wire.HEADER.pack(0, wire.MEET, 0, 2))
        data = wire.MESSAGES[wire.WRITE].body.pack(9, 0, 0) + bytes(wire.PIECE_BYTES)
        for number in range(AHEAD):
            head.sendall(wire.HEADER.pack(len(data), wire.WRITE, 0, 3 + number) + data)
        for kind, number in ((NEIGHBOUR, 0), (LOCAL_NEIGHBOUR, 15)):
            lone, end = socket.socketpair()
            with lone, end:
                socket.send_fds(parent, [struct.pack("<II", kind, number)], [end.fileno()])
        if said:
            parent.sendall(struct.pack("<II", COMPLETE, 0))
        else:
            parent.close()
        assert struct.unpack("<3I", _answer(head, wire.MET, 2)) == (0, 7, 15)


@pytest.mark.parametrize(
    ("words", "descriptors", "why"),
    [
        ((NEIGHBOUR, 3), 0, "message 1 has 0 descriptors instead of 1"),
        ((NEIGHBOUR, 3), 2, "message 1 has 2 descriptors instead of 1"),
        ((NEIGHBOUR, 3), 100, "a message has more than one descriptor"),
        ((NEIGHBOUR, wire.NEIGHBOURS), 1, "neighbour 16 cannot be"),
        ((NEIGHBOUR, 7), 1, "neighbour 7 is there twice"),
        ((COMPLETE, 0), 1, "message 2 has 1 descriptors instead of 0"),
        ((LOCAL_NEIGHBOUR, 3), 0, "message 3 has 0 descriptors instead of 1"),
        ((LOCAL_NEIGHBOUR, 7), 1, "neighbour 7 is there twice"),
        ((5, 0), 0, "there is no message 5"),
    ],
)
def test_a_parent_that_hands_over_something_else_ends_the_server(
    words: tuple[int, int], descriptors: int, why: str, tmp_path: Path
) -> None:
    with _running(tmp_path) as (server, _head, parent):
        lone, end = socket.socketpair()
        with lone, end:
            socket.send_fds(parent, [struct.pack("<II", *words)], [end.fileno()] * descriptors)
            assert server.process.wait(DEADLINE) == 2
        assert server.output == f"mesh-server: --neighbours-fd: {why}\n"


def test_a_head_that_goes_before_neighbours_are_complete_ends_the_server(tmp_path: Path) -> None:
    with _running(tmp_path) as (server, head, _parent):
        head.sendall(_hello())
        head.close()
        assert server.process.wait(DEADLINE) == 0
