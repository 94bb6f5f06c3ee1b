"""The client role, from the settings: the API of other nodes on this machine."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from meshd.config import Config
from meshd.daemon.member_node import MemberNode
from meshd.daemon.role_kind import BuiltRole, FetchingRole, Wanted
from meshd.daemon.serve_role import claim_api
from meshd.devices.interface import RoleRuntime
from meshd.gateway.interface import GatewayConfig
from meshd.identity.membership import Role
from meshd.store.hash_cache import HashCache
from meshd.tunnel.on_demand import open_on_demand

if TYPE_CHECKING:
    from meshd.client.api_client import ApiClient
    from meshd.gateway.access import ApiPort
    from meshd.gateway.server import Gateway


class ClientRole:
    """The kind of role that serves other nodes' API here (implements RoleKind)."""

    needs_native = False
    runs_llama_server = False
    founds_mesh = False
    token_use = what_now = ""

    def check_certified(self, roles: frozenset[Role]) -> None:
        """Require the role `use`. Raises UserError."""
        from meshd.client.api_client import check_may_use

        check_may_use(roles)

    def wanted(self, config: Config) -> Sequence[Wanted]:
        """Return no models: a client uses those of other nodes."""
        return ()

    def devices(self, config: Config) -> Sequence[str]:
        """Return that a client uses no device."""
        return ("none",)

    def threads(self, config: Config) -> int:
        """Return 1, because a client computes no layers."""
        return 1

    async def claim(self, config: Config, hashes: HashCache, held: contextlib.ExitStack) -> "ClaimedClient":
        """Bind the API's port. Raises UserError."""
        client = config.client
        api = await claim_api(
            GatewayConfig(
                port=client.port,
                allowed_origins=client.allowed_origins,
                continue_seconds=float(client.continue_answers),
                fails_over=True,
            )
        )
        held.callback(api.close)
        return ClaimedClient(config, api)


@dataclass(frozen=True, slots=True)
class ClaimedClient:
    """A client whose port is bound (implements ClaimedRole)."""

    config: Config
    api: "ApiPort"

    def while_fetching(self, fetching: FetchingRole) -> BuiltRole:
        """Return the role that fetches."""
        return BuiltRole(fetching)

    async def fetched(self, config: Config) -> None:
        """Do nothing: a client fetches no models."""

    async def build(self, runtime: RoleRuntime, member: MemberNode) -> BuiltRole:
        """Build the client and its gateway."""
        from meshd.client.api_client import ApiClient
        from meshd.client.follow_heads import HeadFollower
        from meshd.gateway.request import PlainModel

        open_stream = partial(open_on_demand, runtime.mesh, metadata={})
        heads = HeadFollower(runtime.mesh, open_stream, self.config.client.heads)
        client = ApiClient(heads, runtime.tunnels.open, member.node.facts.peer, PlainModel)
        return BuiltRole(client, lambda: self._gateway(client))

    def _gateway(self, client: "ApiClient") -> "Gateway":
        from meshd.gateway.server import Gateway

        return Gateway(self.api, client, wall=time.time)
