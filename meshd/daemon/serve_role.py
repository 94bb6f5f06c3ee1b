"""The role serve, from the settings: a head and its gateway.

Both are imported where they are used, and so is what else only a head needs: a worker's daemon knows this
module, and does without aiohttp (11 MB).
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.base.byte_format import in_bytes
from meshd.base.errors import UserError
from meshd.config import Config, ServeConfig
from meshd.daemon.member_node import MemberNode
from meshd.daemon.role_kind import BuiltRole
from meshd.daemon.role_runtime import device_speeds, machine_id
from meshd.gateway.interface import GatewayConfig
from meshd.library.ollama import name_of_blob
from meshd.model.known_architectures import check_architecture, check_projector
from meshd.model.status import ModelStatus
from meshd.role.interface import RoleRuntime
from meshd.role.native.device_speeds import DeviceSpeeds
from meshd.role.native.processors import llama_threads
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile

if TYPE_CHECKING:
    from meshd.gateway.interface import Models
    from meshd.gateway.kept_folder import KeptFolder
    from meshd.gateway.server import ApiPort, Gateway
    from meshd.role.head.draft_model import DraftModel
    from meshd.role.head.split_plan import HeadOptions
    from meshd.role.models.model_pool import ModelPool

LOAD_MODE = "mmap"  # our module knows the weights of a mapped file, and nobody reads those of the workers


class ServeRole:
    """Implements RoleKind."""

    needs_native = True
    runs_llama_server = True
    founds_mesh = True
    token_use = "on each machine that lends its GPU or CPU, run `meshd worker --join TOKEN`, with this token"
    what_now = ""

    def devices(self, config: Config) -> Sequence[str]:
        """See RoleKind."""
        return tuple(dict.fromkeys(name for one in _served(config) for name in one.devices))

    def threads(self, config: Config) -> int:
        """See RoleKind."""
        from meshd.role.head.llama_args import read_llama_args

        return read_llama_args(config.serve.llama_args).threads or llama_threads()

    async def claim(self, config: Config, hashes: HashCache, held: contextlib.ExitStack) -> "ClaimedServe":
        """See RoleKind."""
        from meshd.role.head.llama_args import read_llama_args

        files = []
        for serve in _served(config):
            read_llama_args(serve.llama_args)
            own = await _open(serve.model, config, hashes, held, header_only=serve.header_only)
            smaller = [await _open(one, config, hashes, held) for one in serve.fallback_models]
            _check_smaller(own, smaller)
            files.append([own, *smaller])
            if serve.mmproj is not None:
                await _check_mmproj(serve.mmproj, hashes)
        api = await claim_api(_gateway_config(config))
        held.callback(api.close)
        return ClaimedServe(config, files, api, hashes)


def _served(config: Config) -> Sequence[ServeConfig]:
    """How each model is served."""
    return [model.serve for model in config.models] or [config.serve]


async def _open(
    path: Path | str | None,
    config: Config,
    hashes: HashCache,
    held: contextlib.ExitStack,
    *,
    header_only: bool = False,
) -> ModelFile:
    assert isinstance(path, Path)  # config/check.py; the verb has found what a name means
    if header_only:
        from meshd.store.header_file import HeaderFile  # which no worker needs

        # the verb has left out this node's devices: here are no layers to compute with
        file: ModelFile = await HeaderFile.open_header(path)
    else:
        file = await ModelFile.open(path, cache=hashes, name=name_of_blob(path))
    held.callback(file.close)
    if config.paths.native_bin is None:  # a llama.cpp of the user's own may know others
        check_architecture(file.headers[0], label=file.name)
    return file


def _check_smaller(own: ModelFile, others: Sequence[ModelFile]) -> None:
    """Raises UserError for one that fits nowhere where the model's own does not: mistyped, most likely."""
    for other in others:
        if _weight_bytes(other) >= (size := _weight_bytes(own)):
            raise UserError(
                f"`{other.name}` is not smaller than `{own.name}`: its weights have "
                f"{in_bytes(_weight_bytes(other))}, the model's {in_bytes(size)}",
                hint="give a smaller quantisation of the same model with `--fallback-model`",
            )


def _weight_bytes(file: ModelFile) -> int:
    return sum(tensor.size for header in file.headers for tensor in header.tensors)


