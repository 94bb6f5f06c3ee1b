"""The storage of this node: the disk of its cache, and the model files of this machine.

Members exchange the state of their disks with their lists of models. `meshd status`, which may run each
second, walks no folders: files are counted after a request, and not again for a while.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from meshd.admin.plan_api import StorageCapacity, StoredFile
from meshd.admin.status import StorageView
from meshd.base.fault_boundary import ended
from meshd.base.tasks import in_thread
from meshd.config.tree import Config
from meshd.library.disk import bytes_on_disk, free_bytes
from meshd.library.facts import facts_of
from meshd.library.interface import StoredModel
from meshd.library.members.ask_models import MemberModels, ask_members
from meshd.library.members.give import names_of
from meshd.library.stores import Stores, own_models
from meshd.model.status import StoreStatus
from meshd.peer.interface import Mesh
from meshd.wire.limits import MAX_DISK_BYTES
from meshd.wire.models import ToldDisk

SHOWN_FILES = 16  # per node; the others are only counted
COUNT_SECONDS = 60.0  # files are not counted again for so long
_FIRST_COUNT_SECONDS = 0.5  # the first request waits so long for the count


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
