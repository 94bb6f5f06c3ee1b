"""The mapper on a virtual clock: which language, renewal, a router that restarts, addresses that change."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import Broken
from meshd.base.tasks import Owner
from meshd.portmap.interface import GatewayRoute, HomeRouter, Language, MapState, NotMapped, Pulse
from meshd.portmap.mapper import (
    Beat,
    PortLease,
    PortMapper,
    address_towards,
    find_route,
    has_restarted,
    read_netstat,
    read_proc,
    why_not_outside,
)
from meshd.wire.address import Candidate, Proto
from meshd.wire.portmap import Granted, Wish

pytestmark = pytest.mark.virtual

OUTSIDE = "20.1.0.2"
ROUTE = GatewayRoute("192.168.1.1", "192.168.1.10")
TCP = Candidate(OUTSIDE, 17430, "tcp", "mapped")
UDP = Candidate(OUTSIDE, 17430, "udp", "mapped")
BOTH: Sequence[tuple[Proto, int]] = (("tcp", 17430), ("udp", 17430))


@dataclass
class PaperRouter:
    """Answers at once; `begun` is when its clock was zero."""

    language: Language = Language.PCP
    outside: str = OUTSIDE
    refusal: NotMapped | None = None
    silent: bool = False
    tells_outside: bool = True
    lifetime: int = 7200
    offset: int = 0  # of the outside ports
    begun: float = 0.0
    held: dict[tuple[Proto, int], int] = field(default_factory=dict)
    wishes: list[Wish] = field(default_factory=list)

    def _epoch(self) -> int:
        return int(asyncio.get_running_loop().time() - self.begun)

    def _here(self) -> None:
        if self.silent:
            raise NotMapped("the router does not answer", silent=True)

    async def probe(self) -> Pulse:
        self._here()
        return Pulse(self._epoch(), self.outside if self.tells_outside else "")

    async def map(self, wish: Wish) -> Granted:
        self._here()
        if self.refusal is not None:
            raise self.refusal
        self.wishes.append(wish)
        port = wish.external_port + (0 if self.held else self.offset)
        self.held[wish.proto, wish.internal_port] = port
        return Granted(
            proto=wish.proto,
            internal_port=wish.internal_port,
            external_port=port,
            external_host=self.outside,
            lifetime=min(wish.lifetime, self.lifetime),
            epoch=self._epoch(),
        )

    async def unmap(self, granted: Granted) -> None:
        self._here()
        self.held.pop((granted.proto, granted.internal_port), None)

    async def pulse(self, held: Sequence[Granted]) -> Pulse:
        return await self.probe()

    def restart(self) -> None:
        self.held.clear()
        self.begun = asyncio.get_running_loop().time()


class Stage:
    """A mapper that serves, and what it said."""

    def __init__(self, *routers: HomeRouter, enabled: bool = True) -> None:
        self.routers: Sequence[HomeRouter] = routers
        self.route: GatewayRoute | None = ROUTE
        self.changes: list[tuple[Candidate, ...]] = []
        self.mapper = PortMapper(
            ports=lambda: BOTH,
            routers=lambda _route: self.routers,
            changed=lambda: self.changes.append(self.mapper.mappings()),
            enabled=enabled,
            route=self._find,
        )

    async def _find(self) -> GatewayRoute:
        if self.route is None:
            raise Broken("no default gateway")
        return self.route

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve while the block runs, which begins after five seconds."""
        async with Owner() as owner:
            owner.start(self.mapper.serve(), name="mapper")
            await asyncio.sleep(5)
            yield
            owner.cancel()


async def test_it_maps_both_ports_and_takes_them_away_at_the_end() -> None:
    router = PaperRouter()
    stage = Stage(router)
    async with stage.serving():
        status = stage.mapper.status()
        assert (status.state, status.language, status.external) == (MapState.MAPPED, Language.PCP, OUTSIDE)
        assert stage.mapper.mappings() == (TCP, UDP) and len(router.held) == 2
    assert not router.held and not stage.mapper.mappings()
    assert stage.changes == [(TCP, UDP)]


