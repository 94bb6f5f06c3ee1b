"""Keeps the mesh ports mapped at the home router, as long as it serves.

The default gateway is read from /proc/net/route; elsewhere `netstat` is asked, which macOS and the BSDs have.
IPv4 only: IPv6 has no addresses to map. When to renew a mapping, when to check the router, and what its
answers mean follows RFC 6887 (8.5, 11.2.1) and RFC 6886 (3.3, 3.6). Times are loop seconds.
"""

import asyncio
import ipaddress
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from meshd.base import log
from meshd.base.errors import Broken
from meshd.base.sockets import source_towards
from meshd.base.tasks import Owner
from meshd.portmap.interface import GatewayRoute, HomeRouter, MapState, MapStatus, NotMapped, Pulse
from meshd.portmap.pcp import NatPmpRouter, PcpRouter
from meshd.wire.address import Candidate, Proto
from meshd.wire.portmap import Granted, Wish

_ROUTES = Path("/proc/thread-self/net/route")  # /proc/net is that of the main thread
_NETSTAT = ("/usr/sbin/netstat", "-rn", "-f", "inet")
_NETSTAT_SECONDS = 3.0
_MAX_ROUTES_BYTES = 1 << 20
_RTF_GATEWAY = 0x2
LIFETIME = 7200  # seconds asked for: RFC 6886, 3.3 recommends two hours
PULSE_SECONDS = 120.0  # how often a router is asked whether it remembers; a restart is found within this
SHORTEST_LIFETIME = 120  # a shorter grant is renewed as if it were this long, or the router drowns in us
RETRY_FIRST = 15.0  # after a failed renewal; doubles
RETRY_MOST = 900.0
SEARCH_AGAIN = 1200.0  # when no router answered: another look, for somebody may switch it on
_FAREWELL_SECONDS = 1.0  # to take the mappings away at the end; a silent router keeps them for the lease
SILENT_PULSES = 3  # signs of life that failed one after the other, until all three languages are tried again
LOG = log.get("portmap")


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
        return source_towards(socket.AF_INET, (gateway, 9))
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


# Not reachable from outside (RFC 6890), in words. Documentation prefixes are not among them: nobody has them.
_INSIDE: tuple[tuple[ipaddress.IPv4Network, str], ...] = tuple(
    (ipaddress.IPv4Network(network), why)
    for network, why in (
        ("100.64.0.0/10", "the provider shares one address among customers (carrier-grade NAT)"),
        ("192.0.0.0/24", "the provider has no IPv4 of its own for this line (DS-Lite)"),
        ("10.0.0.0/8", "another router is between it and the internet"),
        ("172.16.0.0/12", "another router is between it and the internet"),
        ("192.168.0.0/16", "another router is between it and the internet"),
        ("169.254.0.0/16", "it has no address from its provider"),
        ("0.0.0.0/8", "it has no address from its provider"),
        ("127.0.0.0/8", "it reports its own internal address"),
        ("224.0.0.0/3", "it reports an impossible address"),
    )
)


def why_not_outside(host: str) -> str | None:
    """Return why a router's outer address cannot be reached from outside; None: it is public."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "it reports no address"
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.is_global else "it reports an impossible address"
    return next((why for network, why in _INSIDE if address in network), None)


@dataclass(frozen=True, slots=True)
class Beat:
    """A router's epoch, and when it was read."""

    epoch: int
    at: float


def has_restarted(before: Beat | None, after: Beat) -> bool:
    """Return True when the router was restarted between two signs of life (RFC 6887, 8.5).

    Its clock may run wrong by a sixteenth, and 2 s more.
    """
    if before is None:
        return False
    if after.epoch < before.epoch - 1:
        return True
    ours, theirs = after.at - before.at, float(after.epoch - before.epoch)
    return ours + 2 < theirs - theirs / 16 or theirs + 2 < ours - ours / 16


@dataclass(frozen=True, slots=True)
class PortLease:
    """One mapping that is held: `due` is when to renew it, `ends` when the router drops it."""

    granted: Granted
    due: float
    ends: float
    failures: int = 0

    @classmethod
    def begin(cls, granted: Granted, now: float) -> Self:
        """Return a lease just granted: to be renewed at half its life."""
        life = max(min(granted.lifetime, LIFETIME), SHORTEST_LIFETIME)
        return cls(granted, now + life / 2, now + max(granted.lifetime, SHORTEST_LIFETIME))

    def failed(self, now: float) -> Self:
        """Return the lease after a failed renewal: try again with exponential back-off."""
        pause = min(RETRY_MOST, RETRY_FIRST * 2.0 ** min(self.failures, 16))
        return replace(self, due=now + pause, failures=self.failures + 1)


