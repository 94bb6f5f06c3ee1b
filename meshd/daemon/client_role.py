"""The role client, from the settings: the API of other nodes on this machine."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from meshd.config import Config
from meshd.daemon.member_node import MemberNode
from meshd.daemon.role_kind import BuiltRole
from meshd.daemon.serve_role import claim_api, kept_answers
from meshd.gateway.interface import GatewayConfig
from meshd.role.interface import RoleRuntime
from meshd.store.hash_cache import HashCache
from meshd.tunnel.on_demand import open_on_demand

if TYPE_CHECKING:
    from meshd.gateway.server import ApiPort


class ClientRole:
    """Implements RoleKind."""

    needs_native = False
    runs_llama_server = False
    founds_mesh = False
    token_use = what_now = ""

    def devices(self, config: Config) -> Sequence[str]:
        """See RoleKind."""
        return ("none",)

    def threads(self, config: Config) -> int:
        """See RoleKind."""
        return 1

    async def claim(self, config: Config, hashes: HashCache, held: contextlib.ExitStack) -> "ClaimedClient":
        """See RoleKind."""
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
    """Implements ClaimedRole."""

    config: Config
    api: "ApiPort"

    async def build(self, runtime: RoleRuntime, member: MemberNode) -> BuiltRole:
        """See ClaimedRole."""
        from meshd.gateway.one_model import PlainModel
        from meshd.gateway.server import Gateway
        from meshd.role.client.api_client import ApiClient, check_may_use
        from meshd.role.client.follow_heads import HeadFollower

        check_may_use(member.membership.roles)
        open_stream = partial(open_on_demand, runtime.mesh, metadata={})
        heads = HeadFollower(runtime.mesh, open_stream, self.config.client.heads)
        client = ApiClient(heads, runtime.tunnels.open, member.node.facts.peer, PlainModel)
        kept = kept_answers(self.config, self.api.config)
        return BuiltRole(client, Gateway(self.api.config, client, self.api, kept=kept))
