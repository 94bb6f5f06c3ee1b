"""What the daemon knows of a role: what it takes on this machine, and what is built of that.

The roles themselves stand in roles.py; nothing else in the daemon tells one from another.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from meshd.config import Config
from meshd.daemon.member_node import MemberNode
from meshd.role.interface import RoleRuntime, RunningRole
from meshd.role.native.device_speeds import DeviceSpeeds
from meshd.role.worker.pause import Pause
from meshd.store.hash_cache import HashCache
from meshd.wire.lease import OfferedDevice

if TYPE_CHECKING:
    from meshd.gateway.server import Gateway
    from meshd.role.head.draft_forecast import Drafting
    from meshd.role.head.explain import Explained
    from meshd.role.head.worker_choice import ServedAs


@dataclass(frozen=True, slots=True)
class BuiltRole:
    """A role, and the gateway of one that serves an API."""

    role: RunningRole
    gateway: "Gateway | None" = None
    pause: Pause | None = None
    """Of a role that lends devices."""
    lendable: Callable[[Sequence[OfferedDevice]], tuple[OfferedDevice, ...]] = tuple
    """Devices of this machine, with what its user lends of their memory."""
    held: Callable[[], Mapping[tuple[str, str], int]] = dict
    """Memory that its model takes of devices, by node and device."""
    explain: "Callable[[], Awaitable[Explained | None]] | None" = None
    """Of one that serves a model: where the time of its tokens went; None while it is not loaded."""
    speeds: DeviceSpeeds | None = None
    """Of the devices that its status lists."""
    serving: "Callable[[Path], ServedAs | None]" = lambda _file: None
    """How a model with this file is, or would be, served; None: as the settings say."""
    drafting: "Callable[[Path], Drafting | None]" = lambda _file: None
    """Of the model with this file; None where it is not served."""


class ClaimedRole(Protocol):
    """A role whose files are open and whose ports are bound."""

    async def build(self, runtime: RoleRuntime, member: MemberNode) -> BuiltRole:
        """Raises MeshdError when the role cannot be played here."""
        ...


class RoleKind(Protocol):
    """One of ROLES (roles.py)."""

    @property
    def needs_native(self) -> bool:
        """Else it starts no program of llama.cpp."""
        ...

    @property
    def runs_llama_server(self) -> bool:
        """Else mesh-server is all that it needs."""
        ...

    @property
    def founds_mesh(self) -> bool:
        """Where this node is in none yet and has no token; else that is an error."""
        ...

    @property
    def token_use(self) -> str:
        """What a person does with the invite token that it prints; empty: it prints none."""
        ...

    @property
    def what_now(self) -> str:
        """For a person whose node has joined, and prints no token; empty: the API says that it is ready."""
        ...

    def devices(self, config: Config) -> Sequence[str]:
        """Those that it is told to use: one that is not there is an error."""
        ...

    def threads(self, config: Config) -> int:
        """With which its CPU computes layers."""
        ...

    async def claim(self, config: Config, hashes: HashCache, held: contextlib.ExitStack) -> ClaimedRole:
        """Open and bind what it needs; `held` gives it back. `hashes` are those of the whole daemon.

        Raises UserError for what cannot be had.
        """
        ...
