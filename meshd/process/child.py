"""One child and the task that owns it: carries out what the life cycle decides.

`lifecycle.py` decides, this file does: it spawns (through Run), runs the one timer, signals, and wakes who
waits. Events are fed as they happen and carried out at once, in order; only spawning and waiting for the
end take time, and only `serve` does that. Every settled state wakes every waiter, of both kinds.
"""

import asyncio
import signal
from collections.abc import Callable

from meshd.base import log
from meshd.base.errors import Busy, Closed, MeshdError, UserError
from meshd.base.tasks import Owner
from meshd.process.events import (
    Action,
    ChildFault,
    Event,
    Exited,
    Gone,
    ProbePassed,
    Rules,
    SetTimer,
    SignalGroup,
    Spawn,
    SpawnBegun,
    Spawned,
    SpawnFailed,
    StartAsked,
    StopAsked,
    TimerFired,
    Unspawn,
    Wake,
)
from meshd.process.interface import Child, ChildFailed, ChildSpec, ChildState, ChildStatus, ReadyProbe
from meshd.process.lifecycle import Lifecycle
from meshd.process.output import show_tail
from meshd.process.run import Run, cannot_start, split_code

PROBE_FIRST = 0.02  # seconds between the first probes: an rpc-server is ready in 30 ms
PROBE_SHARE = 0.05  # of what the start took so far: so much later than it was ready a child is seen to be
PROBE_MOST = 0.25

logger = log.get("process")


