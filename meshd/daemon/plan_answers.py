"""Answer the control requests about speeds and splits, of which most workers get none: import on demand."""

from collections.abc import Callable
from dataclasses import replace

from meshd.admin.plan_api import (
    CapacityReply,
    CapacityRequest,
    FitsReply,
    FitsRequest,
    PlanReply,
    PlanRequest,
    WhyReply,
    WhyRequest,
)
from meshd.admin.request import Answers
from meshd.base.errors import UserError
from meshd.daemon.models import Storage
from meshd.daemon.plan_view import why_reply
from meshd.daemon.planning import Planning
from meshd.daemon.role_kind import BuiltRole


class PlanAnswers(Answers):
    """Answer for a daemon with this role, planning and storage."""

    def __init__(self, role: BuiltRole, planning: Callable[[], Planning], storage: Storage) -> None:
        self._role = role
        self._planning = planning
        self._storage = storage

    @CapacityRequest.answer
    async def capacity(self, request: CapacityRequest) -> CapacityReply:
        found = await self._planning().capacity(again=request.again)
        # Not at the same time: reading files would make devices look slower.
        return replace(found, storage=await self._storage.of_all())

    @FitsRequest.answer
    async def fits(self, request: FitsRequest) -> FitsReply:
        return await self._planning().fits(request)

    @PlanRequest.answer
    async def plan(self, request: PlanRequest) -> PlanReply:
        return await self._planning().plan(request)

    @WhyRequest.answer
    async def why(self, request: WhyRequest) -> WhyReply:
        if self._role.explain is None:
            raise UserError("this node serves no model", hint="run `meshd why` on the node that serves it")
        found = await self._role.explain()
        model = self._role.role.status.model
        if found is None or model is None:
            raise UserError("the model is not loaded", hint="run `meshd status` to see what it waits for")
        if not found.answers and found.running is None and found.round is None:
            raise UserError(
                "nothing was answered yet since the model was loaded", hint="ask it something first"
            )
        return why_reply(model.name, found)
