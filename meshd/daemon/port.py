"""Which mesh port: the one asked for, else the one this node had before, else the first free of sixteen.

A token and every record name this port, so a node keeps it (docs/cli.md). A taken port that was asked for
or kept is an error that names its holder; nobody must find another program there.
"""

from collections.abc import Callable

from meshd.config import DEFAULT_MESH_PORT, MESH_PORT_TRIES, HostPort
from meshd.identity.keystore import PORT_BLOB, Home
from meshd.link.listening import PortTaken
from meshd.link.tcp import TcpListener


def open_listener(
    make: Callable[[str, int], TcpListener], *, asked: HostPort | None, home: Home
) -> TcpListener:
    """A listener that is bound. Raises UserError (PortTaken)."""
    host = asked.host if asked is not None else ""
    kept = _kept(home)
    if asked is not None and asked.port:
        return _open(make, host, asked.port)
    if asked is not None:  # port 0: any, but rather the one that others know
        try:
            return _keep(home, _open(make, host, kept))
        except PortTaken:
            return _keep(home, _open(make, host, 0))
    if kept:
        return _open(make, host, kept)
    for port in range(DEFAULT_MESH_PORT, DEFAULT_MESH_PORT + MESH_PORT_TRIES - 1):
        try:
            return _keep(home, _open(make, host, port))
        except PortTaken:
            continue
    return _keep(home, _open(make, host, DEFAULT_MESH_PORT + MESH_PORT_TRIES - 1))


def _open(make: Callable[[str, int], TcpListener], host: str, port: int) -> TcpListener:
    listener = make(host, port)
    listener.open()
    return listener


def _kept(home: Home) -> int:
    blob = home.read_blob(PORT_BLOB) or b""
    return int(blob) if blob.isdigit() and len(blob) <= 5 and int(blob) < 65536 else 0


def _keep(home: Home, listener: TcpListener) -> TcpListener:
    if _kept(home) != listener.port:
        home.write_blob(PORT_BLOB, str(listener.port).encode())
    return listener
