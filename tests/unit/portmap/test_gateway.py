"""The default gateway, out of what Linux and macOS print; and this machine's own."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import Broken
from meshd.portmap.mapper import address_towards, find_route, read_netstat, read_proc

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
