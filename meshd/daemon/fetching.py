"""Fetch the models that a role was given by name and this node lacks, while the node already runs.

The node is a member from its start: it is `fetching` until its models are here, and then its role begins.
`meshd status`, the log and the API show the progress: the gateway listens from the start, and
`ModelsOnceFetched` refuses requests until the role begins. Fetched data stays when the node is stopped, and
the next start continues there.
"""

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from meshd.admin.api import NO_MEMBER_HAS_IT, PullReply, PullRequest
from meshd.base import log
from meshd.base.errors import Refused, UserError
from meshd.base.tasks import in_thread
from meshd.config.serve_settings import ServeConfig
from meshd.config.tree import Config
from meshd.daemon.own_thread import in_own_thread
from meshd.daemon.role_kind import FetchingRole, Wanted
from meshd.devices.interface import RoleStatus
from meshd.gateway.interface import Models, ModelWish, NamedModel, Readiness, Upstream
from meshd.library.interface import ASKING_SECONDS, NotHere, TransferProgress
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX
from meshd.model.model_name import DEMO, MESH
from meshd.model.short_names import hub_name_of, is_published
from meshd.model.status import FetchSource, FetchStatus, ModelState, ModelStatus
from meshd.peer.interface import Mesh, PeerState

if TYPE_CHECKING:
    from meshd.build.interface import BuildProgress
    from meshd.daemon.models import ModelExchange
    from meshd.gateway.request import PlainModel

FOUND_SECONDS = 30.0  # for members that have a model `mesh:NAME` to be connected
OR_ELSEWHERE_SECONDS = 10.0  # the same where it may be downloaded instead, or its name be mistyped
_LOOK_SECONDS = 0.5
_LOG_SECONDS = 60.0  # between two lines of the log about a tenth that takes long
_TENTHS = 10
LOG = log.get("daemon")
_ASKING = "asking the members of the mesh"
_LEAST_RETRY, _MOST_RETRY = 5, 60  # seconds in the Retry-After of an answer