async def test_the_best_language_that_works_is_used_alone() -> None:
    pcp = PaperRouter(silent=True)
    natpmp = PaperRouter(Language.NATPMP, refusal=NotMapped("it is not allowed"))
    upnp = PaperRouter(Language.UPNP)
    stage = Stage(pcp, natpmp, upnp)
    async with stage.serving():
        assert stage.mapper.status().language is Language.UPNP
        assert not pcp.held and not natpmp.held


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("outside", ["100.64.3.4", "192.168.7.7", "0.0.0.0"])
async def test_a_router_behind_a_nat_is_not_used(tells: bool, outside: str) -> None:
    router = PaperRouter(outside=outside, tells_outside=tells)
    stage = Stage(router)
    async with stage.serving():
        status = stage.mapper.status()
        assert status.state is MapState.BEHIND_NAT and outside in status.why and status.external == outside
        assert not router.held and not stage.mapper.mappings()
        assert tells is not bool(router.wishes), "a router that tells first is not asked to map"


@pytest.mark.parametrize(
    ("routers", "route", "state", "why"),
    [
        ((PaperRouter(silent=True), PaperRouter(refusal=NotMapped("off"))), ROUTE, MapState.REFUSED, "off"),
        ((PaperRouter(silent=True), PaperRouter(silent=True)), ROUTE, MapState.SILENT, "192.168.1.1"),
        ((PaperRouter(),), None, MapState.NO_GATEWAY, "gateway"),
    ],
)
async def test_why_there_is_no_mapping(
    routers: Sequence[HomeRouter], route: GatewayRoute | None, state: MapState, why: str
) -> None:
    stage = Stage(*routers)
    stage.route = route
    async with stage.serving():
        status = stage.mapper.status()
        assert status.state is state and why in status.why


async def test_switched_off_it_asks_nobody() -> None:
    router = PaperRouter()
    stage = Stage(router, enabled=False)
    async with stage.serving():
        await asyncio.sleep(10_000)
        assert stage.mapper.status().state is MapState.OFF
    assert not router.wishes


async def test_a_lease_is_renewed_at_half_its_life() -> None:
    router = PaperRouter(lifetime=3600)
    stage = Stage(router)
    async with stage.serving():
        assert len(router.wishes) == 2
        await asyncio.sleep(1790)
        assert len(router.wishes) == 2
        await asyncio.sleep(10)
        assert len(router.wishes) == 4
        assert stage.mapper.mappings() == (TCP, UDP)
    assert len(stage.changes) == 1


async def test_a_router_that_grants_seconds_is_not_drowned() -> None:
    router = PaperRouter(lifetime=1)
    stage = Stage(router)
    async with stage.serving():
        await asyncio.sleep(600)
        assert len(router.wishes) <= 2 * 11


async def test_a_restarted_router_is_asked_again_within_minutes() -> None:
    router = PaperRouter(begun=-10_000.0)
    stage = Stage(router)
    async with stage.serving():
        await asyncio.sleep(300)
        router.restart()
        await asyncio.sleep(121)
        assert set(router.held) == set(BOTH)


async def test_a_restart_is_seen_at_once_when_addresses_change() -> None:
    router = PaperRouter(begun=-10_000.0)
    stage = Stage(router)
    async with stage.serving():
        router.restart()
        stage.mapper.poke()
        await asyncio.sleep(1)
        assert set(router.held) == set(BOTH)


async def test_another_outer_address_is_another_candidate() -> None:
    router = PaperRouter()
    stage = Stage(router)
    async with stage.serving():
        router.outside = "20.1.0.9"
        stage.mapper.poke()
        await asyncio.sleep(1)
        assert {one.host for one in stage.mapper.mappings()} == {"20.1.0.9"}
    assert [one[0].host for one in stage.changes] == [OUTSIDE, "20.1.0.9"]


