"""The interface between the daemon and a role: what a role needs on this machine, and how it is built.

The roles are listed in roles.py; nothing else in the daemon distinguishes them.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from meshd.config.tree import Config
from meshd.daemon.member_node import MemberNode
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.interface import RoleRuntime, RunningRole
from meshd.identity.membership import Role
from meshd.model.status import FetchStatus
from meshd.store.hash_cache import HashCache
from meshd.wire.lease import OfferedDevice
from meshd.worker.worker_options import Pause

if TYPE_CHECKING:
    from meshd.gateway.server import Gateway
    from meshd.head.explain import Explained
    from meshd.head.model_pool import ModelPool
    from meshd.head.speculation import Drafting
    from meshd.head.worker_choice import ServedAs


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model that a role was given by name and this machine lacks.

    `header_only`: a head without layers needs only the header. `partial`: a worker can use a part of it.
    """

    name: str
    header_only: bool = False
    partial: bool = False


@dataclass(frozen=True, slots=True)
class BuiltRole:
    """A role, and the function that makes its gateway, if it serves an API.

    The gateway is made once its modules are imported, while the role already runs.
    """

    role: RunningRole
    gateway: "Callable[[], Gateway] | None" = None
    pause: Pause | None = None
    """The pause of a role that lends devices."""
    lendable: Callable[[Sequence[OfferedDevice]], tuple[OfferedDevice, ...]] = tuple
    """Return these devices of this machine, with the memory that the user lends."""
    held: Callable[[], Mapping[tuple[str, str], int]] = dict
    """Return the memory that the role's model occupies, by node and device."""
    explain: "Callable[[], Awaitable[Explained | None]] | None" = None
    """Account for the time of the served model's tokens; None while it is not loaded."""
    speeds: DeviceSpeeds | None = None
    """The speeds of the devices that the role's status lists."""
    pool: "ModelPool | None" = None
    """The models of a role with several."""
    serving: "Callable[[Path], ServedAs | None]" = lambda _file: None
    """Return how a model with this file is, or would be, served; None: by the settings."""
    drafting: "Callable[[Path], Drafting | None]" = lambda _file: None
    """Return the drafts of the model with this file; None if it is not served."""


class FetchingRole(RunningRole, Protocol):
    """The substitute for a role while its models are fetched (fetching.py)."""

    @property
    def now(self) -> FetchStatus:
        """The progress of the fetch."""
        ...

    @property
    def lacks(self) -> Collection[str]:
        """The names of the models that are not here yet."""
        ...


class ClaimedRole(ABC):
    """A role whose files are open and whose ports are bound."""

    def while_fetching(self, fetching: FetchingRole) -> BuiltRole:
        """Return the role to run until the models are here."""
        return BuiltRole(fetching)

    async def fetched(self, config: Config) -> None:
        """Open the files of models that were fetched; `config` has their paths. Raises UserError."""
        return

    @abstractmethod
    async def build(self, runtime: RoleRuntime, member: MemberNode) -> BuiltRole:
        """Build the role. Raises MeshdError if it cannot run here."""


class RoleKind(ABC):
    """A kind of role, one of ROLES (roles.py): what it needs, unless it says otherwise, is nothing."""

    needs_native = False  # it starts programs of llama.cpp
    runs_llama_server = False  # and llama-server, not just mesh-server
    founds_mesh = False  # when the node is in no mesh and has no invite; else that is an error
    token_use = ""  # for people: how to use the printed invite; empty if none is printed
    what_now = ""  # for people, after joining without a printed invite; empty if the API's readiness says it

    def check_certified(self, roles: frozenset[Role]) -> None:
        """Check the roles of this node's certificate. Raises UserError if it may not run this role."""
        return

    def wanted(self, config: Config) -> Sequence[Wanted]:
        """Return the models to fetch before the role begins."""
        return ()

    def devices(self, config: Config) -> Sequence[str]:
        """Return the devices that the settings name; a missing one is an error."""
        return ("none",)

    def threads(self, config: Config) -> int:
        """Return the number of CPU threads that compute layers."""
        return 1

    @abstractmethod
    async def claim(self, config: Config, hashes: HashCache, held: contextlib.ExitStack) -> ClaimedRole:
        """Open the files and bind the ports that the role needs; `held` closes them.

        `hashes`: the daemon's cache of hashes. If models must be fetched, no model file is opened yet. Raises
        UserError if a file or port is unavailable.
        """
