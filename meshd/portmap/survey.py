"""Checks whether the home router supports port mapping, without mapping any: for a check without a daemon."""

from collections.abc import Callable, Sequence

from meshd.base.errors import Broken
from meshd.base.tasks import Owner
from meshd.portmap.gateway import find_route
from meshd.portmap.interface import GatewayRoute, HomeRouter, MapState, MapStatus, NotMapped, Pulse
from meshd.portmap.lease import why_not_outside


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
