"""The roles that a node can have, by the verb that starts it."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.base.tasks import in_thread
from meshd.config.tree import Config
from meshd.daemon.member_node import MemberNode
from meshd.daemon.role_kind import BuiltRole, FetchingRole, RoleKind, Wanted
from meshd.daemon.role_runtime import device_speeds, machine_id
from meshd.daemon.serve_role import ServeRole, claim_api
from meshd.devices.capacity import CapacityTeller
from meshd.devices.interface import RoleRuntime
from meshd.devices.path_probe import ProbesTaken
from meshd.gateway.interface import GatewayConfig
from meshd.identity.membership import Role
from meshd.identity.naming import CLIENT_ROLE, HEAD_ROLE, WORKER_ROLE
from meshd.library.interface import ModelSource
from meshd.library.stores import models_below
from meshd.store.content_store import DiskContentStore
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile
from meshd.tunnel.on_demand import open_on_demand
from meshd.worker.cycle import Worker
from meshd.worker.turn_times import computed_for
from meshd.worker.worker_options import Pause, WorkerOptions, check_may_work

if TYPE_CHECKING:
    from meshd.client.api_client import ApiClient
    from meshd.gateway.access import ApiPort
    from meshd.gateway.server import Gateway


class WorkerRole:
    """The kind of role that lends devices (implements RoleKind)."""

    needs_native = True
    runs_llama_server = False
    founds_mesh = True
    token_use = "where you want the API, run `meshd serve --model FILE --join INVITE`, with this invite"
    what_now = "this node is in the mesh, and lends its devices to each node that runs `meshd serve`"

    def check_certified(self, roles: frozenset[Role]) -> None:
        """Require the role `work`. Raises UserError."""
        check_may_work(roles)

    def wanted(self, config: Config) -> Sequence[Wanted]:
        """Return the models to fetch: those given by name."""
        return [Wanted(name, partial=True) for name in config.worker.models if isinstance(name, str)]

    def devices(self, config: Config) -> Sequence[str]:
        """Return the devices that the user named."""
        return config.worker.devices

    def threads(self, config: Config) -> int:
        """Return the number of CPU threads that compute layers."""
        return WorkerOptions(threads=config.worker.threads).cpu_threads

    async def claim(self, config: Config, hashes: HashCache, held: contextlib.ExitStack) -> "ClaimedWorker":
        """Open the store, and the model files unless models must be fetched. Raises UserError."""
        limit = config.worker.keep_weights
        store = DiskContentStore(config.paths.cache / "tensors", limit=limit, cache=hashes)
        claimed = ClaimedWorker(config, store, hashes, held.enter_context(contextlib.ExitStack()))
        if not self.wanted(config):
            await claimed.fetched(config)
        return claimed


@dataclass(frozen=True, slots=True)
class OwnModels:
    """The models that meshd itself put on this machine (implements Library): those that members may have.

    Not the user's other stores: what a worker lacks tells a head what it has.
    """

    folder: Path
    hashes: HashCache

    async def paths(self) -> Sequence[Path]:
        """Return the first file of each complete model."""

        def own() -> list[Path]:
            found = models_below(self.folder, ModelSource.MESHD)
            ours = {0, os.getuid()}
            return [
                model.paths[0]
                for model in found
                if model.complete and all(path.stat().st_uid in ours for path in model.paths)
            ]

        return await in_thread(own)

    async def open(self, path: Path) -> ModelFile:
        """Open the model. Raises UserError, OSError."""
        return await ModelFile.open(path, cache=self.hashes)


@dataclass(slots=True)
class ClaimedWorker:
    """A worker whose files are open (implements ClaimedRole); `held` closes them."""

    config: Config
    store: DiskContentStore
    hashes: HashCache
    held: contextlib.ExitStack
    files: Sequence[ModelFile] = ()
    pause: Pause = field(default_factory=Pause)
    """It holds while models are fetched, and from the worker's first moment on."""

    def while_fetching(self, fetching: FetchingRole) -> BuiltRole:
        """Return the role that fetches, which lends nothing yet and can be paused."""
        return BuiltRole(fetching, pause=self.pause)

    async def fetched(self, config: Config) -> None:
        """Open the model files. Raises UserError."""
        files = []
        for path in config.worker.models:
            assert isinstance(path, Path)  # names have been resolved by now
            files.append(await ModelFile.open(path, cache=self.hashes, partial=True))
            self.held.callback(files[-1].close)
        self.config, self.files = config, files

    async def build(self, runtime: RoleRuntime, member: MemberNode) -> BuiltRole:
        """Build the worker. Raises MeshdError if it cannot run here."""
        # The worker.
        lent = self.config.worker
        options = WorkerOptions(
            devices=lent.devices,
            memory=lent.memory,
            threads=lent.threads,
            machine=machine_id(member.membership.mesh.raw),
        )
        gives = self.config.node.give_models != "off"
        library = OwnModels(self.config.paths.cache / "models", self.hashes) if gives else None
        worker = Worker(runtime, self.files, options, self.store, self.pause, library)
        await worker.prepare()
        speeds = device_speeds(runtime, options.cpu_threads)
        # Its answers about capacity.
        ProbesTaken(runtime.mesh)
        CapacityTeller(
            runtime.mesh,
            speeds,
            devices=worker.devices,
            machine=options.machine,
            is_busy=lambda: worker.is_computing,
            is_lending=lambda: worker.is_lending,
            lacks=worker.lacks,
            computed=lambda peer, lease_id, spans: computed_for(
                ((server.lease, server.turns) for server in worker.servers), peer, lease_id, spans
            ),
        )
        return BuiltRole(worker, pause=self.pause, lendable=worker.lendable, speeds=speeds)


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


ROLES: Mapping[str, RoleKind] = {
    WORKER_ROLE: WorkerRole(),
    HEAD_ROLE: ServeRole(),
    CLIENT_ROLE: ClientRole(),
}
