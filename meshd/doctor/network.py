"""Check the network of this machine: interfaces, routes, ports, proxies, firewall, and as netcheck does."""

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshd.admin.api import NetcheckRequest, ProblemView
from meshd.admin.client import NotRunning, ask
from meshd.base.errors import MeshdError, UserError
from meshd.base.sockets import source_towards
from meshd.config.tree import DEFAULT_MESH_PORT, Config
from meshd.daemon.network_state import check_alone, servers_of
from meshd.doctor.firewall import lets_in
from meshd.doctor.kinds import Finding, Kind, State
from meshd.identity.folder import DAEMON, lock_holder
from meshd.identity.keystore import PORT_BLOB, Home
from meshd.link.net import local_addresses
from meshd.link.net.one_port import PortTaken
from meshd.link.tcp.sockets import listen
from meshd.process.interface import ChildSpec
from meshd.process.run import run_to_end

LEAST_MTU = 1280  # that of IPv6, which QUIC takes for granted
_OUTSIDE = (
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)  # documentation: the default route
_LOOPBACK_SECONDS = 2.0
_MDNS_PORT = 5353
_GET_FLAGS, _GET_MTU = 0x8913, 0x8921  # netdevice(7), of Linux
_MULTICAST = 0x1000
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_NETCHECK_SECONDS = 15.0
_FIREWALL_SECONDS = 5.0


def check_interfaces(config: Config) -> Iterator[Finding]:
    """Report what is missing between this machine and others: loopback, addresses, routes, multicast."""
    if why := _loopback_fault():
        yield Kind.LOOPBACK_DOWN.found(why=why)
    if not local_addresses.hosts():
        yield Kind.NETWORK_MISSING.found()
        return
    interfaces = set(filter(None, map(_interface_towards, _OUTSIDE)))
    if not interfaces:
        yield Kind.ROUTE_MISSING.found()
    for interface in sorted(interfaces):
        mtu = _ask_interface(interface, _GET_MTU)
        if 0 < mtu < LEAST_MTU:
            yield Kind.MTU_SMALL.found(interface=interface, mtu=mtu)
        if local_addresses.is_vpn(interface):
            yield Kind.VPN_ROUTE.found(interface=interface)
    if not config.links.no_mdns:
        yield from _check_mdns()


