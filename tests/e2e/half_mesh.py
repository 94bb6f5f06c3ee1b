"""A mesh-server that does not do what it should: a real one behind a thread that changes what it says.

Started as a program it is a `mesh-server` for meshd, with the descriptors of docs/native-backend.md; see
`install`.
"""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from meshd.build.interface import MESH_PROGRAM
from meshd.build.native import folder_of_ours
from meshd.rpc import mesh_protocol as wire

from tests.e2e.models import cache_folder

STAMP = "stamp.json"
NO_MEMORY = "no-memory"
CRASHES = "crashes"
_ROOT = Path(__file__).resolve().parents[2]


def _without_memory(kind: int, body: bytes) -> bytes:
    """Each buffer is refused."""
    return wire.MESSAGES[kind].body.pack(0) if kind == wire.ALLOCATED else body


def _crash(kind: int, body: bytes) -> bytes:
    """In the middle of a load."""
    if kind == wire.ALLOCATED:
        os.abort()
    return body


_CHANGES: dict[str, Callable[[int, bytes], bytes]] = {
    NO_MEMORY: _without_memory,
    CRASHES: _crash,
}


def install(folder: Path, program: str) -> Path:
    """A cache for one node, with the shared native builds, and this text of a program as its mesh-server."""
    shared = cache_folder() / "native"
    bin_dir = folder_of_ours(cache_folder())
    build = bin_dir.parent
    mine = folder / "native"
    mine_bin = mine / build.name / bin_dir.name
    mine_bin.mkdir(parents=True)
    for path in shared.iterdir():
        if path.name not in (build.name, "lock"):
            (mine / path.name).symlink_to(path)
    for path in bin_dir.iterdir():
        if path.name != MESH_PROGRAM:
            (mine_bin / path.name).symlink_to(path)
    made = mine_bin / MESH_PROGRAM
    made.write_text(program)
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    stamp = json.loads((build / STAMP).read_text())
    stamp["binaries"][MESH_PROGRAM] = made.stat().st_size
    (mine / build.name / STAMP).write_text(json.dumps(stamp))
    return folder


def real_program() -> Path:
    return folder_of_ours(cache_folder()) / MESH_PROGRAM


def half(what: str) -> str:
    """A program for `install` that does this to what a real one says."""
    start = f"PYTHONPATH='{_ROOT}' exec '{sys.executable}' -m {__name__} '{real_program()}' {what}"
    return f'#!/bin/sh\n{start} "$@"\n'


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one of them is gone, as the other thread finds


def _change(source: socket.socket, target: socket.socket, change: Callable[[int, bytes], bytes]) -> None:
    with source.makefile("rb") as stream:
        while header := stream.read(wire.HEADER.size):
            size, kind, zero, identity = wire.HEADER.unpack(header)
            body = change(kind, stream.read(size))
            target.sendall(wire.HEADER.pack(len(body), kind, zero, identity) + body)


def main(real: str, what: str, *argv: str) -> None:
    arguments = list(argv)
    if "--fd" not in arguments:
        os.execv(real, [real, *arguments])
    at = arguments.index("--fd") + 1
    head = socket.socket(fileno=int(arguments[at]))
    ours, theirs = socket.socketpair()
    theirs.set_inheritable(True)
    head.set_inheritable(False)
    arguments[at] = str(theirs.fileno())
    server = subprocess.Popen([real, *arguments], close_fds=False)
    theirs.close()
    threading.Thread(target=_pass_on, args=(head, ours), daemon=True).start()
    try:
        _change(ours, head, _CHANGES[what])
    except OSError:
        pass  # the head is gone
    head.close()
    sys.exit(server.wait())


if __name__ == "__main__":
    main(*sys.argv[1:])
