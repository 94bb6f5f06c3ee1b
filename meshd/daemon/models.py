"""The models of this node: the disk that holds them, those that members get, and the pulls of its user.

Members exchange the state of their disks with their lists of models. `meshd status`, which may run each
second, walks no folders: files are counted after a request, and not again for a while.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshd.admin.api import (
    NO_MEMBER_HAS_IT,
    FilesInUseReply,
    HolderView,
    MemberModelsReply,
    MemberModelView,
    PullReply,
    PullRequest,
)
from meshd.admin.status import LeftOutView, StorageCapacity, StorageView, StoredFile
from meshd.base import log
from meshd.base.errors import LocalProtocolError, MeshdError, Refused, UserError
from meshd.base.fault_boundary import ended
from meshd.base.tasks import Owner, in_thread
from meshd.config.tree import Config
from meshd.devices.interface import RoleStatus
from meshd.library.disk import bytes_on_disk, free_bytes
from meshd.library.facts import facts_of
from meshd.library.interface import StoredModel
from meshd.library.members.give import OWN_SOURCES, ModelsTeller, OfferedModels, PieceGiver, names_of
from meshd.library.members.offers import MemberModels, MemberOffer, ask_members
from meshd.library.members.part_files import remove_old_plans
from meshd.library.members.pull import ModelPull, NobodyHasIt, PullPlace, PullStep
from meshd.library.stores import Stores, own_models
from meshd.model.model_name import ModelName, parse_model_name
from meshd.model.status import StoreStatus
from meshd.peer.interface import Mesh
from meshd.store.hash_cache import PieceCache
from meshd.wire.limits import MAX_DISK_BYTES
from meshd.wire.models import ToldDisk

SHOWN_FILES = 16  # per node; the others are only counted
COUNT_SECONDS = 60.0  # files are not counted again for so long
_FIRST_COUNT_SECONDS = 0.5  # the first request waits so long for the count
MAX_PULLS = 4  # at once
MAX_FAILED_PULLS = 16  # that `meshd model ls` tells of
MAX_MEMBER_MODELS = 2048  # models of all members in one reply; with the longest names 3.5 kB each
_UNWATCHED_SECONDS = 15.0  # a pull whose progress nobody asks for is ended: its verb has gone
_LOOK_SECONDS = 1.0
LOG = log.get("library")


def started_with(config: Config) -> list[Path]:
    """Return the model files with which this node was started, wherever they are."""
    served = [config.serve, *(model.serve for model in config.models)]
    named = [*(serve.model for serve in served), *config.worker.models]
    named += [file for serve in served for file in serve.fallback_models]
    return [path for path in named if isinstance(path, Path)]


def files_in_use(config: Config) -> list[Path]:
    """Return the model files that this node's role opens now or at its next load."""
    served = [config.serve, *(model.serve for model in config.models)]
    beside = [file for serve in served for file in (serve.draft_model, serve.mmproj)]
    return [*started_with(config), *(path for path in beside if isinstance(path, Path))]