def _loopback_fault() -> str:
    """Return why a connection to 127.0.0.1 fails; empty if it works."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=_LOOPBACK_SECONDS):
                return ""
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _interface_towards(place: tuple[socket.AddressFamily, str]) -> str:
    """Return the interface that leads to the Internet; nothing is sent. Empty if there is none."""
    family, outside = place
    try:
        source = source_towards(family, (outside, 9))
    except OSError:
        return ""
    here = local_addresses.enumerate_addresses()
    return local_addresses.interface_of(source, (item for item in here if not item.ip.is_loopback))


def _ask_interface(interface: str, question: int) -> int:
    """Return the flags or the MTU of an interface; 0 if the system does not tell."""
    if sys.platform == "linux":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                answer = fcntl.ioctl(sock, question, struct.pack("16s24x", interface.encode()[:15]))
            except OSError:
                return 0
        return int.from_bytes(answer[16 : 18 if question == _GET_FLAGS else 20], sys.byteorder)
    else:
        return 0


def _check_mdns() -> Iterator[Finding]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(("", _MDNS_PORT))
        except OSError:
            yield Kind.MDNS_PORT_TAKEN.found()
            return
    for interface in sorted({name for name, _ in local_addresses.neighbourhood()}):
        flags = _ask_interface(interface, _GET_FLAGS)
        if flags and not flags & _MULTICAST:
            yield Kind.MULTICAST_MISSING.found(interface=interface)


def check_proxy() -> Iterator[Finding]:
    """Report a proxy that programs on this machine would ask for the API."""
    variable = next((name for name in _PROXIES if os.environ.get(name)), "")
    without = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if variable and not {"*", "127.0.0.1", "127.0.0.0/8"} & set(re.split(r"[ ,]+", without)):
        yield Kind.PROXY_FOR_LOCAL.found(variable=variable)


def check_ports(config: Config) -> Iterator[Finding]:
    """Report a port that a node needs and another program has; nothing while a node runs."""
    if lock_holder(config.paths.home, purpose=DAEMON) is not None:
        return
    asked = config.links.listen
    if asked is not None and asked.port:
        yield from _try_mesh_port(asked.host, asked.port)
    elif asked is None and (kept := _kept_port(config.paths.home)):
        yield from _try_mesh_port("", kept)
    if any(serve.model is not None for serve in config.served):
        yield from _try_api_port(config.serve.host, config.serve.port)


def _kept_port(path: Path) -> int:
    """Return the port by which other members know this node; 0 if it is in no mesh, or cannot be read."""
    home = Home(path)
    try:
        blob = home.read_blob(PORT_BLOB) if home.load_membership() is not None else None
    except UserError:
        return 0  # folders.py reports it
    return int(blob) if blob and blob.isdigit() and len(blob) <= 5 else 0


def _try_mesh_port(host: str, port: int) -> Iterator[Finding]:
    try:
        for sock in listen(host, port):
            sock.close()
    except PortTaken as error:
        yield Kind.MESH_PORT_TAKEN.found(why=error.what, remedy=error.hint)
    except UserError as error:
        yield Kind.MESH_PORT_TAKEN.found(why=error.what, remedy=error.hint)


def _try_api_port(host: str, port: int) -> Iterator[Finding]:
    from meshd.gateway.access import bind, resolve  # aiohttp, which few need here

    try:
        for sock in bind(asyncio.run(resolve(host)), port):
            sock.close()
    except UserError as error:
        yield Kind.API_PORT_TAKEN.found(why=error.what, remedy=error.hint)


async def check_firewall(config: Config) -> list[Finding]:
    """Report that nftables keep others from the mesh port. Only root can read its rules."""
    program = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if program is None or os.geteuid() != 0:
        return []
    asked = config.links.listen
    port = (
        asked.port if asked is not None and asked.port else _kept_port(config.paths.home) or DEFAULT_MESH_PORT
    )
    lines: list[str] = []
    with contextlib.suppress(MeshdError, OSError, TimeoutError), tempfile.TemporaryDirectory() as logs:
        argv = (program, "list", "ruleset")
        spec = ChildSpec(name="nft", argv=argv, log=Path(logs) / "nft.log", on_line=lines.append)
        async with asyncio.timeout(_FIREWALL_SECONDS):
            await run_to_end(spec)
    return [] if lets_in(lines, port) else [Kind.FIREWALL_CLOSED.found(port=port)]


def check_outside(config: Config) -> Iterator[Finding]:
    """Ask the configured servers, and only them, as `meshd netcheck` does."""
    listen_on = config.links.listen
    try:
        servers = servers_of(config)
    except UserError:
        return  # settings.py reports it
    if not servers.stun or (listen_on is not None and listen_on.host.startswith("127.")):
        return
    try:
        reply = ask(config.paths.home, NetcheckRequest(), seconds=_NETCHECK_SECONDS)
    except NotRunning:
        reply = check_alone(config, servers)
    except MeshdError:
        return  # services.py reports it
    yield from _of_problems(reply.problems)


def _of_problems(problems: Sequence[ProblemView]) -> Iterator[Finding]:
    """Return problems as they are worded there. None is an error here: machines on one network need none."""
    codes = {problem.code for problem in problems}
    for problem in problems:
        if problem.code == "unresolved" and "offline" in codes:
            continue  # a consequence
        state: State = "info" if problem.severity == "info" else "warning"
        yield Finding(problem.code, "network", state, problem.what, hint=problem.hint)