async def test_another_network_has_another_router() -> None:
    old, new = PaperRouter(), PaperRouter(Language.NATPMP, outside="20.2.0.2")
    stage = Stage(old)
    async with stage.serving():
        stage.routers, stage.route = (new,), GatewayRoute("10.0.0.1", "10.0.0.9")
        stage.mapper.poke()
        await asyncio.sleep(1)
        assert stage.mapper.status().gateway == "10.0.0.1"
        assert {one.host for one in stage.mapper.mappings()} == {"20.2.0.2"}
        stage.route = None
        stage.mapper.poke()
        await asyncio.sleep(1)
        assert not stage.mapper.mappings()


async def test_a_router_that_appears_later_is_found() -> None:
    router = PaperRouter(silent=True)
    stage = Stage(router)
    async with stage.serving():
        router.silent = False
        await asyncio.sleep(1200)
        assert stage.mapper.mappings() == (TCP, UDP)


async def test_a_router_that_falls_silent_keeps_the_mapping_for_its_life_at_most() -> None:
    router = PaperRouter(lifetime=600)
    stage = Stage(router)
    async with stage.serving():
        router.silent = True
        await asyncio.sleep(200)
        assert stage.mapper.mappings() == (TCP, UDP)
        await asyncio.sleep(600)
        assert not stage.mapper.mappings()


async def test_a_router_that_never_answers_the_goodbye_does_not_hold_us_up() -> None:
    class Stuck(PaperRouter):
        async def unmap(self, granted: Granted) -> None:
            await asyncio.sleep(1000)

    stage, ends = Stage(Stuck()), []
    loop = asyncio.get_running_loop()
    async with Owner() as owner:
        owner.start(stage.mapper.serve(), name="mapper")
        await asyncio.sleep(5)
        owner.cancel()
        ends.append(loop.time())
    ends.append(loop.time())
    assert ends[1] - ends[0] <= 1.0


async def test_a_port_that_was_given_is_asked_for_again() -> None:
    router = PaperRouter(offset=100)
    stage = Stage(router)
    async with stage.serving():
        first = stage.mapper.mappings()
        assert first[0].port == 17530
        router.offset = 0
        router.restart()
        stage.mapper.poke()
        await asyncio.sleep(1)
        assert stage.mapper.mappings() == first


async def test_a_renewal_that_gives_a_private_address_is_none() -> None:
    router = PaperRouter(lifetime=600)
    stage = Stage(router)
    async with stage.serving():
        router.tells_outside, router.outside = False, "0.0.0.0"
        await asyncio.sleep(1000)
        assert not stage.mapper.mappings()
        assert stage.mapper.status().state is MapState.BEHIND_NAT


async def test_verified_by_what_is_seen_outside() -> None:
    stage = Stage(PaperRouter())
    async with stage.serving():
        mapper = stage.mapper
        assert mapper.status().verified is None and mapper.mappings()
        mapper.seen_outside(frozenset({OUTSIDE, "2a0e::1"}))
        assert mapper.status().verified is True
        mapper.seen_outside(frozenset({"2a0e::1"}))
        assert mapper.status().verified is None
        mapper.seen_outside(frozenset({"20.9.9.9"}))  # another NAT stands outside of this one
        assert mapper.status().verified is False and not mapper.mappings()
        assert OUTSIDE in mapper.status().why
        mapper.came_in()
        assert mapper.status().verified is True and mapper.mappings() == (TCP, UDP)
    assert stage.changes == [(TCP, UDP), ()]


async def test_only_one_port_can_be_mapped() -> None:
    class OnlyTcp(PaperRouter):
        async def map(self, wish: Wish) -> Granted:
            if wish.proto == "udp":
                raise NotMapped("no udp here")
            return replace(await super().map(wish))

    stage = Stage(OnlyTcp())
    async with stage.serving():
        assert stage.mapper.mappings() == (TCP,)
        assert stage.mapper.status().state is MapState.MAPPED