@dataclass(frozen=True, slots=True)
class ClaimedServe:
    """Implements ClaimedRole."""

    config: Config
    files: Sequence[Sequence[ModelFile]]
    """Of each model its own, and smaller ones for when that does not fit."""
    api: "ApiPort"
    hashes: HashCache

    async def build(self, runtime: RoleRuntime, member: MemberNode) -> BuiltRole:
        """See ClaimedRole."""
        from meshd.gateway.one_model import OneModel
        from meshd.role.head.cycle import Serve

        speeds = device_speeds(runtime, ServeRole().threads(self.config))
        if self.config.models:
            pool = await self._pool(runtime, member, speeds)
            gateway = self._gateway(pool, runtime, member, lambda: pool.statuses)
            return BuiltRole(
                pool,
                gateway,
                held=lambda: pool.held,
                explain=pool.explain,
                speeds=speeds,
                serving=pool.serving,
                drafting=pool.drafting,
            )
        file, *smaller = self.files[0]
        draft = await self._draft_model(self.config.serve, file)
        head = Serve(runtime, file, head_options(self.config, member, draft), speeds, smaller)
        gateway = self._gateway(OneModel(head), runtime, member, lambda: [head.model_status])
        return BuiltRole(
            head,
            gateway,
            held=lambda: head.held,
            explain=head.explain,
            speeds=speeds,
            serving=lambda _file: head.serving,
            drafting=head.drafting,
        )

    def _gateway(
        self,
        models: "Models",
        runtime: RoleRuntime,
        member: MemberNode,
        statuses: Callable[[], Sequence[ModelStatus]],
    ) -> "Gateway":
        """`statuses` of all models, which members are told."""
        from meshd.gateway.answer_log import ANSWER_LOG_NAME, AnswerLog
        from meshd.gateway.server import Gateway
        from meshd.role.head.member_api import MemberApi, served_models

        log = AnswerLog(self.config.paths.logs / ANSWER_LOG_NAME)
        kept = kept_answers(self.config, self.api.config)
        gateway = Gateway(self.api.config, models, self.api, log=log, kept=kept, wall=time.time)
        if not self.config.serve.no_members:
            MemberApi(
                runtime.mesh,
                runtime.tunnels.join,
                gateway,
                lambda: served_models(statuses(), gateway.requests_of, on_demand=models.on_demand),
                me=member.node.facts.peer,
            )
        return gateway

    async def _pool(self, runtime: RoleRuntime, member: MemberNode, speeds: DeviceSpeeds) -> "ModelPool":
        from meshd.role.head.cycle import Serve
        from meshd.role.models.load_policy import ModelRule
        from meshd.role.models.model_pool import ModelPool, PooledModel

        models = []
        for number, (model, files) in enumerate(zip(self.config.models, self.files, strict=True)):
            file, *smaller = files
            draft = await self._draft_model(model.serve, file)
            options = replace(
                head_options(replace(self.config, serve=model.serve), member, draft),
                name=model.name,
                child=f"llama-server-{model.name}",
                socket=f"m{number}.sock",  # no longer than that of control
            )
            head = Serve(runtime, file, options, speeds, smaller)
            rule = ModelRule(model.name, group=model.group, ttl=model.ttl)
            models.append(PooledModel(rule, head, aliases=model.aliases, preload=model.preload))
        return ModelPool(models)

    async def _draft_model(self, serve: ServeConfig, model: ModelFile) -> "DraftModel | None":
        """Raises UserError."""
        from meshd.role.head.draft_model import draft_model

        path = serve.draft_model
        if path is None:
            return None
        assert isinstance(path, Path)  # as the model's
        file = await ModelFile.open(path, cache=self.hashes, name=name_of_blob(path))
        file.close()
        return draft_model(str(path), file.name, file.headers, model.headers[0])


def head_options(config: Config, member: MemberNode, draft: "DraftModel | None" = None) -> "HeadOptions":
    """What the user decided for serving."""
    from meshd.role.head.fixed_layers import nodes_of
    from meshd.role.head.split_plan import HeadOptions

    serve = config.serve
    named = nodes_of(serve.layers, config.node.name)
    # options for drafts are those of the pin
    drafts = serve.speculate == "auto" and config.paths.native_bin is None
    return HeadOptions(
        min_workers=max(serve.min_workers, len(named)) if serve.layers else serve.min_workers,
        workers=serve.workers or named,
        standby=serve.standby,
        tensor_split=serve.tensor_split,
        layers=serve.layers,
        ctx_size=serve.ctx_size or None,
        largest_context=serve.ctx_size == 0,
        devices=serve.devices,
        rpc=tuple(str(address) for address in serve.rpc),
        load_mode=serve.load_mode or LOAD_MODE,
        split=serve.split,
        push=not serve.no_push,
        activations=serve.activations,
        output=serve.output,
        sample_on_worker=serve.sample == "auto",
        slots=serve.slots,
        llama_args=serve.llama_args,
        mmproj=str(serve.mmproj.absolute()) if serve.mmproj is not None else "",
        machine=machine_id(member.membership.mesh.raw),
        node_name=config.node.name,
        node_id=str(member.node.facts.peer),
        incarnation=member.node.facts.incarnation,
        grace=float(config.links.grace),
        speculate=drafts,
        draft_model=draft if drafts else None,
    )


async def _check_mmproj(path: Path, hashes: HashCache) -> None:
    """llama-server reads it; here only that it is one. Raises UserError."""
    file = await ModelFile.open(path, cache=hashes)
    try:
        check_projector(file.headers[0], label=file.name)
    finally:
        file.close()


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
        max_wait_seconds=float(serve.max_wait),
    )


def kept_answers(config: Config, gateway: GatewayConfig) -> "KeptFolder | None":
    """Where answers are kept for clients that come back; None where answers do not go on."""
    from meshd.gateway.kept_folder import KEPT_ANSWERS_NAME, KeptFolder

    if gateway.continue_seconds <= 0:
        return None
    return KeptFolder(config.paths.home / KEPT_ANSWERS_NAME, wall=time.time)


async def claim_api(config: GatewayConfig) -> "ApiPort":
    """The API's port. Raises UserError when it cannot be had."""
    from meshd.gateway.server import ApiPort

    return await ApiPort.claim(config)
