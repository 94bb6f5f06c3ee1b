"""The actions of the page of the mesh that are about models: list, plan, load, unload and remove.

The command line does the same on its own, with the same functions: there they may block.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from meshd.admin.api import (
    FilesInUseRequest,
    MemberModelsReply,
    MemberModelsRequest,
    PullProgressRequest,
    PullRequest,
    PullStopRequest,
)
from meshd.admin.listed_models import ListedModel, add_members, listed_json, models_here
from meshd.admin.plan_options import PlanOptions, plan_request
from meshd.admin.planned_file import NotHereYet, header_from_members, local_or_header
from meshd.admin.request import Json, from_json, to_fields
from meshd.base.errors import UserError
from meshd.base.tasks import in_thread
from meshd.config.tree import Config
from meshd.daemon.console_actions import Act, Control
from meshd.library.disk import is_file
from meshd.library.interface import TransferProgress
from meshd.library.remove import check_unused, plan_removal, remove
from meshd.library.resolve import Resolver
from meshd.library.stores import Stores

_POLL_SECONDS = 0.5
Fields = Mapping[str, object]
Reply = Mapping[str, Json]


class LoadedModels(Protocol):
    """Several models of one node, which are loaded on demand (head/model_pool.py)."""

    def load(self, name: str) -> None:
        """Load a model without a request. Raises UserError."""

    def unload(self, name: str) -> None:
        """Unload a model. Raises UserError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWish:
    """The fields of actions on one model."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWish(PlanOptions):
    """The fields of `plan`: the options of `meshd plan`."""

    model: str
    draft_model: str = ""


class ModelActions:
    """The actions on models of one node."""

    def __init__(self, control: Control, config: Config, pool: Callable[[], LoadedModels | None]) -> None:
        """Ask `control`. `pool`: returns the models of a node with several."""
        self._control = control
        self._config = config
        self._node = config.node.name
        self._cache = config.paths.cache
        self._pool = pool

    def acts(self) -> Mapping[str, Act]:
        """Return the actions by name; without a pool, models are not loaded by name."""
        found: dict[str, Act] = {"models": self.models, "plan": self.plan, "model_remove": self.remove}
        if self._pool() is not None:
            found |= {"load": self.load, "unload": self.unload}
        return found

    async def models(self, fields: Fields) -> Reply:
        """Return what `meshd model ls --json` prints, and the members that did not reply."""
        used = (await self._control.answer(FilesInUseRequest())).paths
        members = await self._control.answer(MemberModelsRequest())
        return await in_thread(self._listed, used, members)

    def _listed(self, used: Sequence[str], members: MemberModelsReply) -> Reply:
        unreadable: list[Path] = []
        stores, hashes = Stores.here(self._cache), self._cache / "weights"
        listed: list[ListedModel] = models_here(stores, hashes, used, unreadable=unreadable.append)
        add_members(listed, members)
        return {
            "models": [listed_json(model, self._node, listed) for model in listed],
            "left_out": [to_fields(left) for left in members.left_out],
            "unreadable": [str(place) for place in unreadable],
        }

    async def remove(self, fields: Fields) -> Reply:
        """Remove a model that was downloaded, unless this node uses it. Raises UserError."""
        given = _given(from_json(ModelWish, fields).model)
        used = (await self._control.answer(FilesInUseRequest())).paths
        return await in_thread(self._remove, given, used)

    def _remove(self, given: Path | str, used: Sequence[str]) -> Reply:
        stores = Stores.here(self._cache)
        removal = plan_removal(given, Resolver(stores, _unseen), stores)
        check_unused(removal, used)
        remove(removal)
        return {"removed": list(removal.names), "bytes": removal.size}

    async def load(self, fields: Fields) -> Reply:
        """Load one of several models. Raises UserError."""
        self._several().load(from_json(ModelWish, fields).model)
        return {}

    async def unload(self, fields: Fields) -> Reply:
        """Unload one of several models. Raises UserError."""
        self._several().unload(from_json(ModelWish, fields).model)
        return {}

    def _several(self) -> LoadedModels:
        if (pool := self._pool()) is None:
            raise UserError(
                "this node has no models that are loaded on demand", hint="list several under `[[models]]`"
            )
        return pool

    async def plan(self, fields: Fields) -> Reply:
        """Plan for models by name or path. Raises MeshdError."""
        asked = from_json(PlanWish, fields)
        planned = plan_request(asked)
        with ExitStack() as held:
            file = await self._file(asked.model, held)
            draft = await self._file(asked.draft_model, held) if asked.draft_model else ""
            request = replace(planned, model=str(file), draft_model=str(draft))
            return to_fields(await self._control.answer(request))

    async def _file(self, text: str, held: ExitStack) -> Path:
        """Return the first file of the model, or of its headers. Raises MeshdError."""
        given = self._served(text) or _given(text)

        def here() -> Path | NotHereYet:
            return local_or_header(given, self._cache, held, report=_unseen, note=_unsaid)

        found = await in_thread(here)
        if not isinstance(found, NotHereYet):
            return found
        reply = await self._control.answer(PullRequest(name=str(given), for_plan=True))
        try:
            while reply.step not in ("done", "failed"):
                await asyncio.sleep(_POLL_SECONDS)
                reply = await self._control.answer(PullProgressRequest(id=reply.id))
        except asyncio.CancelledError:
            await self._control.answer(PullStopRequest(id=reply.id))
            raise
        return header_from_members(text, found, reply, held, note=_unsaid)

    def _served(self, name: str) -> Path | str | None:
        """Return the file or the given name of the model that this node serves as `name`."""
        for model in self._config.models:
            if name in (model.name, *model.aliases):
                return model.serve.model
        only = self._config.serve.model
        return only if isinstance(only, Path) and only.name.removesuffix(".gguf") == name else None


def _given(text: str) -> Path | str:
    """Return a path for a whole path of a file: what is relative to this process means nothing to a page."""
    path = Path(text)
    return path if path.is_absolute() and is_file(path) else text


def _unseen(progress: TransferProgress) -> None:
    """Report to nobody: the page shows that the action is under way."""


def _unsaid(text: str) -> None:
    """Say nothing: the plan itself tells which model it is of."""