def has_moved(held: list[Granted], pulse: Pulse) -> bool:
    """Return True when the router has another outer address than at the time of the mappings."""
    return bool(pulse.external_host) and any(
        granted.external_host and granted.external_host != pulse.external_host for granted in held
    )


def home_routers(
    *, secret: bytes, name: str, random_port: Callable[[], int]
) -> Callable[[GatewayRoute], Sequence[HomeRouter]]:
    """Return a function that gives the gateway in each protocol, the best first.

    `secret`: at least 16 bytes that this node keeps (see PcpRouter); `name` shows in the router's list;
    `random_port` draws from 0 to 65535.
    """

    def of(route: GatewayRoute) -> Sequence[HomeRouter]:
        from meshd.portmap.upnp import UpnpRouter  # and its XML, which no node without a router needs

        return (
            PcpRouter(route, secret=secret),
            NatPmpRouter(route),
            UpnpRouter(route, name=f"meshd {name}"[:64], random_port=random_port),
        )

    return of


class PortMapper:
    """`ports` returns the mesh ports to map each time; `changed` is called after `mappings` has changed,
    `settled` after each time that the router was asked from the beginning, whatever came of it.

    Nothing is sent before `serve`, and nothing ever when not `enabled`.
    """

    def __init__(
        self,
        *,
        ports: Callable[[], Sequence[tuple[Proto, int]]],
        routers: Callable[[GatewayRoute], Sequence[HomeRouter]],
        changed: Callable[[], None],
        settled: Callable[[], None] = lambda: None,
        enabled: bool = True,
        route: Callable[[], Awaitable[GatewayRoute]] = find_route,
    ) -> None:
        self._ports = ports
        self._routers = routers
        self._changed = changed
        self._settled = settled
        self._enabled = enabled
        self._find_route = route
        self._router: HomeRouter | None = None
        self._route: GatewayRoute | None = None
        self._leases: list[PortLease] = []
        self._beat: Beat | None = None
        self._wanted: dict[tuple[Proto, int], int] = {}  # the outside port had before
        self._poked = asyncio.Event()
        self._seen: frozenset[str] = frozenset()
        self._came_in = False
        self._status = MapStatus(state=MapState.ASKING if enabled else MapState.OFF)

    def mappings(self) -> tuple[Candidate, ...]:
        """Return where others reach this node by the router; none when another outer address is
        seen outside.
        """
        return self.status().mappings

    def status(self) -> MapStatus:
        """Return the present state of port mapping."""
        verified = self._verified()
        found = () if verified is False else tuple(map(_candidate, (lease.granted for lease in self._leases)))
        status = self._status
        if self._leases:
            status = replace(status, external=self._leases[0].granted.external_host)
        if verified is False:
            why = (
                f"the router reports the public address `{status.external}`, but servers see a different one"
            )
            status = replace(status, why=why)
        return replace(status, mappings=found, verified=verified)

    def poke(self) -> None:
        """Check at once whether the router still knows us: addresses have changed, or the machine slept."""
        self._poked.set()

    def seen_outside(self, hosts: frozenset[str]) -> None:
        """Set the public addresses of this node as others see them (STUN); empty: unknown."""
        before = self.mappings()
        self._seen = hosts
        if self.mappings() != before:
            self._changed()

    def came_in(self) -> None:
        """Note that a connection from outside reached the mesh port: the mapping works."""
        self._came_in = bool(self._leases)

    def _verified(self) -> bool | None:
        if not self._leases:
            return None
        if self._came_in:
            return True
        v4 = {host for host in self._seen if ":" not in host}
        return self._leases[0].granted.external_host in v4 if v4 else None

    async def serve(self) -> None:
        """Map, renew, and map again, until cancelled; then remove all mappings."""
        if not self._enabled:
            await asyncio.Event().wait()
        try:
            while True:
                self._poked.clear()
                await self._establish()
                await self._hold()
        finally:
            await self._remove()

    # To get mappings.

    async def _establish(self) -> None:
        """Ask in all protocols at once; map by the best one that answers."""
        before = self.mappings()
        self._forget()
        try:
            self._route = await self._find_route()
        except Broken as error:
            self._status = MapStatus(state=MapState.NO_GATEWAY, why=error.what)
        else:
            await self._ask_all(self._route)
        if self._status.state is not MapState.MAPPED:
            LOG.info("port_not_mapped", state=str(self._status.state), why=self._status.why)
        if self.mappings() != before:
            self._changed()
        self._settled()

    async def _ask_all(self, route: GatewayRoute) -> None:
        routers = self._routers(route)
        worst = MapStatus(
            state=MapState.SILENT,
            gateway=route.gateway,
            why=f"the router `{route.gateway}` answers neither PCP, NAT-PMP nor UPnP",
        )
        async with Owner() as owner:
            probes = [owner.start(probe(router), name=f"probe {router.language}") for router in routers]
            for router, probing in zip(routers, probes, strict=True):
                pulse = await probing
                outcome = await self._use(router, route, pulse)
                if outcome.state is MapState.MAPPED:
                    self._router, self._status = router, outcome
                    break
                if _RANK[outcome.state] > _RANK[worst.state]:
                    worst = outcome
            else:
                self._status = worst
            owner.cancel()

    async def _use(self, router: HomeRouter, route: GatewayRoute, pulse: Pulse | NotMapped) -> MapStatus:
        """Map all ports by one router."""
        status = MapStatus(state=MapState.REFUSED, gateway=route.gateway, language=router.language)
        if isinstance(pulse, NotMapped):
            return replace(
                status, state=MapState.SILENT if pulse.silent else MapState.REFUSED, why=pulse.what
            )
        if pulse.external_host and (why := why_not_outside(pulse.external_host)) is not None:
            return _behind_nat(status, pulse.external_host, why)
        held: list[Granted] = []
        for proto, port in self._ports():
            try:
                granted = await router.map(self._wish(proto, port))
            except NotMapped as refusal:
                status = replace(status, why=refusal.what)
                continue
            if (why := why_not_outside(granted.external_host)) is not None:
                await _unmap(router, [*held, granted])  # PCP does not tell before it maps
                return _behind_nat(status, granted.external_host, why)
            held.append(granted)
        if not held:
            return status
        now = asyncio.get_running_loop().time()
        self._take(held, now)
        LOG.info(
            "port_mapped", kind=str(router.language), listen=[_candidate(mapped).place for mapped in held]
        )
        return replace(status, state=MapState.MAPPED)

    def _wish(self, proto: Proto, port: int) -> Wish:
        external = self._wanted.get((proto, port), port)
        return Wish(proto=proto, internal_port=port, external_port=external, lifetime=LIFETIME)

    def _take(self, held: Sequence[Granted], now: float) -> None:
        for granted in held:
            self._leases.append(PortLease.begin(granted, now))
            self._wanted[granted.proto, granted.internal_port] = granted.external_port
            if granted.epoch is not None:
                self._beat = Beat(granted.epoch, now)

    def _forget(self) -> None:
        self._router, self._beat, self._leases, self._came_in = None, None, [], False

    # To keep them.

    async def _hold(self) -> None:
        """Renew until a new start is due: the router forgot, the route changed, or no mapping is left."""
        loop = asyncio.get_running_loop()
        router, silent = self._router, 0
        if router is None:
            await self._wait(SEARCH_AGAIN)
            return
        look = loop.time() + PULSE_SECONDS
        while self._leases:
            due = min(lease.due for lease in self._leases)
            poked = await self._wait(min(due, look) - loop.time())
            if poked:
                if await self._route_changed():
                    return
                # a restart within the first seconds of a router's clock does not show in it: renew all
                self._leases = [replace(lease, due=loop.time()) for lease in self._leases]
            if poked or loop.time() >= look:
                look = loop.time() + PULSE_SECONDS
                try:
                    pulse = await router.pulse([lease.granted for lease in self._leases])
                except NotMapped:
                    silent += 1
                    if silent >= SILENT_PULSES:
                        return
                else:
                    silent = 0
                    if self._has_forgotten(pulse, loop.time()):
                        return
            await self._renew(router, loop.time())

    async def _wait(self, seconds: float) -> bool:
        """Wait for `seconds`; True when poked before."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._poked.wait()
        except TimeoutError:
            return False
        self._poked.clear()
        return True

    async def _route_changed(self) -> bool:
        try:
            return await self._find_route() != self._route
        except Broken:
            return True

    def _has_forgotten(self, pulse: Pulse, now: float) -> bool:
        before = self._beat
        gone = pulse.forgot or has_moved([lease.granted for lease in self._leases], pulse)
        if pulse.epoch is not None:
            self._beat = Beat(pulse.epoch, now)
            gone = gone or has_restarted(before, self._beat)
        if gone:
            LOG.info("router_forgot", remote=self._status.gateway)
        return gone

    async def _renew(self, router: HomeRouter, now: float) -> None:
        before = self.mappings()
        kept: list[PortLease] = []
        for lease in self._leases:
            if lease.due > now:
                kept.append(lease)
                continue
            granted = lease.granted
            try:
                again = await router.map(self._wish(granted.proto, granted.internal_port))
                if (why := why_not_outside(again.external_host)) is not None:
                    raise NotMapped(f"the router no longer has a public address: {why}")
            except NotMapped as refusal:
                LOG.info("port_not_renewed", why=refusal.what)
                if now < lease.ends:
                    kept.append(lease.failed(now))
                continue
            self._wanted[granted.proto, granted.internal_port] = again.external_port
            kept.append(PortLease.begin(again, now))
        self._leases = kept
        if self.mappings() != before:
            self._changed()

    async def _remove(self) -> None:
        router, held = self._router, [lease.granted for lease in self._leases]
        self._forget()
        if router is not None and held:
            await _unmap(router, held)


_RANK = {state: rank for rank, state in enumerate(MapState)}  # the later, the more is known


async def _unmap(router: HomeRouter, held: Sequence[Granted]) -> None:
    """Remove mappings, all at once and within a second; what is left ends with its lease."""

    async def unmap_quietly(granted: Granted) -> None:
        try:
            await router.unmap(granted)
        except NotMapped as refusal:
            LOG.info("port_not_unmapped", why=refusal.what)

    try:
        async with asyncio.timeout(_FAREWELL_SECONDS), Owner() as owner:
            for granted in held:
                owner.start(unmap_quietly(granted), name="unmap")
    except TimeoutError:
        LOG.info("port_not_unmapped", why="the router does not answer")


def _behind_nat(status: MapStatus, external: str, why: str) -> MapStatus:
    words = f"a port mapped on the router could not be reached: its public address is `{external}`, {why}"
    return replace(status, state=MapState.BEHIND_NAT, external=external, why=words)


def _candidate(granted: Granted) -> Candidate:
    return Candidate(granted.external_host, granted.external_port, granted.proto, "mapped")


async def survey(routers: Callable[[GatewayRoute], Sequence[HomeRouter]]) -> MapStatus:
    """Ask the default gateway in every protocol whether it is there; OFFERED if it is. Takes some seconds."""
    try:
        route = await find_route()
    except Broken as error:
        return MapStatus(state=MapState.NO_GATEWAY, why=error.what)
    # Probe in all protocols at once.
    asked = routers(route)
    async with Owner() as owner:
        probes = [owner.start(probe(router), name=f"probe {router.language}") for router in asked]
    refusal = ""
    offered: MapStatus | None = None
    # The best protocol that answers decides, in the order of `asked`.
    for router, probing in zip(asked, probes, strict=True):
        pulse = probing.result()
        if isinstance(pulse, NotMapped):
            refusal = refusal or ("" if pulse.silent else pulse.what)
        elif pulse.external_host and (why := why_not_outside(pulse.external_host)) is not None:
            return MapStatus(
                state=MapState.BEHIND_NAT,
                gateway=route.gateway,
                language=router.language,
                external=pulse.external_host,
                why=f"the router's public address is `{pulse.external_host}`: {why}",
            )
        elif offered is None or (offered.external is None and pulse.external_host):
            # a better language does not always tell the outer address; another one may
            offered = MapStatus(
                state=MapState.OFFERED,
                gateway=route.gateway,
                language=offered.language if offered is not None else router.language,
                external=pulse.external_host or None,
            )
    if offered is not None:
        return offered
    return MapStatus(
        state=MapState.REFUSED if refusal else MapState.SILENT,
        gateway=route.gateway,
        why=refusal or f"the router `{route.gateway}` answers neither PCP, NAT-PMP nor UPnP",
    )


async def probe(router: HomeRouter) -> Pulse | NotMapped:
    """Probe one protocol; the refusal is a result too."""
    try:
        return await router.probe()
    except NotMapped as refusal:
        return refusal