class OwnedChild(Child):
    """A child by its spec, or by a function that makes one for each start (fresh descriptors, secrets).

    The function must be quick; a MeshdError or OSError that it raises is why the start failed.
    """

    def __init__(self, spec: ChildSpec | Callable[[], ChildSpec], *, name: str = "") -> None:
        """`name` shows until the first start when `spec` is a function."""
        self._make = spec if callable(spec) else lambda: spec
        if isinstance(spec, ChildSpec):
            name = name or spec.name
        self._life = Lifecycle(rules=Rules(name=name or "child"))
        self._spec: ChildSpec | None = spec if isinstance(spec, ChildSpec) else None
        self._run: Run | None = None
        self._tail: tuple[str, ...] = ()
        self._exited: Exited | None = None
        self._spawn_asked = asyncio.Event()
        self._changed = asyncio.Event()
        self._starters: set[asyncio.Future[None]] = set()
        self._stoppers: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._serving = False
        self._closing = False
        self._closed = False

    @property
    def status(self) -> ChildStatus:
        """What it is now, and why."""
        life = self._life
        troubled = life.state in (ChildState.FAILED, ChildState.BACKOFF)
        return ChildStatus(
            name=life.rules.name,
            state=life.state,
            pid=self._run.pid if self._run is not None else None,
            restarts=life.restarts,
            reason=life.reason,
            tail=self._tail if troubled else (),
            crash_loop=life.record.looping,
            exit_code=self._exited.code if self._exited is not None else None,
            exit_signal=self._exited.signal if self._exited is not None else None,
        )

    async def serve(self) -> None:
        """Own the child until cancelled; see Child. Raises Busy when it is served already, Closed after."""
        if self._closed:
            raise Closed(f"`{self._life.rules.name}` is no longer owned")
        if self._serving:
            raise Busy(f"`{self._life.rules.name}` already has an owner")
        self._serving = True
        try:
            while True:
                while not self._spawn_asked.is_set():  # a stop may take it back while we wake up
                    await self._spawn_asked.wait()
                self._spawn_asked.clear()
                await self._run_once()
        finally:
            self._close()

    async def ensure_ready(self) -> None:
        """See Child. Raises UserError, ChildFailed (with the last lines), Closed."""
        if self._closing or self._closed:
            raise self._no_longer_owned()
        await self._ask(StartAsked(), self._starters)

    async def stop(self) -> None:
        """See Child."""
        if not self._closed:
            await self._ask(StopAsked(), self._stoppers)

    def kill(self) -> None:
        """See Child."""
        if self._run is not None:
            self._run.signal(signal.SIGKILL)

    async def wait_changed(self, seen: ChildStatus) -> ChildStatus:
        """See Child."""
        while (now := self.status) == seen:
            await self._changed.wait()
        return now

    # --- requests and waiters -------------------------------------------------------------------------------

    async def _ask(self, event: Event, waiters: set[asyncio.Future[None]]) -> None:
        answer = asyncio.get_running_loop().create_future()
        waiters.add(answer)
        try:
            if not self._closing:
                self._feed(event)
            await answer
        finally:
            waiters.discard(answer)

    def _wake(self, fault: ChildFault | None) -> None:
        for waiter in self._starters:
            if waiter.done():
                continue
            if fault is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(self._error(fault))

    def _gone(self) -> None:
        for waiter in self._stoppers:
            if not waiter.done():
                waiter.set_result(None)

    def _error(self, fault: ChildFault) -> MeshdError:
        if fault.stopped:
            return Closed(fault.what)
        if fault.user:
            return UserError(fault.what, hint=fault.hint)
        lines = show_tail(self._tail, self._spec.log) if self._spec is not None else ""
        hint = "\n".join(part for part in (fault.hint, lines) if part)
        return ChildFailed(fault.what, hint=hint, tail=self._tail)

    def _no_longer_owned(self) -> Closed:
        return Closed(f"`{self._life.rules.name}` is no longer owned", hint="meshd is stopping")

    # --- events and actions ---------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        before = self._life.state
        self._life, actions = self._life.on(event, asyncio.get_running_loop().time())
        for action in actions:
            self._do(action)
        self._tell_change()
        if self._life.state is not before:
            self._log_change()

    def _do(self, action: Action) -> None:
        match action:
            case Spawn():
                self._spawn_asked.set()
            case Unspawn():
                self._spawn_asked.clear()
            case SignalGroup(number):
                if self._run is not None:
                    self._run.signal(number)
            case SetTimer(at):
                self._set_timer(at)
            case Wake(fault):
                self._wake(fault)
            case Gone():
                self._gone()

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_at(at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._feed(TimerFired())

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _log_change(self) -> None:
        status = self.status
        say = logger.warning if status.tail or status.crash_loop else logger.info
        if status.state is ChildState.FAILED and status.exit_code == 0:
            logger.info("child_ended", child=status.name, pid=status.pid, why=status.reason)
            return
        say(f"child_{status.state}", child=status.name, pid=status.pid, why=status.reason)

    # --- the owner's work -----------------------------------------------------------------------------------

    async def _run_once(self) -> None:
        """One start, to the end of its group. Feeds SpawnFailed or Exited as the last."""
        try:
            spec = self._make()
        except MeshdError as error:
            self._feed(SpawnFailed(_fault(error)))
            return
        except OSError as error:
            self._feed(SpawnFailed(_fault(cannot_start(self._life.rules.name, error))))
            return
        self._spec = spec
        self._tail = ()
        self._exited = None
        rules = Rules(spec.name, spec.ready_timeout, spec.stop_timeout, spec.restart)
        self._feed(SpawnBegun(rules))
        run = Run(spec)
        try:
            async with run:
                self._run = run
                self._feed(Spawned(run.pid))
                code = await self._watch(run, spec.probe)
        except asyncio.CancelledError:
            self._run = None
            raise
        except MeshdError as error:
            if self._run is not None:  # not the spawn: a probe broke its promise, a bug
                self._run = None
                raise
            self._feed(SpawnFailed(_fault(error)))
            return
        self._run = None
        self._tail = run.tail
        self._exited = Exited(*split_code(code))
        self._feed(self._exited)

    async def _watch(self, run: Run, probe: ReadyProbe | None) -> int:
        try:
            if probe is None:
                self._feed(ProbePassed())
                return await run.exited()
            async with Owner() as owner:
                owner.start(self._probe(probe), name=f"probe {self._life.rules.name}")
                code = await run.exited()
                owner.cancel()
            return code
        except asyncio.CancelledError:
            self._closing = True
            raise

    async def _probe(self, probe: ReadyProbe) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        while not await probe():
            pause = min(PROBE_MOST, max(PROBE_FIRST, PROBE_SHARE * (clock() - began)))
            await asyncio.sleep(pause)
        self._feed(ProbePassed())

    def _close(self) -> None:
        self._serving = False
        self._closing = self._closed = True
        self._run = None
        self._set_timer(None)
        self._life = Lifecycle(rules=self._life.rules, reason="no longer owned")
        for waiter in self._starters:
            if not waiter.done():
                waiter.set_exception(self._no_longer_owned())
        self._gone()
        self._tell_change()


def _fault(error: MeshdError) -> ChildFault:
    return ChildFault(error.what, hint=error.hint, user=isinstance(error, UserError))
