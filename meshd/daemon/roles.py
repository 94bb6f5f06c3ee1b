"""The roles that a node can have, by the verb that starts it: serve, worker and client.

Modules that only a head needs are imported where they are used: a worker avoids aiohttp (11 MB).
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.tasks import in_thread
from meshd.base.units import in_bytes
from meshd.config.serve_settings import ModelSettings, ServeConfig
from meshd.config.tree import Config
from meshd.daemon.member_node import MemberNode
from meshd.daemon.native import machine_id
from meshd.daemon.role_kind import BuiltRole, ClaimedRole, FetchingRole, RoleKind, Wanted
from meshd.daemon.role_runtime import device_speeds
from meshd.devices.capacity import CapacityTeller
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.devices import head_threads
from meshd.devices.interface import RoleRuntime
from meshd.devices.path_probe import ProbesTaken
from meshd.gateway.interface import GatewayConfig
from meshd.identity.membership import Role
from meshd.identity.naming import CLIENT_ROLE, HEAD_ROLE, WORKER_ROLE
from meshd.library.interface import ModelSource
from meshd.library.ollama import name_of_blob
from meshd.library.stores import models_below
from meshd.link.net.wireless import are_wireless
from meshd.model.architectures import check_architecture, check_is_model, check_projector
from meshd.model.status import ModelStatus
from meshd.store.content_store import DiskContentStore
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile
from meshd.tunnel.joined import open_on_demand
from meshd.worker.lending import Worker
from meshd.worker.turn_times import computed_for
from meshd.worker.worker_options import Pause, WorkerOptions, check_may_work

if TYPE_CHECKING:
    from meshd.client.api_client import ApiClient
    from meshd.daemon.fetching import ModelsOnceFetched
    from meshd.gateway.access import ApiPort
    from meshd.gateway.interface import Models, Upstream
    from meshd.gateway.server import Gateway
    from meshd.gateway.tracing import Tracing
    from meshd.head.model_pool import ModelPool
    from meshd.model.served_facts import ServedFacts
    from meshd.plan.wishes import DraftModel, HeadOptions

_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = "http/protobuf"
_OTEL = "opentelemetry-exporter-otlp-proto-http"  # with what that needs: all of the extra `otel`
LOG = log.get("daemon")


class ServeRole(RoleKind):
    """The kind of role that serves models."""

    needs_native = True
    runs_llama_server = True
    founds_mesh = True
    token_use = (
        "on each machine that lends its GPU or CPU, run `meshd worker --join INVITE`, with this invite"
    )

    def wanted(self, config: Config) -> Sequence[Wanted]:
        """Return the models to fetch: those given by name, drafts and fallbacks included."""
        return [wanted for serve in config.served for wanted in _wanted(serve)]

    def devices(self, config: Config) -> Sequence[str]:
        """Return the devices that the user named, for all models."""
        return tuple(dict.fromkeys(name for serve in config.served for name in serve.devices))

    def threads(self, config: Config) -> int:
        """Return the number of CPU threads that compute layers."""
        from meshd.plan.wishes import read_llama_args

        return read_llama_args(config.serve.llama_args).threads or head_threads()

    async def claim(self, config: Config, hashes: HashCache, held: contextlib.ExitStack) -> "ClaimedServe":
        """Bind the API's port, and open the model files unless models must be fetched. Raises UserError."""
        from meshd.plan.wishes import read_llama_args

        for serve in config.served:
            read_llama_args(serve.llama_args)
        api_config = _gateway_config(config)
        files = held.enter_context(contextlib.ExitStack())
        opened = () if self.wanted(config) else await _open_all(config, hashes, files)
        for serve in config.served:
            if serve.mmproj is not None:
                await _check_mmproj(serve.mmproj, hashes)
        api = await claim_api(api_config)
        held.callback(api.close)
        return ClaimedServe(config, opened, api, hashes, files)


def _wanted(serve: ServeConfig) -> Sequence[Wanted]:
    """Return what is to be fetched for one model."""
    found = [(serve.model, serve.header_only)]
    found += [(other, False) for other in (serve.draft_model, *serve.fallback_models)]
    return [Wanted(name, header_only=only) for name, only in found if isinstance(name, str)]


