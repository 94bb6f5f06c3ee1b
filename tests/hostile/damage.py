"""Find damage: what no honest node may do, however it is treated, seen from outside of it."""

import contextlib
import ctypes
import gc
import io
import ipaddress
import re
from collections import Counter
from pathlib import Path

_EVENT = re.compile(r"\] (\w+)")
_PAGE = 4096


class Damage(AssertionError):
    """A deed of an honest node that it must not do."""


class Lines(io.StringIO):
    """The log of the honest nodes: counted by event, and failures that were contained but not foreseen."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def write(self, text: str) -> int:
        """A line."""
        found = _EVENT.search(text)
        event = found[1] if found else text[:40]
        self.counts[event] += 1
        if event == "work_failed":
            self.failures.append(text.rstrip())
        return len(text)


def why_forbidden(host: str) -> str:
    """Where nobody has to be sent, by addresses alone: the nodes have 10.0.0.0/24 and the Internet."""
    address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address in ipaddress.ip_network("64:ff9b::/96"):
        return "which hides another one"
    if address.is_loopback:
        return "which is its own machine"
    if address.is_multicast or address.is_unspecified or str(address) == "255.255.255.255":
        return "which is no node's address"
    if str(address) in ("169.254.169.254", "fd00:ec2::254"):
        return "where clouds keep secrets"
    return ""


def resident_bytes() -> int:
    """Return the resident bytes of this process; 0 where /proc is not."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return 0


def trim() -> None:
    """Return free memory to the system, so that a burst's does not count as kept. With glibc only."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
