"""Port mapping: a port of the home router that is forwarded to this node, requested from the router itself.

One `PortMapper` (mapper.py) a daemon. It asks the default gateway in three languages (pcp.py,
upnp.py), keeps a mapping for each mesh port as long as it serves, and takes it away at the end. Nothing here
knows links; what it gets are candidates of kind `mapped`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from meshd.base.errors import MeshdError
from meshd.wire.address import Candidate
from meshd.wire.portmap import Granted, Wish


class Language(StrEnum):
    """The protocol spoken with a router, the best first: with PCP its restart is noticed soonest."""

    PCP = "pcp"
    NATPMP = "nat-pmp"
    UPNP = "upnp"


class MapState(StrEnum):
    """The state of port mapping."""

    OFF = "off"  # by the user's wish
    ASKING = "asking"
    NO_GATEWAY = "no_gateway"  # no default route
    SILENT = "silent"  # the gateway answers in none of the languages
    REFUSED = "refused"  # it answered, and would not
    BEHIND_NAT = "behind_nat"  # it would, but has itself no public address
    OFFERED = "offered"  # it would; it was not asked to
    MAPPED = "mapped"


class NotMapped(MeshdError):
    """The failure of a router; `silent`: it never answered."""

    def __init__(self, what: str, *, silent: bool = False) -> None:
        super().__init__(what)
        self.silent = silent


@dataclass(frozen=True, slots=True, kw_only=True)
class MapStatus:
    """`language` and `gateway` None while unknown; `external` is the router's outer address, maybe private.

    `verified`: True when the outer address is the one that somebody outside sees or somebody came in by it;
    False when outside another one is seen; None when nobody could tell.
    """

    state: MapState
    gateway: str | None = None
    language: Language | None = None
    external: str | None = None
    mappings: tuple[Candidate, ...] = ()
    verified: bool | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """The way out of this network: the gateway and this machine's address towards it."""

    gateway: str
    local: str


@dataclass(frozen=True, slots=True)
class Pulse:
    """A sign of life of the router: `epoch` None where it has none (UPnP)."""

    epoch: int | None
    external_host: str  # empty where the answer does not tell
    forgot: bool = False  # it says itself that a mapping is gone


class HomeRouter(Protocol):
    """One gateway, asked in one language. Every method raises NotMapped, and takes at most some seconds."""

    @property
    def language(self) -> Language: ...

    async def probe(self) -> Pulse:
        """Check whether the router is there; changes nothing."""
        ...

    async def map(self, wish: Wish) -> Granted:
        """Make or renew one mapping; the external host is filled in if the language can tell."""
        ...

    async def unmap(self, granted: Granted) -> None:
        """Remove one mapping."""
        ...

    async def pulse(self, held: Sequence[Granted]) -> Pulse:
        """Check whether the router still knows the mappings."""
        ...
