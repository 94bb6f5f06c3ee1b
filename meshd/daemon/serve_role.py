"""The role serve, from the settings: a head and its gateway.

Both are imported where they are used: a worker's daemon knows this module, and does without aiohttp (11 MB).
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.config import Config
from meshd.daemon.member_node import MemberNode
from meshd.daemon.role_kind import BuiltRole
from meshd.daemon.role_runtime import device_speeds, machine_id
from meshd.gateway.interface import GatewayConfig
from meshd.library.ollama import name_of_blob
from meshd.model.known_architectures import check_architecture
from meshd.role.head.llama_args import read_llama_args
from meshd.role.interface import RoleRuntime
from meshd.role.native.processors import llama_threads
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile

if TYPE_CHECKING:
    from meshd.gateway.server import ApiPort
    from meshd.role.head.split_plan import HeadOptions

LOAD_MODE = "mmap"  # our module knows the weights of a mapped file, and nobody reads those of the workers
SLOTS = 4  # answers at once, each with its context, where memory allows; or `-- -np N`


class ServeRole:
    """Implements RoleKind."""

    needs_native = True
    runs_llama_server = True
    founds_mesh = True
    token_use = "on each machine that lends its GPU or CPU, run `meshd worker --join TOKEN`, with this token"

    def devices(self, config: Config) -> Sequence[str]:
        """See RoleKind."""
        return config.serve.devices

    def threads(self, config: Config) -> int:
        """See RoleKind."""
        return read_llama_args(config.serve.llama_args).threads or llama_threads()

    async def claim(self, config: Config, held: contextlib.ExitStack) -> "ClaimedServe":
        """See RoleKind."""
        read_llama_args(config.serve.llama_args)
        path = config.serve.model
        assert isinstance(path, Path)  # config/check.py; the verb has found what a name means
        cache = HashCache(config.paths.cache / "weights")
        file = await ModelFile.open(path, cache=cache, name=name_of_blob(path))
        held.callback(file.close)
        if config.paths.native_bin is None:  # a llama.cpp of the user's own may know others
            check_architecture(file.headers[0], label=file.name)
        api = await claim_api(_gateway_config(config))
        held.callback(api.close)
        return ClaimedServe(config, file, api)


@dataclass(frozen=True, slots=True)
class ClaimedServe:
    """Implements ClaimedRole."""

    config: Config
    file: ModelFile
    api: "ApiPort"

    async def build(self, runtime: RoleRuntime, member: MemberNode) -> BuiltRole:
        """See ClaimedRole."""
        from meshd.gateway.server import Gateway
        from meshd.role.head.cycle import Serve
        from meshd.role.head.member_api import MemberApi, served_models

        speeds = device_speeds(runtime, ServeRole().threads(self.config))
        head = Serve(runtime, self.file, head_options(self.config, member), speeds)
        gateway = Gateway(self.api.config, head, self.api)
        if not self.config.serve.no_members:
            MemberApi(
                runtime.mesh,
                runtime.tunnels.join,
                gateway,
                lambda: served_models(head.status.model, gateway.requests_now),
                me=member.node.facts.peer,
            )
        return BuiltRole(head, gateway)


def head_options(config: Config, member: MemberNode) -> "HeadOptions":
    """What the user decided for serving."""
    from meshd.role.head.split_plan import HeadOptions

    serve = config.serve
    return HeadOptions(
        min_workers=serve.min_workers,
        workers=serve.workers,
        tensor_split=serve.tensor_split,
        ctx_size=serve.ctx_size,
        devices=serve.devices,
        rpc=tuple(str(address) for address in serve.rpc),
        load_mode=serve.load_mode or LOAD_MODE,
        split=serve.split,
        push=not serve.no_push,
        activations=serve.activations,
        output=serve.output,
        sample_on_worker=serve.sample == "auto",
        slots=SLOTS,
        llama_args=serve.llama_args,
        machine=machine_id(member.membership.mesh.raw),
        node_name=config.node.name,
        node_id=str(member.node.facts.peer),
        incarnation=member.node.facts.incarnation,
        grace=float(config.links.grace),
    )


def _gateway_config(config: Config) -> GatewayConfig:
    from meshd.gateway.auth import load_keys

    serve = config.serve
    return GatewayConfig(
        host=serve.host,
        port=serve.port,
        api_keys=load_keys(serve.api_key_file) if serve.api_key_file is not None else (),
        allowed_hosts=serve.allowed_hosts,
        allowed_origins=serve.allowed_origins,
        continue_seconds=float(serve.continue_answers),
    )


async def claim_api(config: GatewayConfig) -> "ApiPort":
    """The API's port. Raises UserError when it cannot be had."""
    from meshd.gateway.server import ApiPort

    return await ApiPort.claim(config)
