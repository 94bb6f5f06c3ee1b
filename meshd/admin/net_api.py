"""The output of `meshd netcheck --json`: the network of a node as frozen values; see api.py for the rules."""

from dataclasses import dataclass
from typing import Literal

from meshd.admin.request import Request

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NatView:
    """`kind` in words; the others as in RFC 5780, or `unknown`. `step` belongs to `counting` ports."""

    kind: str
    mapping: str
    filtering: str
    ports: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PortMappingView:
    """`state`: off, asking, no_gateway, silent, refused, behind_nat, mapped, or offered (no daemon asks)."""

    state: str
    language: str | None  # pcp, nat-pmp or upnp
    gateway: str | None
    external: str | None
    mappings: tuple[str, ...]
    verified: bool | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemView:
    """One problem: a stable code, a description, a hint."""

    code: str
    severity: Severity
    what: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetcheckReply:
    """One check. `udp`, `tcp`, `ipv6`, `hairpin`: lower-case words of wire/netfacts.py. `age_s`: seconds ago.

    `direct` says in one sentence whether peers could be direct.
    """

    udp: str
    tcp: str
    nat: NatView
    tcp_nat: NatView
    ipv6: str
    hairpin: str
    public_v4: str | None
    public_v6: str | None
    carrier_nat: bool
    port_mapping: PortMappingView
    direct: str
    problems: tuple[ProblemView, ...]
    servers: tuple[str, ...]
    age_s: float
    daemon: bool  # False: checked by the command itself, no daemon runs


@dataclass(frozen=True, slots=True, kw_only=True)
class NetcheckRequest(Request[NetcheckReply], name="netcheck"):
    """Check now what network this node is in, which takes some seconds."""