class Fetching:
    """Fetch the models of one node, one after another: `run` it once. Implements FetchingRole."""

    def __init__(
        self, config: Config, wanted: Sequence[Wanted], mesh: Mesh, exchange: "ModelExchange"
    ) -> None:
        """Fetch the models that are `wanted`; `exchange`, which must run, asks the members."""
        from meshd.library.resolve import Resolver  # and the stores, which other nodes do without
        from meshd.library.stores import Stores

        self._config = config
        self._wanted = wanted
        self._mesh = mesh
        self._exchange = exchange
        self._stores = Stores.here(config.paths.cache)
        self._resolver = Resolver(self._stores, lambda _progress: None)
        self._paths: dict[Wanted, Path] = {}
        self._logged = ("", 0)
        self._logged_at = 0.0
        self._now = FetchStatus(name=wanted[0].name, step="asking", activity="looking for it on this machine")

    @property
    def now(self) -> FetchStatus:
        """The progress of the fetch."""
        return self._now

    @property
    def lacks(self) -> Collection[str]:
        """The names of the models that are not here yet."""
        return {wanted.name for wanted in self._wanted if wanted not in self._paths}

    @property
    def status(self) -> RoleStatus:
        """The status of the node while it fetches."""
        return RoleStatus(children=(), tunnels=(), model=None, fetching=self.now)

    async def serve(self) -> None:
        """Wait until cancelled; `run` does the work."""
        await asyncio.Event().wait()

    async def run(self) -> Config:
        """Return the settings with the paths of all models.

        Raises MeshdError if a model cannot be fetched.
        """
        for wanted in dict.fromkeys(self._wanted):
            self._say(FetchStatus(name=wanted.name, step="asking", activity="looking for it on this machine"))
            self._paths[wanted] = path = await self._find(wanted)
            LOG.info("model_fetched", model=wanted.name, path=str(path))
        return with_paths(self._config, self._paths)

    async def _find(self, wanted: Wanted) -> Path:
        """Return a model's first file: from this machine, else from members, else from Hugging Face."""
        # 1. Another start may have brought it, or the model before it was the same.
        if (here := await in_thread(partial(self._local, wanted))) is not None:
            return here

        # 2. Members that are connected, or soon will be.
        name, nobody = wanted.name, ""
        if name.startswith(MESH) or self._mesh.peers():
            reply = await self._from_members(wanted)
            if not reply.error:
                paths = [Path(path) for path in reply.paths]
                if wanted.header_only:
                    self._tell_whose(paths[0])
                    return paths[0]
                if (kept := await self._kept(name, paths)) is not None:
                    return kept
            # members that cannot give it, or lie, keep nobody from what Hugging Face has
            elif not is_published(name) and (reply.code != NO_MEMBER_HAS_IT or name.startswith(MESH)):
                raise UserError(reply.error, hint=reply.hint)
            if nobody := reply.error:
                self._tell(name, nobody)

        # 3. A download, if the name says from where.
        try:
            return await self._download(wanted)
        except UserError as error:
            what = f"{error.what}; {nobody}" if nobody else error.what
            raise UserError(what, hint=error.hint) from None

    def _local(self, wanted: Wanted) -> Path | None:
        """Return the file on this machine, None if the machine lacks the model. Raises UserError."""
        from meshd.library.interface import ONLY_HEADER

        try:
            stored = self._resolver.local(wanted.name)
        except NotHere:
            return None
        some = wanted.partial and stored.paths and stored.problem != ONLY_HEADER
        return stored.paths[0] if stored.complete or some or wanted.header_only else None

    async def _from_members(self, wanted: Wanted) -> PullReply:
        """Pull the model; wait a while for members that are not connected yet."""
        loop, only = asyncio.get_running_loop(), wanted.name.startswith(MESH)
        until = loop.time() + (FOUND_SECONDS if only else OR_ELSEWHERE_SECONDS)
        request = PullRequest(name=wanted.name, header_only=wanted.header_only)
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            asked = {peer.peer for peer in self._mesh.peers() if _is_there(peer.state, present=peer.present)}
            reply = self._exchange.start(request, is_own=True)
            try:
                async with asyncio.timeout(ASKING_SECONDS if is_published(wanted.name) else None) as limit:
                    while reply.step not in ("done", "failed"):
                        if reply.step != "asking":
                            limit.reschedule(None)
                        self._say(_of_pull(wanted.name, reply))
                        await asyncio.sleep(_LOOK_SECONDS)
                        reply = self._exchange.progress(reply.id)
            except TimeoutError:
                stopped = self._exchange.stop(reply.id, is_own=True)
                return replace(stopped, step="failed", error=f"no member gives `{wanted.name}` soon")
            except asyncio.CancelledError:
                self._exchange.stop(reply.id, is_own=True)
                raise
            if not reply.error:
                self._say(_of_pull(wanted.name, reply))
            if reply.code != NO_MEMBER_HAS_IT or loop.time() > until:
                return reply
            # Every node known here was asked. Waiting brings nobody else, except for a name that says that
            # some member has the model.
            if not only and all(peer.peer in asked or peer.stopped for peer in self._mesh.peers()):
                return reply

    async def _kept(self, name: str, paths: Sequence[Path]) -> Path | None:
        """Return the final place of a model from members; None if it differs from Hugging Face's."""
        from meshd.library.pulled_models import keep_pulled

        hub, cache, tell = self._stores.hub, self._config.paths.cache, partial(self._tell, name)
        kept = await in_own_thread(
            lambda report: keep_pulled(name, paths, hub, cache, report, tell),
            lambda progress: self._say(_of_transfer(name, progress)),
        )
        return None if kept is None else (await in_thread(partial(self._resolver.local, kept))).paths[0]

    async def _download(self, wanted: Wanted) -> Path:
        """Return a model that this machine or Hugging Face has by that name. Raises UserError."""
        from meshd.library.resolve import Resolver

        if wanted.name.lower().removesuffix(GGUF_SUFFIX) == DEMO:
            from meshd.build.fetch import demo_model

            def show(progress: "BuildProgress") -> None:
                self._say(
                    _of_transfer(wanted.name, TransferProgress(progress.text, progress.done, progress.total))
                )

            return await demo_model(self._config.paths.cache, show)
        found = await in_own_thread(
            lambda report: Resolver(self._stores, report).get(wanted.name, partial=wanted.partial),
            lambda progress: self._say(_of_transfer(wanted.name, progress)),
        )
        return found.paths[0]

    def _tell_whose(self, path: Path) -> None:
        """Log which members vouch for a model of which only the header is here."""
        if path.name.endswith(HEADER_SUFFIX):
            from meshd.library.pulled_models import said_of

            self._tell(self.now.name, said_of(path))

    def _tell(self, name: str, what: str) -> None:
        LOG.info("model_fetching", model=name, what=what)

    def _say(self, now: FetchStatus) -> None:
        """Show the progress; log a new step, each tenth, and once a minute."""
        self._now = now
        # Some activities count while members read.
        words = "".join(letter for letter in now.activity if not letter.isdigit())
        key = (words, int((now.share or 0.0) * _TENTHS))
        at = asyncio.get_running_loop().time()
        if key != self._logged or at - self._logged_at >= _LOG_SECONDS:
            self._logged, self._logged_at = key, at
            self._tell(now.name, now.text)