async def _open_all(
    config: Config, hashes: HashCache, held: contextlib.ExitStack
) -> Sequence[Sequence[ModelFile]]:
    """Open each model's file, followed by its smaller fallbacks. Raises UserError."""
    files = []
    for serve in config.served:
        own = await _open(serve.model, config, hashes, held, header_only=serve.header_only)
        smaller = [await _open(fallback, config, hashes, held) for fallback in serve.fallback_models]
        _check_smaller(own, smaller)
        _check_layers(serve, own)
        files.append([own, *smaller])
    return files


async def _open(
    path: Path | str | None,
    config: Config,
    hashes: HashCache,
    held: contextlib.ExitStack,
    *,
    header_only: bool = False,
) -> ModelFile:
    assert isinstance(path, Path)  # names have been resolved by now
    if header_only:
        from meshd.store.header_file import HeaderFile  # which no worker needs

        # This node's devices were left out: no layers are computed here.
        file: ModelFile = await HeaderFile.open_header(path)
    else:
        file = await ModelFile.open(path, cache=hashes, name=name_of_blob(path))
    held.callback(file.close)
    check_is_model(file.headers[0], label=file.name)
    if config.paths.native_bin is None:  # the user's own llama.cpp may know others
        check_architecture(file.headers[0], label=file.name)
    return file


def _check_smaller(own: ModelFile, others: Sequence[ModelFile]) -> None:
    """Refuse a fallback that is not smaller than the model, most likely a typing error. Raises UserError."""
    for other in others:
        if _weight_bytes(other) >= (size := _weight_bytes(own)):
            raise UserError(
                f"`{other.name}` is not smaller than `{own.name}`: its weights have "
                f"{in_bytes(_weight_bytes(other))}, the model's {in_bytes(size)}",
                hint="give a smaller quantisation of the same model in `fallback_models`",
            )


def _check_layers(serve: ServeConfig, file: ModelFile) -> None:
    """Refuse ranges of layers that the model cannot be divided into. Raises UserError."""
    from meshd.model.layers import read_layers
    from meshd.plan.machines import check_ranges  # which no worker needs

    if serve.layers:
        check_ranges(serve.layers, read_layers(file.headers, name=file.name).count)


def _weight_bytes(file: ModelFile) -> int:
    return sum(tensor.size for header in file.headers for tensor in header.tensors)


@dataclass(slots=True)
class EarlyApi:
    """An API that opens before the models are here; `gateway` is None until it is made."""

    models: "ModelsOnceFetched"
    gateway: "Gateway | None" = None