def _granted(lifetime: int) -> Granted:
    return Granted(
        proto="tcp", internal_port=1, external_port=2, external_host="20.1.1.1", lifetime=lifetime, epoch=None
    )


@given(st.integers(0, 1 << 20), st.floats(0, 1e6), st.floats(-1 / 20, 1 / 20))
def test_a_clock_that_runs_a_little_wrong_is_no_restart(epoch: int, passed: float, wrong: float) -> None:
    assert not has_restarted(Beat(epoch, 100.0), Beat(epoch + int(passed * (1 + wrong)), 100.0 + passed))


@given(st.integers(100, 1 << 20), st.floats(3, 1e6))
def test_a_restart_shows_however_long_ago_it_was(epoch: int, passed: float) -> None:
    for since in (0.0, passed / 2):
        assert has_restarted(Beat(epoch + int(passed), 0.0), Beat(int(since), passed))


def test_the_first_sign_of_life_says_nothing() -> None:
    assert not has_restarted(None, Beat(0, 5.0))


@given(st.integers(0, 1 << 32), st.floats(0, 1e6))
def test_a_lease_is_due_before_it_ends(lifetime: int, now: float) -> None:
    lease = PortLease.begin(_granted(lifetime), now)
    assert now + 60 <= lease.due <= now + 3600
    assert lease.due < lease.ends


def test_renewals_that_fail_come_slower() -> None:
    lease, now, pauses = PortLease.begin(_granted(7200), 0.0), 3600.0, []
    for _ in range(12):
        lease = lease.failed(now)
        pauses.append(lease.due - now)
        now = lease.due
    assert pauses[0] == 15.0 and pauses == sorted(pauses) and pauses[-1] == 900.0


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("100.64.0.1", "carrier-grade"),
        ("192.168.1.1", "another router"),
        ("172.31.255.255", "another router"),
        ("192.0.0.4", "DS-Lite"),
        ("0.0.0.0", "no address"),
        ("255.255.255.255", "impossible"),
        ("fd00::1", "impossible"),
        ("", "no address"),
        ("home.example", "no address"),
    ],
)
def test_addresses_that_nobody_outside_reaches(host: str, why: str) -> None:
    assert why in (why_not_outside(host) or "")


@pytest.mark.parametrize("host", ["20.1.1.1", "172.32.0.1", "100.128.0.1", "2a0e::1"])
def test_addresses_that_may_be_reached(host: str) -> None:
    assert why_not_outside(host) is None


PROC = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0
vpn0\t00000000\t0908070A\t0003\t0\t0\t0\t00000080\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
"""
NETSTAT = """Routing tables

Internet:
Destination        Gateway            Flags               Netif Expire
default            link#12            UCSg                utun3
default            192.168.1.1        UGScg                 en0
127                127.0.0.1          UCS                   lo0
"""


def test_linux() -> None:
    assert read_proc(PROC, order="little") == "10.0.0.1"
    assert read_proc(PROC.replace("0100000A", "0A000001"), order="big") == "10.0.0.1"
    assert read_proc("\n".join(PROC.splitlines()[:1]), order="little") is None


def test_macos() -> None:
    assert read_netstat(NETSTAT) == "192.168.1.1"
    assert read_netstat("Internet:\n") is None


@given(st.text())
def test_any_table_is_read(table: str) -> None:
    assert read_proc("head\n" + table, order="little") is None or table
    read_netstat(table)


def test_this_machine_has_an_address_towards_itself() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


def test_this_machine_knows_its_way_out_or_says_that_it_has_none() -> None:
    try:
        route = asyncio.run(find_route())
    except Broken as error:
        assert error.what
    else:
        assert route.gateway.count(".") == 3 and route.local.count(".") == 3