class Storage:
    """The storage of one daemon; `serve` must run to count files."""

    def __init__(
        self,
        mesh: Mesh,
        config: Config,
        stores: Callable[[], Stores],
        *,
        kept: Callable[[], StoreStatus | None],
    ) -> None:
        """Take `kept`: returns the state of the role's kept weights, if it keeps any."""
        self._mesh = mesh
        self._node = config.node.name
        self._cache = config.paths.cache
        self._stores = stores
        self._started_with = started_with(config)
        self._kept = kept
        self._wanted = asyncio.Event()
        self._counted = asyncio.Event()
        self._first = True
        self._count: tuple[int, int] | None = None  # files of models as one, and bytes

    def fetched(self, config: Config) -> None:
        """Note the fetched models; `config` has their paths."""
        self._started_with = started_with(config)

    async def serve(self) -> None:
        """Count files on request, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            # This reads folders of other programs, and paths in the user's variables, whatever they hold.
            models = await ended(in_thread(self._own), source="status", name="model count")
            self._count = None if models is None else (len(models), sum(map(_held, models)))
            self._counted.set()
            await asyncio.sleep(COUNT_SECONDS)

    def disk(self) -> ToldDisk | None:
        """Return the current state of the cache's disk; None if it is unknown."""
        kept = self._kept()
        try:
            free = free_bytes(self._cache)
        except OSError:
            return None
        room = None if kept is None else min(MAX_DISK_BYTES, max(0, kept.limit - kept.bytes))
        return ToldDisk(min(MAX_DISK_BYTES, free), room)

    async def status(self) -> StorageView:
        """Return the state without walking folders; the count may be old, or missing at first."""
        self._wanted.set()
        if self._first:
            self._first = False
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_COUNT_SECONDS):
                    await self._counted.wait()
        disk, count = self.disk(), self._count
        return StorageView(
            path=str(self._cache),
            free_bytes=disk.free if disk is not None else None,
            cache_room_bytes=disk.room if disk is not None else None,
            models=count[0] if count is not None else None,
            models_bytes=count[1] if count is not None else None,
        )

    async def of_all(self) -> tuple[StorageCapacity, ...]:
        """Return the storage of this node, then of the connected members."""
        own = _capacity(self._node, self.disk(), *await in_thread(self._listed))
        return (own, *map(_of_member, await ask_members(self._mesh)))

    def _own(self) -> list[StoredModel]:
        return own_models(self._stores(), self._started_with)

    def _listed(self) -> tuple[list[StoredFile], int]:
        """List the largest models, with fingerprints if known, and count the others."""
        models, hashes = self._own(), self._cache / "weights"
        shown = [(model, facts_of(model, hashes)) for model in models[:SHOWN_FILES]]
        files: dict[str, StoredFile] = {}  # a second file with the same content is no other model
        for model, facts in shown:
            if not facts.problem:
                file = StoredFile(name=names_of(model)[0], bytes=model.size, fingerprint=facts.fingerprint)
                files.setdefault(facts.fingerprint or str(model.paths), file)
        return list(files.values()), len(models) - len(shown)


def _held(model: StoredModel) -> int:
    """Return a model's bytes on the disk; a header's file (`--header-only`) is mostly a hole."""
    return min(model.size, sum(map(bytes_on_disk, model.paths)) or model.size)


def _of_member(reply: MemberModels) -> StorageCapacity:
    files = [
        StoredFile(name=offer.stem, bytes=offer.model.size, fingerprint=offer.model.fingerprint.hex() or None)
        for offer in reply.offers
        if offer.stem
    ]
    files.sort(key=lambda file: (-file.bytes, file.name))
    return _capacity(reply.node, reply.disk, files[:SHOWN_FILES], len(files[SHOWN_FILES:]), reply.why_not)


def _capacity(
    node: str, disk: ToldDisk | None, shown: Sequence[StoredFile], more: int, why_not: str = ""
) -> StorageCapacity:
    return StorageCapacity(
        node=node,
        free_bytes=disk.free if disk is not None else None,
        cache_room_bytes=disk.room if disk is not None else None,
        models=tuple(shown),
        more_models=more,
        why_not=why_not,
    )


@dataclass(slots=True)
class _Pull:
    """A pull that was started; its result is kept until the pull is forgotten."""

    id: int
    name: ModelName
    work: ModelPull
    task: asyncio.Task[None] | None
    asked_at: float
    background: bool = False
    download: bool = False
    is_own: bool = False
    error: MeshdError | None = None

    @property
    def failed_unseen(self) -> bool:
        """True if the pull failed after the command that started it had ended."""
        known = self.background and bool(self.work.state.name)
        return known and self.task is None and self.error is not None


