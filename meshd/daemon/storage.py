"""What this node stores and has room for: the disk of its cache, and the model files of this machine.

Members are told of the disk with their models, and tell of theirs. `meshd status`, which may be asked each
second, walks no folders: files are counted when somebody has asked, and not again for a while.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from meshd.admin.plan_api import StorageCapacity, StoredFile
from meshd.admin.status import StorageView
from meshd.base.fault_boundary import ended
from meshd.base.tasks import in_thread
from meshd.config import Config
from meshd.library.disk_space import free_bytes
from meshd.library.facts import facts_of
from meshd.library.interface import StoredModel
from meshd.library.members.ask_models import MemberModels, ask_members
from meshd.library.members.offered_models import names_of
from meshd.library.own_models import own_models
from meshd.library.stores import Stores
from meshd.library.walk import bytes_on_disk
from meshd.model.status import StoreStatus
from meshd.peer.interface import Mesh
from meshd.wire.limits import MAX_DISK_BYTES
from meshd.wire.models import ToldDisk

SHOWN_FILES = 16  # of a node; how many more there are is said
COUNT_SECONDS = 60.0  # for so long files are not counted again
_FIRST_COUNT_SECONDS = 0.5  # how long the first who asks waits


def started_with(config: Config) -> list[Path]:
    """The model files that this node was started with, wherever they are."""
    served = [config.serve, *(model.serve for model in config.models)]
    named = [*(one.model for one in served), *config.worker.models]
    named += [file for one in served for file in one.fallback_models]
    return [path for path in named if isinstance(path, Path)]


def files_in_use(config: Config) -> list[Path]:
    """Of models: what the role of this node opens now or with its next load."""
    served = [config.serve, *(model.serve for model in config.models)]
    beside = [file for one in served for file in (one.draft_model, one.mmproj)]
    return [*started_with(config), *(path for path in beside if isinstance(path, Path))]


class Storage:
    """Of one daemon; `serve` must run for counts."""

    def __init__(
        self,
        mesh: Mesh,
        config: Config,
        stores: Callable[[], Stores],
        *,
        kept: Callable[[], StoreStatus | None],
    ) -> None:
        """`kept`: the weights that its role keeps, if it does."""
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

    async def serve(self) -> None:
        """Count when that is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            # folders of other programs, and paths of the user's variables: whatever they hold
            models = await ended(in_thread(self._own), source="status", name="model count")
            self._count = None if models is None else (len(models), sum(map(_held, models)))
            self._counted.set()
            await asyncio.sleep(COUNT_SECONDS)

    def disk(self) -> ToldDisk | None:
        """Of the cache, now; None where that cannot be found out."""
        kept = self._kept()
        try:
            free = free_bytes(self._cache)
        except OSError:
            return None
        room = None if kept is None else min(MAX_DISK_BYTES, max(0, kept.limit - kept.bytes))
        return ToldDisk(min(MAX_DISK_BYTES, free), room)

    async def status(self) -> StorageView:
        """What is known without a walk; the count may be some time old, and is missing at first."""
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
        """This node's as it is now, then those of the members that are there."""
        own = _capacity(self._node, self.disk(), *await in_thread(self._listed))
        return (own, *map(_of_member, await ask_members(self._mesh)))

    def _own(self) -> list[StoredModel]:
        return own_models(self._stores(), self._started_with)

    def _listed(self) -> tuple[list[StoredFile], int]:
        """The largest, and how many more there are. A header tells the fingerprint, if that is known."""
        models, hashes = self._own(), self._cache / "weights"
        shown = [(one, facts_of(one, hashes)) for one in models[:SHOWN_FILES]]
        files: dict[str, StoredFile] = {}  # a second file with one content is no other model
        for one, facts in shown:
            if not facts.problem:
                file = StoredFile(name=names_of(one)[0], bytes=one.size, fingerprint=facts.fingerprint)
                files.setdefault(facts.fingerprint or str(one.paths), file)
        return list(files.values()), len(models) - len(shown)


def _held(model: StoredModel) -> int:
    """Bytes of it on the disk: of a header (`--header-only`) most are a hole."""
    return min(model.size, sum(map(bytes_on_disk, model.paths)) or model.size)


def _of_member(told: MemberModels) -> StorageCapacity:
    files = [
        StoredFile(name=one.stem, bytes=one.model.size, fingerprint=one.model.fingerprint.hex() or None)
        for one in told.offers
        if one.stem
    ]
    files.sort(key=lambda one: (-one.bytes, one.name))
    return _capacity(told.node, told.disk, files[:SHOWN_FILES], len(files[SHOWN_FILES:]), told.why_not)


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
