"""The network around this node: the facts from netcheck, and the ports that the home router maps.

Check the network for a command without a daemon: map and keep nothing.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence

from meshd.admin.api import NetcheckReply
from meshd.admin.snapshot import NOT_ASKED, mapped, netcheck_reply
from meshd.base.errors import UserError
from meshd.base.fault_boundary import kept_up
from meshd.base.tasks import Owner
from meshd.base.wakeful_loop import LookupLoop
from meshd.config.tree import Config
from meshd.identity.invite import parse_relay_url
from meshd.identity.keystore import Home
from meshd.link.interface import Link
from meshd.link.net import local_addresses
from meshd.netcheck.advice import why_not_direct
from meshd.netcheck.interface import NetReport
from meshd.netcheck.probe import NetWatch, Servers
from meshd.portmap.interface import MapStatus
from meshd.portmap.mapper import PortMapper, home_routers, survey
from meshd.wire.address import Candidate, Proto
from meshd.wire.netfacts import CAPABILITY, NetFacts

FIRST_LOOK_SECONDS = 3.0  # a first token waits so long; routers that map answer within one second
PORTMAP_BLOB = "portmap"  # proves to a router that this is the same node


class NetworkState:
    """The known facts of this node's network, and the ports that its home router maps to it.

    `changed` is called when a mapped port comes or goes, or the facts change. A node that listens on loopback
    only (`local_only`) asks no server and no router.
    """

    def __init__(
        self,
        *,
        config: Config,
        home: Home,
        ports: Callable[[], Sequence[tuple[Proto, int]]],
        local_only: bool,
        changed: Callable[[], None],
    ) -> None:
        self._local_only = local_only
        self._changed = changed
        self._looked = asyncio.Event()
        # The router.
        self.portmap = PortMapper(
            ports=ports,
            routers=home_routers(
                secret=portmap_secret(home),
                name=config.node.name,
                random_port=lambda: secrets.randbelow(1 << 16),
            ),
            changed=changed,
            settled=self._router_settled,
            enabled=not (config.links.no_portmap or local_only),
        )
        if config.links.no_portmap or local_only:
            self._looked.set()  # there is nothing to wait for
        # The servers.
        self.watch = NetWatch(
            servers=Servers(()) if local_only else servers_of(config),
            hosts=local_addresses.hosts,
            router=lambda: mapped(self.portmap.status()),
            changed=self._learned,
        )

    def mappings(self) -> tuple[Candidate, ...]:
        """Return the router's addresses that lead to this node."""
        return self.portmap.mappings()

    def capabilities(self) -> Mapping[str, str]:
        """Return the facts for this node's record, if any, which tell peers about its network."""
        facts = self.facts()
        return {CAPABILITY: facts.to_text()} if facts != NetFacts() else {}

    def why_not_direct(self, theirs: NetFacts | None, last_error: str) -> str:
        """Say in one sentence why a link is not direct (netcheck/advice.py)."""
        return why_not_direct(self.facts(), theirs, last_error=last_error)

    def addresses_changed(self) -> None:
        """Look again: this machine is in another network, or has slept."""
        self.portmap.poke()
        self.watch.poke()

    def came_in(self, link: Link) -> None:
        """Note a link that came in at the mesh port: from outside, it proves that the mapping works."""
        if link.info.path in ("public", "mapped"):
            self.portmap.came_in()

    async def serve(self) -> None:
        """Map ports and watch the network, until cancelled."""
        async with Owner() as owner:
            owner.start(
                kept_up(self.portmap.serve, source="router", name="port mapping"), name="port mapping"
            )
            if not self._local_only:
                owner.start(
                    kept_up(self.watch.serve, source="STUN servers", name="netcheck"), name="netcheck"
                )

    async def reply(self) -> NetcheckReply:
        """Check now, for `meshd netcheck`. Raises UserError if the node listens on loopback only."""
        if self._local_only:
            raise UserError(
                "this node listens on loopback only, so there is no network to check",
                hint="restart it without `--listen 127.0.0.1:…`",
            )
        report = await self.watch.check()
        now = asyncio.get_running_loop().time()
        return netcheck_reply(report, self.portmap.status(), now=now, daemon=True)

    async def first_look(self) -> None:
        """Wait up to 3 s until the router was first asked, because an invite should name its port."""
        try:
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._looked.wait()
        except TimeoutError:
            pass

    def _router_settled(self) -> None:
        self._looked.set()
        self.watch.router_changed()

    def facts(self) -> NetFacts:
        """Return the current facts about this node's network."""
        report = self.watch.report()
        return report.facts if report is not None else NetFacts()

    def _learned(self, report: NetReport) -> None:
        seen = {report.facts.public_v4, report.seen_v6} - {""}
        self.portmap.seen_outside(frozenset(seen))
        self._changed()


def portmap_secret(home: Home) -> bytes:
    """Return the secret that names this node's port mappings, made at the first call."""
    kept = home.read_blob(PORTMAP_BLOB)
    if kept is None or len(kept) < 16:
        kept = secrets.token_bytes(32)
        home.keep_blob(PORTMAP_BLOB, kept)
    return kept


def servers_of(config: Config) -> Servers:
    """Return the configured STUN servers and relays, which answer STUN as well. Raises UserError."""
    relays = tuple(parse_relay_url(url).place for url in config.links.relays)
    return Servers((*config.links.stun, *relays), relays)


def check_alone(config: Config, servers: Servers) -> NetcheckReply:
    """Check the network, which takes some seconds."""
    with asyncio.Runner(loop_factory=LookupLoop) as runner:
        return runner.run(_check(config, servers))


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