class ModelExchange:
    """The exchange of models of one daemon; `serve` must run for pulls."""

    def __init__(
        self,
        mesh: Mesh,
        config: Config,
        pieces: PieceCache,
        *,
        is_serving: Callable[[], bool],
        disk: Callable[[], ToldDisk | None],
    ) -> None:
        cache = config.paths.cache
        self._mesh, self._cache = mesh, cache
        self._started = started_with(config)
        self._place = PullPlace(
            cache / "models", pieces.hashes, pieces, own=lambda: own_models(Stores.here(cache), self._started)
        )
        self._offered = offered = OfferedModels(
            lambda: Stores.here(cache),
            cache / "weights",
            pieces,
            sources=OWN_SOURCES if config.node.give_models == "own" else (),
        )
        offered.add(self._started)
        ModelsTeller(mesh, offered, pieces, pieces.hashes, disk=disk)
        PieceGiver(mesh, offered, is_serving=is_serving)
        self._in_use = _in_use(config)
        self._owner: Owner | None = None
        self._pulls: dict[int, _Pull] = {}
        self._last_id = 0

    def fetched(self, config: Config) -> None:
        """Offer fetched models to members and mark them as used; `config` has their paths."""
        before, self._started = self._started, started_with(config)
        self._offered.add([path for path in self._started if path not in before])
        self._offered.changed()
        self._in_use = _in_use(config)

    async def serve(self) -> None:
        """Run pulls, and end unwatched ones, until cancelled."""
        async with Owner() as owner:
            self._owner = owner
            try:
                await in_thread(functools.partial(remove_old_plans, self._cache, self._place.folder))
                while True:
                    await asyncio.sleep(_LOOK_SECONDS)
                    self._end_unwatched(asyncio.get_running_loop().time())
            finally:
                self._owner = None
                owner.cancel()

    @property
    def in_use(self) -> FilesInUseReply:
        """The files with which this node's role was started."""
        return self._in_use

    async def listed(self) -> MemberModelsReply:
        """List the models of members, the running pulls, and the background pulls that failed."""
        replies = await ask_members(self._mesh)
        views = [_view(offer) for reply in replies for offer in reply.offers if offer.stem]
        left_out = [LeftOutView(node=reply.node, why=reply.why_not) for reply in replies if reply.why_not]
        pulls = tuple(
            _reply(pull) for pull in self._pulls.values() if pull.task is not None or pull.failed_unseen
        )
        return MemberModelsReply(
            models=tuple(views[:MAX_MEMBER_MODELS]), left_out=tuple(left_out), pulls=pulls
        )

    def start(self, request: PullRequest, *, is_own: bool = False) -> PullReply:
        """Start a pull, or watch a running one of the same name, unless it is for a plan.

        `is_own`: the node needs the model itself, so no verb ends the pull or keeps it from beginning.
        Raises UserError if the text names no model, if options exclude each other, or if too many pulls run.
        """
        # The name.
        try:
            name = parse_model_name(request.name)
        except ValueError as error:
            from meshd.library.resolve import no_name  # and stores, which no pull needs

            raise no_name(request.name, error) from None
        # A running pull of the same name; one that also downloads does for all who want the whole model.
        make, is_whole = _kind_of_pull(request), not request.header_only
        running = (
            other
            for other in self._pulls.values()
            if other.task is not None
            and other.name == name
            and (type(other.work) is make or (other.download and is_whole))
            and not request.for_plan
        )
        if (same := next(running, None)) is not None:
            same.background = same.background or request.background
            same.is_own = same.is_own or is_own
            return self.progress(same.id)
        if not is_own and sum(other.task is not None for other in self._pulls.values()) >= MAX_PULLS:
            raise UserError(f"{MAX_PULLS} models are being pulled already", hint="wait for one of them")
        if self._owner is None:
            raise UserError("this node is starting or stopping", hint="try again in a moment")
        self._forget([other for other in self._pulls.values() if other.failed_unseen and other.name == name])
        # A new pull.
        work = make(self._mesh, name, self._place, rate=float(request.rate) or None)
        self._last_id += 1
        now = asyncio.get_running_loop().time()
        pull = _Pull(
            self._last_id,
            name,
            work,
            None,
            now,
            background=request.background,
            download=request.download,
            is_own=is_own,
        )
        self._pulls[pull.id] = pull
        pull.task = self._owner.start_for("local client", self._run(pull), name="model pull")
        pull.task.add_done_callback(lambda _: _end(pull))  # even if its task never began
        return _reply(pull)

    def progress(self, number: int) -> PullReply:
        """Return the progress of a pull, which counts as watching it. Raises UserError if it is forgotten."""
        pull = self._find(number)
        pull.asked_at = asyncio.get_running_loop().time()
        return _reply(pull)

    def stop(self, number: int, *, is_own: bool = False) -> PullReply:
        """Stop a pull; with `is_own` also one that the node needs. Raises UserError if it is forgotten."""
        pull = self._find(number)
        if pull.task is not None and (is_own or not pull.is_own):
            pull.task.cancel()
        return _reply(pull)

    def _find(self, number: int) -> _Pull:
        if (pull := self._pulls.get(number)) is None:
            raise UserError("this pull has ended", hint="run `meshd model pull` again: it continues")
        return pull

    async def _run(self, pull: _Pull) -> None:
        try:
            await pull.work.run()
            self._offered.changed()
            if not pull.work.state.was_here:
                LOG.info("model_pulled", file=pull.work.state.name, bytes=pull.work.state.total)
        except LocalProtocolError:
            raise
        except NobodyHasIt as error:  # the caller gets the error, and may ask again
            pull.error = error
        except MeshdError as error:
            pull.error = error
            LOG.warning("model_not_pulled", file=pull.work.state.name, why=error.what)

    def _end_unwatched(self, now: float) -> None:
        for pull in [other for other in self._pulls.values() if now - other.asked_at > _UNWATCHED_SECONDS]:
            if pull.task is not None and not (pull.background or pull.is_own):
                pull.task.cancel()
            elif pull.task is None and not pull.failed_unseen:
                self._forget([pull])
        self._forget([other for other in self._pulls.values() if other.failed_unseen][:-MAX_FAILED_PULLS])

    def _forget(self, pulls: Iterable[_Pull]) -> None:
        for pull in pulls:
            del self._pulls[pull.id]


