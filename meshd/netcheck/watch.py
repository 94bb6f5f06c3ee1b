"""Checks what network this node is in: at the start, after changes, and every 20 minutes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from meshd.base import log
from meshd.netcheck.advice import nat_class, outlook
from meshd.netcheck.classify import classify
from meshd.netcheck.interface import NetReport, Observations
from meshd.netcheck.probe import Servers, observe
from meshd.wire.netfacts import Mapped

_AGAIN_SECONDS = 1200.0  # mappings and providers change seldom; addresses that change are told by `poke`
SETTLE_SECONDS = 1.0  # after a change: routes and address lookups follow a moment later
_LEAST_SECONDS = 30.0  # between two checks, however often something changes
LOG = log.get("netcheck")

Observe = Callable[[Servers, Sequence[str]], Awaitable[tuple[Observations, tuple[str, ...]]]]


async def _observe(servers: Servers, hosts: Sequence[str]) -> tuple[Observations, tuple[str, ...]]:
    return await observe(servers, hosts=hosts)


class NetWatch:
    """The present knowledge of this network, kept up to date by `serve`.

    `hosts` tells this machine's addresses, `router` what port mapping knows (its state, and the router's
    outer address or empty), both as of now. `changed` is called after a report with other facts than before.
    """

    def __init__(
        self,
        *,
        servers: Servers,
        hosts: Callable[[], Sequence[str]],
        router: Callable[[], tuple[Mapped, str]] = lambda: (Mapped.UNKNOWN, ""),
        changed: Callable[[NetReport], None] = lambda _report: None,
        observe: Observe = _observe,
    ) -> None:
        self._servers = servers
        self._hosts = hosts
        self._router = router
        self._changed = changed
        self._observe = observe
        self._report: NetReport | None = None
        self._seen = Observations()
        self._poked = asyncio.Event()
        self._checking = asyncio.Lock()

    def report(self) -> NetReport | None:
        return self._report

    def poke(self) -> None:
        self._poked.set()

    def router_changed(self) -> None:
        """Update the facts from port mapping's new state, without another check."""
        if self._report is not None:
            self._take(replace(self._report, facts=classify(self._with_router(self._seen))))

    async def serve(self) -> None:
        """Check repeatedly, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(_LEAST_SECONDS)
            try:
                async with asyncio.timeout(_AGAIN_SECONDS - _LEAST_SECONDS):
                    await self._poked.wait()
                    await asyncio.sleep(SETTLE_SECONDS)
            except TimeoutError:
                pass

    async def check(self) -> NetReport:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        async with self._checking:
            if self._report is not None and self._report.at > asked_at:
                return self._report  # somebody else's check ended while we waited for it
            self._poked.clear()
            seen, unresolved = await self._observe(self._servers, self._hosts())
            self._seen = seen
            report = NetReport(
                facts=classify(self._with_router(seen)),
                at=loop.time(),
                seconds=loop.time() - asked_at,
                servers=(*self._servers.stun, *self._servers.relays),
                unresolved=unresolved,
                seen_v6=next((answer.mapped.host for answer in seen.udp if ":" in answer.mapped.host), ""),
            )
            self._take(report)
            return report

    def _with_router(self, seen: Observations) -> Observations:
        mapped, external = self._router()
        return replace(seen, mapped=mapped, router_external=external)

    def _take(self, report: NetReport) -> None:
        before, self._report = self._report, report
        if before is None or before.facts != report.facts:
            what = outlook(report.facts, servers=report.servers, unresolved=report.unresolved)
            LOG.info("network", kind=nat_class(report.facts), what=what)
            self._changed(report)
