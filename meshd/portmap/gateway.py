"""The default gateway of this machine, and our own address on the route to it.

Linux tells in /proc/net/route; elsewhere `netstat` is asked, which macOS and the BSDs have. Reading what they
say is pure. IPv4 only: IPv6 has no addresses to map.
"""

import asyncio
import ipaddress
import socket
import struct
import sys
from pathlib import Path

from meshd.base.errors import Broken
from meshd.portmap.interface import GatewayRoute

_ROUTES = Path("/proc/thread-self/net/route")  # /proc/net is that of the main thread
_NETSTAT = ("/usr/sbin/netstat", "-rn", "-f", "inet")
_NETSTAT_SECONDS = 3.0
_MAX_ROUTES_BYTES = 1 << 20
_RTF_GATEWAY = 0x2


async def find_route() -> GatewayRoute:
    """Return the route out of this network, as of now. Raises Broken when there is none."""
    table = _proc_table()
    if table is not None:
        gateway = read_proc(table, order=sys.byteorder)
    else:
        gateway = read_netstat(await _netstat())
    if gateway is None:
        raise Broken("no default gateway: this machine has no IPv4 route to the internet")
    return GatewayRoute(gateway, address_towards(gateway))


def _proc_table() -> str | None:
    try:
        return _ROUTES.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None  # not Linux


def address_towards(gateway: str) -> str:
    """Return this machine's address towards the gateway; nothing is sent. Raises Broken."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((gateway, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Broken(f"cannot reach the gateway `{gateway}`: {error.strerror or error}") from None


def read_proc(table: str, *, order: str) -> str | None:
    """Return the gateway of the default route with the lowest metric, from /proc/net/route (proc(5)).

    `order`: the machine's byte order; the kernel prints addresses as it holds them.
    """
    found: list[tuple[int, str]] = []
    for line in table[:_MAX_ROUTES_BYTES].splitlines()[1:]:
        fields = line.split()
        try:
            target, gateway, flags, metric, mask = (fields[n] for n in (1, 2, 3, 6, 7))
            if int(target, 16) or int(mask, 16) or not int(flags, 16) & _RTF_GATEWAY:
                continue
            packed = struct.pack("<I" if order == "little" else ">I", int(gateway, 16))
            found.append((int(metric), str(ipaddress.IPv4Address(packed))))
        except (ValueError, IndexError, struct.error):
            continue
    return min(found, key=lambda item: item[0])[1] if found else None


def read_netstat(table: str) -> str | None:
    """Return the gateway of the first default route in the output of `netstat -rn -f inet`."""
    for line in table[:_MAX_ROUTES_BYTES].splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[0] in ("default", "0.0.0.0", "0/0") and "G" in fields[2]:
            try:
                return str(ipaddress.IPv4Address(fields[1]))
            except ValueError:
                continue  # a link instead of an address: a tunnel
    return None


async def _netstat() -> str:
    try:
        child = await asyncio.create_subprocess_exec(
            *_NETSTAT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise Broken(f"the routes cannot be read: {error.strerror or error}") from None
    try:
        async with asyncio.timeout(_NETSTAT_SECONDS):
            output, _ = await child.communicate()
    except BaseException as error:
        child.kill()
        await child.wait()
        if isinstance(error, TimeoutError):
            raise Broken("the routes cannot be read: netstat does not answer") from None
        raise
    return output.decode("ascii", "replace")
