"""Check the network for a command without a daemon: map and keep nothing."""

import asyncio
import secrets

from meshd.admin.net_api import NetcheckReply
from meshd.admin.net_view import NOT_ASKED, mapped, netcheck_reply
from meshd.base.tasks import Owner
from meshd.config import Config
from meshd.identity.relay_url import parse_relay_url
from meshd.link.net import local_addresses
from meshd.netcheck.interface import NetReport
from meshd.netcheck.probe import Servers
from meshd.netcheck.watch import NetWatch
from meshd.portmap.interface import MapStatus
from meshd.portmap.mapper import home_routers
from meshd.portmap.survey import survey


def servers_of(config: Config) -> Servers:
    """Return the configured STUN servers and relays, which answer STUN as well. Raises UserError."""
    relays = tuple(parse_relay_url(url).place for url in config.links.relays)
    return Servers((*config.links.stun, *relays), relays)


def check_alone(config: Config, servers: Servers) -> NetcheckReply:
    """Check the network, which takes some seconds."""
    return asyncio.run(_check(config, servers))


async def _check(config: Config, servers: Servers) -> NetcheckReply:
    router = NOT_ASKED
    watch = NetWatch(servers=servers, hosts=local_addresses.hosts, router=lambda: mapped(router))
    async with Owner() as owner:
        checking = owner.start(watch.check(), name="netcheck")
        asking = owner.start(_ask_router(config), name="router")
    router = asking.result()
    watch.router_changed()
    report: NetReport = watch.report() or checking.result()
    now = asyncio.get_running_loop().time()
    return netcheck_reply(report, router, now=now, daemon=False)


async def _ask_router(config: Config) -> MapStatus:
    if config.links.no_portmap:
        return NOT_ASKED
    # Nothing is mapped, so neither secret nor randomness matters.
    ask = home_routers(
        secret=bytes(16), name=config.node.name, random_port=lambda: secrets.randbelow(1 << 16)
    )
    return await survey(ask)
