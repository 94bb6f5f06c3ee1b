"""One child and the task that owns it.

`serve` waits until somebody asks for the child, runs it to the end of its whole group, and waits again.
One run is one function, `_run`; requests (`ensure_ready`, `stop`, `kill`) change the state and wait for the
answer. Every settled state answers all who wait, for readiness as for the end.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace

from meshd.base import log
from meshd.base.errors import Busy, Closed, MeshdError, UserError
from meshd.base.tasks import Owner
from meshd.process.interface import Child, ChildFailed, ChildSpec, ChildState, ChildStatus, ReadyProbe
from meshd.process.output import show_tail
from meshd.process.run import Run, cannot_start, split_code

PROBE_FIRST = 0.02  # seconds between the first probes: an rpc-server is ready in 30 ms
PROBE_SHARE = 0.02  # of what the start took so far: so much later than it was ready a child is seen to be
PROBE_MOST = 0.25
STUBBORN_AFTER = 10.0  # seconds after KILL: then a driver or the kernel holds it, and it is killed again

NO_MEMORY_HINT = "lend less with `--memory SIZE`, use a smaller model or `--ctx-size`, or raise the limit"
SIGNAL_HINTS: Mapping[int, str] = {
    signal.SIGKILL: "check `dmesg`: the kernel does this when memory runs out; or a user killed it",
    signal.SIGILL: "it was probably built for another CPU: build it again on this machine",
}

_SETTLED = (ChildState.STOPPED, ChildState.FAILED)  # until somebody asks for it

logger = log.get("process")


class OwnedChild(Child):
    """A child by its spec, or by a function that makes one for each start (fresh descriptors, secrets).

    The function must be quick; a MeshdError or OSError that it raises is why the start failed.
    """

    def __init__(self, spec: ChildSpec | Callable[[], ChildSpec], *, name: str = "") -> None:
        """Set up without starting. `name` shows until the first start when `spec` is a function."""
        self._make = spec if callable(spec) else lambda: spec
        if isinstance(spec, ChildSpec):
            name = name or spec.name
        self._status = ChildStatus(name or "child", ChildState.STOPPED, reason="not started")
        self._run_of: Run | None = None  # while a group lives
        self._start_asked = asyncio.Event()  # a run is wanted, and has not begun
        self._end_asked = False  # the run is to end
        self._unasked: asyncio.Timeout | None = None  # of a run whose end nobody has asked for
        self._late = ""  # why the run is ended, where nobody asked for that
        self._ready_at = 0.0
        self._changed = asyncio.Event()
        self._starters: set[asyncio.Future[None]] = set()
        self._stoppers: set[asyncio.Future[None]] = set()
        self._serving = self._closing = self._closed = False

    @property
    def status(self) -> ChildStatus:
        return self._status

    async def serve(self) -> None:
        """Own the child until cancelled; see Child. Raises Busy when it is served already, Closed after."""
        if self._closed:
            raise Closed(f"`{self._name}` is no longer owned")
        if self._serving:
            raise Busy(f"`{self._name}` already has an owner")
        self._serving = True
        try:
            while True:
                while not self._start_asked.is_set():  # a stop may take it back while we wake up
                    await self._start_asked.wait()
                await self._run()
        finally:
            self._close()

    async def ensure_ready(self) -> None:
        """Start the child unless it is up, and wait until it is ready. Raises UserError, ChildFailed (with
        the last lines), Closed.
        """
        if self._closing or self._closed:
            raise self._no_longer_owned()
        if self._status.state is ChildState.READY:
            return
        if self._status.state in _SETTLED:
            self._set(ChildState.STARTING, "starting")
            self._start_asked.set()
        elif self._status.state is ChildState.STOPPING:
            self._start_asked.set()  # once it is gone
        await self._answer(self._starters)

    async def stop(self) -> None:
        if self._closed:
            return
        stopped = Closed(f"`{self._name}` was stopped")
        if self._status.state is ChildState.STARTING:
            stopped = Closed(f"`{self._name}` was stopped while it was starting")
        is_to_come = self._start_asked.is_set()
        self._start_asked.clear()
        if self._status.state in _SETTLED or (is_to_come and self._status.state is ChildState.STARTING):
            self._settle(ChildState.STOPPED, "stopped", stopped)  # nothing of it runs
            return
        self._late = ""
        self._set(ChildState.STOPPING, "stopping")
        self._ask_end()
        _wake(self._starters, stopped)
        await self._answer(self._stoppers)

    def kill(self) -> None:
        if self._run_of is not None:
            self._run_of.signal(signal.SIGKILL)

    async def wait_changed(self, seen: ChildStatus) -> ChildStatus:
        while self._status == seen:
            await self._changed.wait()
        return self._status

    # --- one run --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run the child once, from the start to the end of its group."""
        # Make the spec, and forget what is known of the run before.
        self._start_asked.clear()
        self._end_asked = False
        self._late = ""
        try:
            spec = self._make()
        except (MeshdError, OSError) as error:
            self._fail(error if isinstance(error, MeshdError) else cannot_start(self._name, error))
            return
        self._become(ChildStatus(spec.name, ChildState.STARTING, reason="starting"))
        # Start it, and watch it until it has ended.
        run = Run(spec)
        try:
            async with run:
                self._run_of = run
                self._become(replace(self._status, pid=run.pid))
                code = await self._watch(run, spec)
        except MeshdError as error:
            if self._run_of is not None:  # not the start: a probe broke its promise, a bug
                raise
            self._gone(error)
            return
        finally:
            self._run_of = None
        # Say how it ended. Its group is gone by now.
        number, by_signal = split_code(code)
        ended = replace(
            self._status,
            pid=None,
            tail=run.tail,
            exit_code=number,
            exit_signal=by_signal,
            no_memory=run.no_memory(code),
        )
        what, hint = (self._late, "") if self._late else describe_exit(ended, self._since_ready())
        self._status = ended
        lines = show_tail(run.tail, spec.log)
        self._gone(ChildFailed(what, hint="\n".join(part for part in (hint, lines) if part), tail=run.tail))

    async def _watch(self, run: Run, spec: ChildSpec) -> int:
        """Return its exit code; meanwhile detect its readiness, and end it on request."""
        try:
            if spec.probe is None:
                if not self._end_asked:
                    self._ready()
                return await self._end_of(run, spec)
            async with Owner() as owner:
                owner.start(self._probe(spec.probe, spec), name=f"probe {spec.name}")
                code = await self._end_of(run, spec)
                owner.cancel()
        except asyncio.CancelledError:
            self._closing = True
            raise
        return code

    async def _end_of(self, run: Run, spec: ChildSpec) -> int:
        """Wait until it ends by itself or on request; then send TERM, then KILL."""
        code = None
        if not self._end_asked:
            self._unasked = asyncio.timeout(None)
            code = await _exit_within(run, self._unasked)
            self._unasked = None
        if code is None:
            run.signal(signal.SIGTERM)
            code = await _exit_within(run, asyncio.timeout(spec.stop_timeout))
        while code is None:
            self._set(ChildState.STOPPING, "does not exit when asked to: killing it")
            run.signal(signal.SIGKILL)
            code = await _exit_within(run, asyncio.timeout(STUBBORN_AFTER))
        return code

    def _ask_end(self) -> None:
        if not self._end_asked and self._unasked is not None:
            self._unasked.reschedule(asyncio.get_running_loop().time())
        self._end_asked = True

    async def _probe(self, probe: ReadyProbe, spec: ChildSpec) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(spec.ready_timeout):
                while not await probe():
                    pause = min(PROBE_MOST, max(PROBE_FIRST, PROBE_SHARE * (clock() - began)))
                    await asyncio.sleep(pause)
        except TimeoutError:
            if not self._end_asked:
                self._late = f"`{spec.name}` was not ready {spec.ready_timeout:g} s after its start"
                self._set(ChildState.STOPPING, self._late)
                self._ask_end()
            return
        if not self._end_asked:
            self._ready()

    # --- states, and those who wait for them ----------------------------------------------------------------

    def _ready(self) -> None:
        self._ready_at = asyncio.get_running_loop().time()
        self._set(ChildState.READY, "ready")
        _wake(self._starters, None)

    def _since_ready(self) -> str:
        """Return in words the present moment of its life."""
        if self._status.state is not ChildState.READY:
            return "while it was starting"
        return f"{asyncio.get_running_loop().time() - self._ready_at:.1f} s after it was ready"

    def _gone(self, error: MeshdError) -> None:
        """Settle after a run; `error` is how it ended, a failure unless the end was requested."""
        if self._status.state is not ChildState.STOPPING or self._late:
            self._fail(error)
        elif self._start_asked.is_set():  # asked for while it was being stopped
            _wake(self._stoppers, None)
            self._become(ChildStatus(self._name, ChildState.STARTING, reason="starting"))
        else:
            self._settle(ChildState.STOPPED, "stopped", Closed(f"`{self._name}` was stopped"))

    def _fail(self, error: MeshdError) -> None:
        self._start_asked.clear()
        if not isinstance(error, UserError | ChildFailed):
            error = ChildFailed(error.what, hint=error.hint)
        self._settle(ChildState.FAILED, error.what, error)

    def _settle(self, state: ChildState, reason: str, error: MeshdError) -> None:
        tail = self._status.tail if state is ChildState.FAILED else ()
        self._become(replace(self._status, state=state, reason=reason, pid=None, tail=tail))
        _wake(self._starters, error)
        _wake(self._stoppers, None)

    def _set(self, state: ChildState, reason: str) -> None:
        self._become(replace(self._status, state=state, reason=reason))

    def _become(self, status: ChildStatus) -> None:
        before, self._status = self._status, status
        self._changed.set()
        self._changed = asyncio.Event()
        if status.state is before.state or self._closed:
            return
        if status.state is ChildState.FAILED and status.exit_code == 0:
            logger.info("child_ended", child=status.name, pid=status.pid, why=status.reason)
            return
        say = logger.warning if status.tail else logger.info
        say(f"child_{status.state}", child=status.name, pid=status.pid, why=status.reason)

    async def _answer(self, waiters: set[asyncio.Future[None]]) -> None:
        answer = asyncio.get_running_loop().create_future()
        waiters.add(answer)
        try:
            await answer
        finally:
            waiters.discard(answer)

    @property
    def _name(self) -> str:
        return self._status.name

    def _no_longer_owned(self) -> Closed:
        return Closed(f"`{self._name}` is no longer owned", hint="meshd is stopping")

    def _close(self) -> None:
        self._serving = False
        self._closing = self._closed = True
        self._settle(ChildState.STOPPED, "no longer owned", self._no_longer_owned())


async def _exit_within(run: Run, limit: asyncio.Timeout) -> int | None:
    """Return its exit code; None if it has not ended by then."""
    try:
        async with limit:
            return await run.exited()
    except TimeoutError:
        return None


def _wake(waiters: set[asyncio.Future[None]], error: MeshdError | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def describe_exit(ended: ChildStatus, when: str) -> tuple[str, str]:
    """Return in words what happened, and a hint where the signal alone tells something."""
    if ended.exit_signal is None:
        return f"`{ended.name}` ended with exit code {ended.exit_code} {when}", ""
    try:
        by = signal.Signals(ended.exit_signal).name
    except ValueError:
        by = f"signal {ended.exit_signal}"
    if ended.no_memory:
        return f"`{ended.name}` was ended by the kernel {when}: {ended.no_memory}", NO_MEMORY_HINT
    return f"`{ended.name}` was ended by {by} {when}", SIGNAL_HINTS.get(ended.exit_signal, "")