def _is_there(state: PeerState, *, present: bool) -> bool:
    return present or state is PeerState.CONNECTED


def _of_pull(name: str, reply: PullReply) -> FetchStatus:
    giving = [holder.node for holder in reply.holders if holder.bytes and not holder.problem]
    words = {
        "asking": reply.activity or _ASKING,
        "looking": "looking at what is there from before",
        "fetching": f"fetching {reply.name}" + (f" from {', '.join(giving)}" if giving else ""),
        "checking": reply.activity or f"checking {reply.name}",
        "done": f"{reply.name} was on this machine"
        if reply.was_here
        else f"fetched {reply.name} from {', '.join(giving) or 'members'}",
    }
    counts = reply.step in ("looking", "fetching", "done")
    return FetchStatus(
        name=name,
        step=reply.step,
        activity=words.get(reply.step, reply.step),
        source="members",
        done_bytes=reply.done_bytes if counts else 0,
        total_bytes=reply.total_bytes if counts else 0,
        bytes_s=reply.rate if reply.step == "fetching" else 0.0,
        sources=tuple(FetchSource(holder.node, holder.bytes, holder.problem) for holder in reply.holders),
    )


def _of_transfer(name: str, progress: TransferProgress) -> FetchStatus:
    return FetchStatus(
        name=name,
        step="fetching" if progress.total else "asking",
        activity=progress.activity,
        source="download",
        done_bytes=progress.done,
        total_bytes=progress.total,
        bytes_s=progress.rate,
    )


async def check_downloads(wanted: Sequence[Wanted]) -> None:
    """Look models up at Hugging Face, before a mesh is founded for nothing. Raises UserError."""
    from meshd.library.download import check_download
    from meshd.library.hub_cache import cache_folder

    for model in wanted:
        if (name := hub_name_of(model.name)) is not None:
            check = partial(check_download, name, cache_folder(os.environ))
            await in_own_thread(check, _log_step)


def _log_step(progress: TransferProgress) -> None:
    LOG.info("model_fetching", what=progress.activity)


def with_paths(config: Config, paths: dict[Wanted, Path]) -> Config:
    """Return the settings with the paths of models instead of their names."""
    found = {(wanted.name, wanted.header_only): path for wanted, path in paths.items()}

    def placed(given: Path | str) -> Path | str:
        return found.get((str(given), False), given) if isinstance(given, str) else given

    def served(serve: ServeConfig) -> ServeConfig:
        smaller = tuple(map(placed, serve.fallback_models))
        draft = None if serve.draft_model is None else placed(serve.draft_model)
        serve = replace(serve, draft_model=draft, fallback_models=smaller)
        if serve.header_only and (path := found.get((str(serve.model), True))) is not None:
            return with_header(serve, path)
        return serve if serve.model is None else replace(serve, model=placed(serve.model))

    return replace(
        config,
        serve=served(config.serve),
        models=tuple(replace(model, serve=served(model.serve)) for model in config.models),
        worker=replace(config.worker, models=tuple(map(placed, config.worker.models))),
    )


def with_header(serve: ServeConfig, path: Path) -> ServeConfig:
    """Return settings for a header, without devices, or for the whole model if `path` is one."""
    if path.name.endswith(HEADER_SUFFIX):
        return replace(serve, model=path, devices=("none",))
    return replace(serve, model=path, header_only=False)


