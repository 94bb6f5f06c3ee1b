"""Presents the network facts as `meshd netcheck` shows them. Pure."""

from meshd.admin.net_api import NatView, NetcheckReply, PortMappingView, ProblemView
from meshd.netcheck.advice import advise, nat_class, outlook
from meshd.netcheck.interface import NetReport
from meshd.portmap.interface import MapState, MapStatus
from meshd.wire.netfacts import Mapped, Mapping, NetFacts

NOT_ASKED = MapStatus(state=MapState.OFF)


def netcheck_reply(report: NetReport, router: MapStatus, *, now: float, daemon: bool) -> NetcheckReply:
    """Return the reply of netcheck. `now` in loop seconds, as `report.at`."""
    # Names of RFC 5780 in lower case; empty values as null.
    facts = report.facts
    return NetcheckReply(
        udp=facts.udp.name.lower(),
        tcp=facts.tcp.name.lower(),
        nat=NatView(
            kind=nat_class(facts),
            mapping=facts.mapping.name.lower(),
            filtering=facts.filtering.name.lower(),
            ports=facts.ports.name.lower(),
            step=facts.udp_step,
        ),
        tcp_nat=NatView(
            kind=_tcp_class(facts),
            mapping=facts.tcp_mapping.name.lower(),
            filtering="unknown",
            ports=facts.tcp_ports.name.lower(),
            step=facts.tcp_step,
        ),
        ipv6=facts.ipv6.name.lower(),
        hairpin=facts.hairpin.name.lower(),
        public_v4=facts.public_v4 or None,
        public_v6=report.seen_v6 or None,
        carrier_nat=facts.carrier_nat,
        port_mapping=_port_mapping(router),
        direct=outlook(facts, servers=report.servers, unresolved=report.unresolved),
        problems=tuple(
            ProblemView(code=problem.code, severity=problem.severity, what=problem.what, hint=problem.hint)
            for problem in advise(facts, servers=report.servers, unresolved=report.unresolved)
        ),
        servers=report.servers,
        age_s=round(max(0.0, now - report.at), 1),
        daemon=daemon,
    )


def mapped(router: MapStatus) -> tuple[Mapped, str]:
    """Return the state of port mapping for netcheck, and the router's outer address or nothing."""
    states = {
        MapState.MAPPED: Mapped.YES,
        MapState.OFFERED: Mapped.YES,  # a daemon would ask for it
        MapState.BEHIND_NAT: Mapped.BEHIND_NAT,
        MapState.SILENT: Mapped.NO,
        MapState.REFUSED: Mapped.NO,
        MapState.NO_GATEWAY: Mapped.NO,
    }
    state = states.get(router.state, Mapped.UNKNOWN)
    if router.verified is False:
        state = Mapped.BEHIND_NAT
    return state, router.external or ""


def _port_mapping(router: MapStatus) -> PortMappingView:
    return PortMappingView(
        state=str(router.state),
        language=None if router.language is None else str(router.language),
        gateway=router.gateway,
        external=router.external,
        mappings=tuple(map(str, router.mappings)),
        verified=router.verified,
        why=router.why,
    )


def _tcp_class(facts: NetFacts) -> str:
    return {
        Mapping.UNKNOWN: "unknown",
        Mapping.NONE: "none",
        Mapping.INDEPENDENT: "endpoint-independent",
    }.get(facts.tcp_mapping, "symmetric")