@dataclass(slots=True)
class ClaimedServe(ClaimedRole):
    """A head whose files are open and whose port is bound."""

    config: Config
    files: Sequence[Sequence[ModelFile]]
    """The file of each model, and smaller ones in case it does not fit."""
    api: "ApiPort"
    hashes: HashCache
    held: contextlib.ExitStack
    """The stack that closes the files."""
    early: "EarlyApi | None" = None
    """The API that opened before the models were here."""

    def while_fetching(self, fetching: FetchingRole) -> BuiltRole:
        """Return the role that fetches, with an open API that reports the progress."""
        from meshd.daemon.fetching import AwaitedModel, ModelsOnceFetched

        awaited = [
            AwaitedModel(
                model.name,
                [wanted.name for wanted in _wanted(model.serve)],
                aliases=model.aliases,
                group=model.group,
                ttl_s=model.ttl,
            )
            for model in self.config.models
        ]
        models = ModelsOnceFetched(fetching, awaited)
        early = self.early = EarlyApi(models)

        def gateway() -> "Gateway":
            early.gateway = self._make_gateway(models)
            return early.gateway

        async def explain() -> None:
            return None

        return BuiltRole(fetching, gateway, explain=explain)

    async def fetched(self, config: Config) -> None:
        """Open the model files. Raises UserError."""
        self.config, self.files = config, await _open_all(config, self.hashes, self.held)

    async def build(self, runtime: RoleRuntime, member: MemberNode) -> BuiltRole:
        """Build the head, or a pool of heads; its gateway is made once modules for it are imported.

        Raises MeshdError.
        """
        from meshd.head.model import Model

        speeds = device_speeds(runtime, ServeRole().threads(self.config))
        # Several models: a pool of heads.
        if self.config.models:
            pool = await self._pool(runtime, member, speeds)
            return BuiltRole(
                pool,
                self._opened(lambda: pool, runtime, member, lambda: pool.statuses),
                held=lambda: pool.held,
                explain=pool.explain,
                speeds=speeds,
                pool=pool,
                serving=pool.serving,
                drafting=pool.drafting,
            )
        # One model.
        file, *smaller = self.files[0]
        draft = await self._draft_model(self.config.serve, file)
        head = Model(runtime, file, head_options(self.config, member, draft), speeds, smaller)
        return BuiltRole(
            head,
            self._opened(lambda: _one_model(head), runtime, member, lambda: [head.model_status]),
            held=lambda: head.held,
            explain=head.explain,
            speeds=speeds,
            serving=lambda _file: head.serving,
            drafting=head.drafting,
        )

    def _opened(
        self,
        make_models: "Callable[[], Models]",
        runtime: RoleRuntime,
        member: MemberNode,
        statuses: Callable[[], Sequence[ModelStatus]],
    ) -> "Callable[[], Gateway]":
        """Return a function that makes the gateway; `statuses` of all models go to members.

        An early gateway, if any, gets these models at once.
        """
        early = self.early
        if early is not None and early.gateway is not None:
            models = make_models()
            early.models.come(models)
            self._open_to_members(early.gateway, models, runtime, member, statuses)

        def gateway() -> "Gateway":
            models = make_models()
            made = self._make_gateway(models)
            self._open_to_members(made, models, runtime, member, statuses)
            return made

        return gateway

    def _make_gateway(self, models: "Models") -> "Gateway":
        from meshd.gateway.server import Gateway
        from meshd.gateway.turns import ANSWER_LOG_NAME, AnswerLog

        log = AnswerLog(self.config.paths.logs / ANSWER_LOG_NAME)
        tracing = tracing_of(os.environ, self.config.node.name)
        return Gateway(self.api, models, log=log, wall=time.time, tracing=tracing)

    def _open_to_members(
        self,
        gateway: "Gateway",
        models: "Models",
        runtime: RoleRuntime,
        member: MemberNode,
        statuses: Callable[[], Sequence[ModelStatus]],
    ) -> None:
        from meshd.head.member_api import MemberApi, served_models

        def facts_of(name: str) -> "ServedFacts":
            upstreams = (model.upstream for model in models.all)
            return next(upstream.facts for upstream in upstreams if upstream.model_name == name)

        if not self.config.serve.no_members:
            MemberApi(
                runtime.mesh,
                runtime.tunnels.join,
                gateway,
                lambda: served_models(statuses(), gateway.requests_of, facts_of, on_demand=models.on_demand),
                me=member.node.facts.peer,
            )

    async def _pool(self, runtime: RoleRuntime, member: MemberNode, speeds: DeviceSpeeds) -> "ModelPool":
        from meshd.head.model import Model
        from meshd.head.model_pool import ModelPool, PooledModel
        from meshd.head.pool_policy import ModelRule

        models = []
        for number, (model, files) in enumerate(zip(self.config.models, self.files, strict=True)):
            file, *smaller = files
            draft = await self._draft_model(model.serve, file)
            options = replace(
                head_options(replace(self.config, serve=model.serve), member, draft),
                name=model.name,
                child=f"llama-server-{model.name}",
                socket=f"m{number}.sock",  # no longer than the control socket's
            )
            head = Model(runtime, file, options, speeds, smaller)
            rule = ModelRule(model.name, group=model.group, ttl=model.ttl)
            models.append(PooledModel(rule, head, aliases=model.aliases, preload=model.preload))
        return ModelPool(models)

    async def _draft_model(self, serve: ServeConfig, model: ModelFile) -> "DraftModel | None":
        """Read the draft model, if one is set. Raises UserError."""
        from meshd.plan.wishes import draft_model

        path = serve.draft_model
        if path is None:
            return None
        assert isinstance(path, Path)  # resolved, like the model's
        file = await ModelFile.open(path, cache=self.hashes, name=name_of_blob(path))
        file.close()
        return draft_model(str(path), file.name, file.headers, model.headers[0])


def _one_model(head: "Upstream") -> "Models":
    from meshd.gateway.request import OneModel

    return OneModel(head)