def _in_use(config: Config) -> FilesInUseReply:
    return FilesInUseReply(paths=tuple(str(path.absolute()) for path in files_in_use(config)))


def _kind_of_pull(request: PullRequest) -> type[ModelPull]:
    """Return the class of the requested pull. Raises UserError for options that exclude each other."""
    if request.download:
        if request.for_plan or request.header_only:
            raise UserError(
                "`download` is for whole models: `for_plan` and `header_only` exclude it",
                hint="leave out `download`, or the other two",
            )
        from meshd.daemon.whole_pull import WholePull  # and stores, which no other pull needs

        return WholePull
    if not request.for_plan and not request.header_only:
        return ModelPull
    from meshd.library.members.pull import HeaderPull, PlanPull  # which most nodes never need

    return PlanPull if request.for_plan else HeaderPull


def _end(pull: _Pull) -> None:
    pull.task = None
    if pull.work.state.step is not PullStep.DONE:
        pull.work.state.step = PullStep.FAILED


def _view(offer: MemberOffer) -> MemberModelView:
    model = offer.model
    return MemberModelView(
        node=offer.node,
        name=offer.stem,
        names=offer.names,
        bytes=model.size,
        files=model.files,
        quant=model.quant or None,
        architecture=model.architecture or None,
        fingerprint=model.fingerprint.hex() or None,
        content=model.content.hex() or None,
    )


def _reply(pull: _Pull) -> PullReply:
    state, error = pull.work.state, pull.error
    code = (
        error.code
        if isinstance(error, Refused)
        else NO_MEMBER_HAS_IT
        if isinstance(error, NobodyHasIt)
        else ""
    )
    failed = state.step is PullStep.FAILED
    return PullReply(
        id=pull.id,
        step=state.step,
        name=state.name,
        done_bytes=state.done,
        total_bytes=state.total,
        before_bytes=state.before,
        rate=round(state.rate, 1),
        activity=state.activity,
        holders=tuple(
            HolderView(node=holder.node, bytes=holder.bytes, problem=holder.problem)
            for holder in state.holders.values()
        ),
        paths=tuple(map(str, state.paths)),
        fingerprint=state.fingerprint or None,
        was_here=state.was_here,
        source=state.source,
        asked=str(pull.name),
        note=state.note,
        error=error.what if error is not None else "it was stopped" if failed else "",
        hint=error.hint if error is not None else "",
        code=code,
    )


def gives_unbounded(config: Config, status: Callable[[], RoleStatus]) -> bool:
    """Return True if members may now get pieces of this node's models without a limit of the rate."""
    return config.node.give_models != "off" and not status().is_computing
