"""Discovery, as other packages see it: tokens, records, and neighbours."""

from dataclasses import dataclass
from typing import Literal

MdnsState = Literal["off", "looking", "silent", "heard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MdnsStatus:
    """Multicast DNS: `off`, `looking` (no member heard yet), `silent` (none heard in time), `heard`."""

    state: MdnsState
    networks: tuple[str, ...] = ()  # interfaces where this node is announced
    members: int = 0  # seen there
    why: str = ""
