"""Each language against a router on loopback: to map, renew, take away, and to be refused."""

import asyncio

import pytest
from meshd.portmap.interface import GatewayRoute, HomeRouter, NotMapped
from meshd.portmap.pcp import NatPmpRouter, PcpRouter
from meshd.portmap.upnp import UpnpRouter
from meshd.wire.portmap import Wish

from tests.unit.portmap.gateways import HERE, OUTSIDE, Igd, Table, fault, igd, listening, natpmp, pcp

ROUTE = GatewayRoute(HERE, HERE)
TCP = Wish(proto="tcp", internal_port=17430, external_port=17430, lifetime=7200)
UDP = Wish(proto="udp", internal_port=17430, external_port=17430, lifetime=7200)
SECRET = b"s" * 16


async def _map_and_unmap(router: HomeRouter, table: Table) -> None:
    assert (await router.probe()).external_host in ("", OUTSIDE)
    held = [await router.map(TCP), await router.map(UDP)]
    assert [(one.proto, one.external_port, one.external_host) for one in held] == [
        ("tcp", 17430, OUTSIDE),
        ("udp", 17430, OUTSIDE),
    ]
    assert set(table.mapped) == {("tcp", 17430), ("udp", 17430)}
    assert not (await router.pulse(held)).forgot
    for one in held:
        await router.unmap(one)
    assert not table.mapped


async def test_pcp() -> None:
    table = Table()
    async with listening(pcp(table)) as port:
        await _map_and_unmap(PcpRouter(ROUTE, secret=SECRET, port=port), table)


async def test_natpmp() -> None:
    table = Table()
    async with listening(natpmp(table)) as port:
        await _map_and_unmap(NatPmpRouter(ROUTE, port=port), table)


def _upnp(port: int) -> UpnpRouter:
    return UpnpRouter(ROUTE, name="meshd garage", random_port=lambda: 5000, ssdp_port=port)


async def test_upnp() -> None:
    table = Table()
    async with igd(Igd(table)) as port:
        await _map_and_unmap(_upnp(port), table)


async def test_each_language_is_told_from_the_other() -> None:
    async with listening(natpmp(Table())) as port:
        with pytest.raises(NotMapped, match="speaks NAT-PMP"):
            await PcpRouter(ROUTE, secret=SECRET, port=port).probe()
    async with listening(pcp(Table())) as port:
        with pytest.raises(NotMapped, match="speaks PCP"):
            await NatPmpRouter(ROUTE, port=port).probe()


async def test_a_port_where_nobody_listens_is_silent_at_once() -> None:
    async with listening(lambda _data: []) as port:
        pass
    for router in (PcpRouter(ROUTE, secret=SECRET, port=port), NatPmpRouter(ROUTE, port=port)):
        with pytest.raises(NotMapped) as caught:
            async with asyncio.timeout(2):  # well before its own patience ends
                await router.probe()
        assert caught.value.silent


async def test_an_answer_that_gets_lost_is_asked_for_again() -> None:
    table = Table()
    answer, dropped = natpmp(table), [1, 1]

    def lossy(data: bytes) -> list[bytes]:
        return [] if dropped and dropped.pop() else answer(data)

    async with listening(lossy) as port:
        granted = await NatPmpRouter(ROUTE, port=port).map(TCP)
    assert granted.external_port == 17430 and not dropped


async def test_answers_to_other_questions_are_passed_over() -> None:
    table = Table()
    answer = pcp(table)

    def chatty(data: bytes) -> list[bytes]:
        right = answer(data)
        if data[1] != 1:
            return right
        other_nonce = right[0][:24] + bytes(12) + right[0][36:]
        return [data, other_nonce, *right]  # our own question back, somebody else's answer, ours

    async with listening(chatty) as port:
        granted = await PcpRouter(ROUTE, secret=SECRET, port=port).map(TCP)
    assert granted.external_port == 17430


async def test_a_refusal_is_told_in_words() -> None:
    table = Table(result=2)
    async with listening(natpmp(table)) as port:
        with pytest.raises(NotMapped, match="switched off"):
            await NatPmpRouter(ROUTE, port=port).map(TCP)
    async with listening(pcp(table)) as port:
        with pytest.raises(NotMapped, match="not allowed"):
            await PcpRouter(ROUTE, secret=SECRET, port=port).map(TCP)


async def test_a_node_that_was_killed_gets_its_pcp_mapping_back() -> None:
    table = Table()
    async with listening(pcp(table)) as port:
        await PcpRouter(ROUTE, secret=SECRET, port=port).map(TCP)
        await PcpRouter(ROUTE, secret=SECRET, port=port).map(TCP)  # a new process, the same secret
        with pytest.raises(NotMapped, match="not allowed"):
            await PcpRouter(ROUTE, secret=b"t" * 16, port=port).map(TCP)


async def test_upnp_takes_another_port_when_ours_is_taken() -> None:
    def taken(action: str, body: str) -> tuple[int, str] | None:
        conflict = action == "AddPortMapping" and "<NewExternalPort>17430<" in body
        return (500, fault(718, "ConflictInMappingEntry")) if conflict else None

    table = Table()
    async with igd(Igd(table, whim=taken)) as port:
        router = _upnp(port)
        await router.probe()
        granted = await router.map(TCP)
    assert granted.external_port == 1024 + 5000
    assert table.mapped["tcp", 17430][0] == granted.external_port


async def test_upnp_without_leases_is_mapped_for_ever() -> None:
    def permanent(action: str, body: str) -> tuple[int, str] | None:
        leased = action == "AddPortMapping" and "<NewLeaseDuration>0<" not in body
        return (500, fault(725, "OnlyPermanentLeasesSupported")) if leased else None

    router_of = Igd(Table(), whim=permanent)
    async with igd(router_of) as port:
        router = _upnp(port)
        await router.probe()
        assert (await router.map(TCP)).lifetime > 7200
    assert router_of.calls.count("AddPortMapping") == 2


async def test_upnp_notices_a_mapping_that_is_gone() -> None:
    table = Table()
    async with igd(Igd(table)) as port:
        router = _upnp(port)
        await router.probe()
        granted = await router.map(TCP)
        table.forget()
        assert (await router.pulse([granted])).forgot
        await router.unmap(granted)  # gone already: as it should be


async def test_upnp_calls_nobody_but_the_gateway() -> None:
    router_of = Igd(Table(), location_host="127.0.0.2")
    async with igd(router_of) as port:
        with pytest.raises(NotMapped, match=r"not on `127\.0\.0\.1`"):
            await _upnp(port).probe()
    elsewhere = Igd(Table(), description=DESCRIPTION_ELSEWHERE)
    async with igd(elsewhere) as port:
        with pytest.raises(NotMapped, match=r"not on `127\.0\.0\.1`"):
            await _upnp(port).probe()
    assert not router_of.calls and not elsewhere.calls


DESCRIPTION_ELSEWHERE = Igd(Table()).description.replace(
    "<controlURL>/control<", "<controlURL>http://127.0.0.2:80/control<"
)
