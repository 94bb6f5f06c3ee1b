"""The state of this node for the page of the mesh, and what the page may do.

The node is looked at while the page is watched (gateway/console.py watches once for all browsers), and at no
other time: there is no task and no timer to end.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from meshd.admin.api import StatusRequest
from meshd.admin.request import Json, to_fields
from meshd.admin.status import Status
from meshd.admin.status_json import for_scripts
from meshd.base import log
from meshd.daemon.console_events import MOST_EVENTS, Event, event_of, events_between, latest
from meshd.gateway.events import BUCKET_SECONDS, BUCKETS, WorkHistory
from meshd.gateway.interface import RequestStatus

LOOK_SECONDS = 0.5  # between two looks at the node
AGAIN_SECONDS = 5.0  # after which a state goes out although nothing worth a look has changed
STORAGE_SECONDS = 30.0  # between two looks at the disk
_IDLE = WorkHistory((0,) * BUCKETS, (0,) * BUCKETS, float(BUCKET_SECONDS))
# What changes all the time: of a status that differs only in these nothing has happened.
_FLOWING = frozenset(
    {"uptime_s", "rss_bytes", "rtt_ms", "sent_bytes", "received_bytes", "bytes_s", "state_s", "listed_s"}
    | {"computed_s", "free_bytes", "seconds", "tok_s"}
)


class NodeStatus(Protocol):
    """Knows the status of this node (control.py)."""

    def status_now(self) -> Status:
        """Return the status without storage."""

    def status(self, request: StatusRequest, /) -> Awaitable[Status]:
        """Return the whole status."""


class ShownWork(Protocol):
    """The work of a gateway (gateway/work.py)."""

    @property
    def requests(self) -> Sequence[RequestStatus]: ...

    @property
    def history(self) -> WorkHistory: ...


class Actions(Protocol):
    """The actions of the page (console_actions.py)."""

    @property
    def names(self) -> Sequence[str]: ...

    async def act(self, name: str, fields: Mapping[str, object]) -> Mapping[str, Json]: ...


class ConsoleAnswers:
    """Implements ConsoleSource of gateway/interface.py."""

    def __init__(
        self,
        node: NodeStatus,
        actions: Actions,
        *,
        work: Callable[[], ShownWork | None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Show `node`. `work`: returns that of its API, None without one. `wall` gives Unix seconds."""
        self._node = node
        self._actions = actions
        self._work = work
        self._wall = wall
        # while it is watched
        self._before: Status | None = None
        self._storage_at = 0.0
        # what the log does not tell, of this watch and earlier ones
        self._noticed: deque[Event] = deque(maxlen=MOST_EVENTS)

    async def watch(self) -> AsyncGenerator[Mapping[str, Json], None]:
        """Yield the whole state at once, and again when it has changed, at most twice a second.

        Without a change it comes every AGAIN_SECONDS, as rates have. One watch at a time.
        """
        last, yielded_at = None, 0.0
        try:
            while True:
                looked_at = _now()
                state = await self._look()
                # what of it says that something has happened
                steady = _steady({name: value for name, value in state.items() if name != "history"})
                if (
                    last is None
                    or steady != last
                    or looked_at - yielded_at >= AGAIN_SECONDS - LOOK_SECONDS / 2
                ):
                    last, yielded_at = steady, looked_at
                    yield state
                await asyncio.sleep(looked_at + LOOK_SECONDS - _now())
        finally:
            self._before = None

    async def act(self, name: str, fields: Mapping[str, object]) -> Mapping[str, Json]:
        """Do what the control socket does for the request `name`. Raises MeshdError."""
        return await self._actions.act(name, fields)

    async def _look(self) -> Mapping[str, Json]:
        """Look at the node; note what happened since the last look."""
        status, wall = await self._status(), self._wall()
        if self._before is not None:
            self._noticed.extend(events_between(self._before, status, wall))
        self._before = status
        return self._state(status, wall)

    async def _status(self) -> Status:
        """Return the status; the disk's part of it is as old as STORAGE_SECONDS at most."""
        before = self._before
        if before is None or _now() - self._storage_at >= STORAGE_SECONDS:
            status = await self._node.status(StatusRequest())
            self._storage_at = _now()
            return status
        return replace(self._node.status_now(), storage=before.storage)

    def _state(self, status: Status, wall: float) -> Mapping[str, Json]:
        work = self._work()
        names = {peer.id: peer.name for peer in status.peers}
        logged = (event_of(line, names) for line in log.remembered())
        return {
            "status": for_scripts(status),
            "requests": [] if work is None else [_request(request) for request in work.requests],
            "history": _history(_IDLE if work is None else work.history, wall),
            "events": [to_fields(event) for event in latest((*logged, *self._noticed))],
            "can": list(self._actions.names),
        }


def _request(request: RequestStatus) -> Mapping[str, Json]:
    rate = None if request.tok_s is None else round(request.tok_s, 2)
    return to_fields(replace(request, seconds=round(request.seconds, 1), tok_s=rate))


def _history(done: WorkHistory, wall: float) -> Mapping[str, Json]:
    """Return tokens a second and requests of each bucket; `until`: the end of the newest one."""
    newest = max(1.0, done.seconds)  # a moment's tokens are no rate
    rates = [tokens / BUCKET_SECONDS for tokens in done.tokens[:-1]] + [done.tokens[-1] / newest]
    return {
        "step_s": BUCKET_SECONDS,
        "until": round(wall - done.seconds + BUCKET_SECONDS),
        "tok_s": [round(rate, 2) for rate in rates],
        "requests": list(done.requests),
    }


def _steady(value: object) -> object:
    """Return a JSON value without what changes all the time."""
    if isinstance(value, Mapping):
        return {name: _steady(inner) for name, inner in value.items() if name not in _FLOWING}
    if isinstance(value, list):
        return [_steady(inner) for inner in value]
    return value


def _now() -> float:
    return asyncio.get_running_loop().time()
