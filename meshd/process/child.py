"""One child and the task that owns it.

`serve` waits until somebody asks for the child and runs it once, to the end of its whole group. Leaving it
early ends the group. `ensure_ready` waits for the outcome; whoever wants another child makes another one.
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

logger = log.get("process")


class OwnedChild(Child):
    """A child by its spec, or by a function that makes it at the start (fresh descriptors, secrets).

    The function must be quick; a MeshdError or OSError that it raises is why the start failed.
    """

    def __init__(self, spec: ChildSpec | Callable[[], ChildSpec], *, name: str = "") -> None:
        """Set up without starting. `name` shows until the start when `spec` is a function."""
        self._make = spec if callable(spec) else lambda: spec
        if isinstance(spec, ChildSpec):
            name = name or spec.name
        self._status = ChildStatus(name or "child", ChildState.STOPPED, reason="not started")
        self._run_of: Run | None = None  # while a group lives
        self._asked = asyncio.Event()  # the run is wanted
        self._late = ""  # why the run is ended, because it was not ready in time
        self._error: MeshdError | None = None  # why it will not be ready any more
        self._ready_at = 0.0
        self._changed = asyncio.Event()
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_owned = False

    @property
    def status(self) -> ChildStatus:
        return self._status

    async def serve(self) -> None:
        """Own the child; see Child. Raises Busy when it is owned already, or its life is over."""
        if self._is_owned:
            raise Busy(f"`{self._name}` already has an owner")
        self._is_owned = True
        gone = Closed(f"`{self._name}` is no longer owned", hint="meshd is stopping")
        try:
            await self._asked.wait()
            await self._run()
        finally:
            if self._error is None:
                self._settle(ChildState.STOPPED, "no longer owned", gone)

    async def ensure_ready(self) -> None:
        """Start the child unless it is up, and wait until it is ready. Raises UserError, ChildFailed (with
        the last lines), Closed.
        """
        if self._error is not None:
            raise self._error
        if self._status.state is ChildState.READY:
            return
        if not self._asked.is_set():
            self._set(ChildState.STARTING, "starting")
            self._asked.set()
        outcome = asyncio.get_running_loop().create_future()
        self._waiting.add(outcome)
        try:
            await outcome
        finally:
            self._waiting.discard(outcome)

    def kill(self) -> None:
        if self._run_of is not None:
            self._run_of.signal(signal.SIGKILL)

    async def wait_changed(self, seen: ChildStatus) -> ChildStatus:
        while self._status == seen:
            await self._changed.wait()
        return self._status

    # --- its run --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run the child, from the start to the end of its group."""
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
            self._fail(error)
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
        self._fail(ChildFailed(what, hint="\n".join(part for part in (hint, lines) if part), tail=run.tail))

    async def _watch(self, run: Run, spec: ChildSpec) -> int:
        """Return its exit code; meanwhile detect its readiness."""
        if spec.probe is None:
            self._ready()
            return await run.exited()
        async with Owner() as owner:
            owner.start(self._probe(spec.probe, run, spec), name=f"probe {spec.name}")
            code = await run.exited()
            owner.cancel()
        return code

    async def _probe(self, probe: ReadyProbe, run: Run, spec: ChildSpec) -> None:
        """Probe until it is ready. If it is late, end it: by TERM, then by KILL."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(spec.ready_timeout):
                while not await probe():
                    pause = min(PROBE_MOST, max(PROBE_FIRST, PROBE_SHARE * (clock() - began)))
                    await asyncio.sleep(pause)
        except TimeoutError:
            self._late = f"`{spec.name}` was not ready {spec.ready_timeout:g} s after its start"
            self._set(ChildState.STOPPING, self._late)
            run.signal(signal.SIGTERM)
            await asyncio.sleep(spec.stop_timeout)
            while True:  # until it has exited
                self._set(ChildState.STOPPING, "does not exit when asked to: killing it")
                run.signal(signal.SIGKILL)
                await asyncio.sleep(STUBBORN_AFTER)
        self._ready()

    # --- states, and those who wait for them ----------------------------------------------------------------

    def _ready(self) -> None:
        self._ready_at = asyncio.get_running_loop().time()
        self._set(ChildState.READY, "ready")
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _since_ready(self) -> str:
        """Return in words the present moment of its life."""
        if self._status.state is not ChildState.READY:
            return "while it was starting"
        return f"{asyncio.get_running_loop().time() - self._ready_at:.1f} s after it was ready"

    def _fail(self, error: MeshdError) -> None:
        if not isinstance(error, UserError | ChildFailed):
            error = ChildFailed(error.what, hint=error.hint)
        self._settle(ChildState.FAILED, error.what, error)

    def _settle(self, state: ChildState, reason: str, error: MeshdError) -> None:
        """End its life; `error` says why it is not ready."""
        self._error = error
        tail = self._status.tail if state is ChildState.FAILED else ()
        self._become(replace(self._status, state=state, reason=reason, pid=None, tail=tail))
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)

    def _set(self, state: ChildState, reason: str) -> None:
        self._become(replace(self._status, state=state, reason=reason))

    def _become(self, status: ChildStatus) -> None:
        before, self._status = self._status, status
        self._changed.set()
        self._changed = asyncio.Event()
        if status.state in (before.state, ChildState.STOPPED):
            return
        if status.state is ChildState.FAILED and status.exit_code == 0:
            logger.info("child_ended", child=status.name, pid=status.pid, why=status.reason)
            return
        say = logger.warning if status.tail else logger.info
        say(f"child_{status.state}", child=status.name, pid=status.pid, why=status.reason)

    @property
    def _name(self) -> str:
        return self._status.name


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