def head_options(config: Config, member: MemberNode, draft: "DraftModel | None" = None) -> "HeadOptions":
    """Return the head's options: the settings of `[serve]` and the facts of this node."""
    from meshd.plan.wishes import HeadOptions, nodes_of

    serve = config.serve
    named = nodes_of(serve.layers, config.node.name)
    # The options for drafts are those of the pin.
    drafts = serve.speculate == "auto" and config.paths.native_bin is None
    settings = replace(
        serve,
        min_workers=max(serve.min_workers or 0, len(named)) if serve.layers else serve.min_workers,
        workers=serve.workers or named,
        speculate="auto" if drafts else "off",
    )
    return HeadOptions(
        **{setting.name: getattr(settings, setting.name) for setting in fields(ModelSettings)},
        rpc=serve.rpc,
        draft=draft if drafts else None,
        machine=machine_id(member.membership.mesh.raw),
        node_name=config.node.name,
        node_id=str(member.node.facts.peer),
        incarnation=member.node.facts.incarnation,
        grace=float(config.links.grace),
        is_local=config.links.is_local,
    )


async def _check_mmproj(path: Path, hashes: HashCache) -> None:
    """Check that a file is a projector, which only llama-server reads. Raises UserError."""
    file = await ModelFile.open(path, cache=hashes)
    try:
        check_projector(file.headers[0], label=file.name)
    finally:
        file.close()


def _gateway_config(config: Config) -> GatewayConfig:
    from meshd.gateway.access import load_keys

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
    """Bind the API's port. Raises UserError."""
    from meshd.gateway.access import ApiPort

    return await ApiPort.claim(config)


def tracing_of(environ: Mapping[str, str], node: str) -> "Tracing | None":
    """Return the traces that OpenTelemetry's variables ask for; None: none, or they cannot be made."""
    if not wants_traces(environ):
        return None
    protocol = next(filter(None, map(environ.get, _PROTOCOL_VARIABLES)), _OTLP)
    if protocol != _OTLP:
        hint = f"unset {_PROTOCOL_VARIABLES[-1]}, and name the collector's port for HTTP (4318)"
        LOG.warning("tracing_off", why=f"meshd exports traces by `{_OTLP}`, not by `{protocol}`", hint=hint)
        return None
    try:
        from meshd.gateway.tracing import make_tracing
    except ImportError as error:
        hint = (
            f"add {_OTEL} to meshd (`pipx inject meshd {_OTEL}`, or pip), or unset OpenTelemetry's variables"
        )
        LOG.warning("tracing_off", why=f"OpenTelemetry is not installed: {error}", hint=hint)
        return None
    try:
        return make_tracing(environ, node=node, wall=time.time)
    except ValueError as error:  # of a variable
        LOG.warning("tracing_off", why=str(error), hint="correct or unset that variable of OpenTelemetry")
        return None


def wants_traces(environ: Mapping[str, str]) -> bool:
    """Return True if OpenTelemetry's variables name a collector, and do not turn traces off."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    places = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    named = any(environ.get(place) for place in places)
    return exporter == "otlp" or (named and not exporter)


def import_gateway() -> None:
    """Import the modules of a role's gateway, which may take long, so call it in a thread."""
    import meshd.gateway.ready
    import meshd.gateway.server
    import meshd.head.member_api  # noqa: F401 - imported for the code that makes a gateway


class WorkerRole(RoleKind):
    """The kind of role that lends devices."""

    needs_native = True
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
class ClaimedWorker(ClaimedRole):
    """A worker whose files are open; `held` closes them."""

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
            may_seal=worker.may_seal,
            are_wireless=are_wireless,
            computed=lambda peer, lease_id, spans: computed_for(
                ((server.lease, server.turns) for server in worker.servers), peer, lease_id, spans
            ),
        )
        return BuiltRole(worker, pause=self.pause, lendable=worker.lendable, speeds=speeds)


class ClientRole(RoleKind):
    """The kind of role that serves other nodes' API here."""

    def check_certified(self, roles: frozenset[Role]) -> None:
        """Require the role `use`. Raises UserError."""
        from meshd.client.api_client import check_may_use

        check_may_use(roles)

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
class ClaimedClient(ClaimedRole):
    """A client whose port is bound."""

    config: Config
    api: "ApiPort"

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

        return Gateway(
            self.api, client, wall=time.time, tracing=tracing_of(os.environ, self.config.node.name)
        )


ROLES: Mapping[str, RoleKind] = {
    WORKER_ROLE: WorkerRole(),
    HEAD_ROLE: ServeRole(),
    CLIENT_ROLE: ClientRole(),
}