class FetchedUpstream(Upstream):
    """A model that is not here yet, so requests are refused.

    It has no slots, so that no request waits for its turn: a fetch may take hours.
    """

    def __init__(self, fetching: FetchingRole, model: "AwaitedModel | None" = None) -> None:
        """Take `model`; None: the only one of the node, for which everything is fetched."""
        self._fetching = fetching
        self._model = model

    @property
    def readiness(self) -> Readiness:
        """The progress of the fetch, as readiness."""
        now = self._fetching.now
        line = f"`{now.name}`: {now.text}"
        if self._model is None or now.name in self._model.wants:
            return _readiness(now, line)
        lacks = self._fetching.lacks
        later = [name for name in self._model.wants if name in lacks]
        if later:
            return replace(_readiness(now, f"`{later[0]}` is fetched after {line}"), progress=None)
        here = f"it is here, and waits for {line}"
        return replace(_readiness(now, here), state=ModelState.UNLOADED, progress=None)

    @property
    def model_name(self) -> str:
        """The name of the model in requests; of an only one, that of the file that is being fetched."""
        return self._fetching.now.name if self._model is None else self._model.name

    async def connect(self) -> socket:
        """Raise Refused, with the progress."""
        raise Refused(self.readiness.reason, code="fetching")


def _readiness(now: FetchStatus, reason: str) -> Readiness:
    left = now.seconds_left or _LEAST_RETRY
    return Readiness(
        ModelState.FETCHING,
        reason,
        retry_after=round(min(max(left, _LEAST_RETRY), _MOST_RETRY)),
        progress=now.share,
    )


@dataclass(frozen=True, slots=True)
class AwaitedModel:
    """One of several models to come, by its name in requests. `wants`: names of what is fetched for it."""

    name: str
    wants: Sequence[str]
    aliases: tuple[str, ...] = ()
    group: str = ""
    ttl_s: int = 0


class AwaitedModels:
    """Implements Models with all models that a node will serve, none of which answers yet."""

    only = None
    on_demand = True

    def __init__(self, fetching: FetchingRole, awaited: Sequence[AwaitedModel]) -> None:
        from meshd.gateway.request import PlainModel  # aiohttp: 11 MB that a worker avoids

        self._fetching = fetching
        self._awaited = awaited
        self.all = [PlainModel(FetchedUpstream(fetching, model)) for model in awaited]
        named = zip(awaited, self.all, strict=True)
        self._by_name = {name: model for wanted, model in named for name in (wanted.name, *wanted.aliases)}

    @property
    def readiness(self) -> Readiness:
        """The progress of what is fetched now."""
        return FetchedUpstream(self._fetching).readiness

    def find(self, wish: ModelWish) -> "PlainModel | None":
        """Find a model by its name or an alias."""
        return self._by_name.get(wish.model) if wish.model else self.all[0]

    @property
    def statuses(self) -> Sequence[ModelStatus]:
        """The state of each model."""
        return [
            _status(wanted, model.upstream.readiness)
            for wanted, model in zip(self._awaited, self.all, strict=True)
        ]


def _status(model: AwaitedModel, now: Readiness) -> ModelStatus:
    return ModelStatus(
        name=model.name,
        fingerprint="",
        state=now.state,
        reason=now.reason,
        load_seconds=None,
        weights_local_bytes=0,
        weights_network_bytes=0,
        tensors_from_network=(),
        bytes_per_token=None,
        split=(),
        progress=now.progress,
        aliases=model.aliases,
        group=model.group,
        ttl_s=model.ttl_s,
    )


class ModelsOnceFetched:
    """The models of a role, which arrive later (implements Models)."""

    def __init__(self, fetching: FetchingRole, awaited: Sequence[AwaitedModel]) -> None:
        """Begin without a model. `awaited`: the models to come if they are loaded on demand; else none."""
        from meshd.gateway.request import OneModel

        self._models: Models = (
            AwaitedModels(fetching, awaited) if awaited else OneModel(FetchedUpstream(fetching))
        )
        self.on_demand = self._models.on_demand

    def come(self, models: Models) -> None:
        """Use these models from now on."""
        self._models = models

    @property
    def all(self) -> Sequence[NamedModel]:
        """The models that can be requested now."""
        return self._models.all

    @property
    def only(self) -> NamedModel | None:
        """The single model, if there is one."""
        return self._models.only

    @property
    def readiness(self) -> Readiness:
        """The readiness of all models together."""
        return self._models.readiness

    def find(self, wish: ModelWish) -> NamedModel | None:
        """Find the model for one request."""
        return self._models.find(wish)

    @property
    def statuses(self) -> Sequence[ModelStatus]:
        """The statuses of models on demand."""
        return self._models.statuses
