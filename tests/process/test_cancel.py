"""Cancelled at the first, second, … wait: whatever was under way, nothing is left behind."""

import asyncio
import contextlib
import types
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec, ChildState
from meshd.process.run import Run, run_to_end

from tests.process.scenes import Maker, argv, nothing_with, open_fds, until, waits_for_the_killed

__all__ = ["waits_for_the_killed"]  # a fixture
MOST_WAITS = 60  # far more than any of these has: a scene that never ends is found


class Cancelling:
    """Runs a coroutine and asks its task to be cancelled when it waits for the n-th time."""

    def __init__(self, work: Coroutine[object, object, object], n: int) -> None:
        self._work = work
        self._n = n
        self.waits = 0

    @types.coroutine
    def _steps(self) -> Generator[object, object, None]:
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration:
                return
            error = None
            self.waits += 1
            task = asyncio.current_task()
            assert task is not None
            if self.waits == self._n:
                task.cancel()
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown  # what the loop threw in belongs to the work
                if not isinstance(thrown, asyncio.CancelledError):
                    raise

    async def run(self) -> bool:
        """True when it was cancelled, False when it ended before the n-th wait."""
        try:
            await self._steps()
        except asyncio.CancelledError:
            return True
        return False


async def cancel_everywhere(make: Callable[[int], tuple[Coroutine[object, object, object], str]]) -> int:
    """Run `make(n)` cancelled at its n-th wait, for every n; nothing may be left. Returns how many waits."""
    for n in range(1, MOST_WAITS):
        before = open_fds()
        work, marker = make(n)
        cancelled = await Cancelling(work, n).run()
        assert nothing_with(marker), f"cancelled at wait {n}"
        assert open_fds() <= before, f"cancelled at wait {n}"
        if not cancelled:
            return n - 1
    raise AssertionError("it never ended")


async def test_a_run_cancelled_at_every_wait(tmp_path: Path) -> None:
    def make(n: int) -> tuple[Coroutine[object, object, object], str]:
        marker = f"run-{tmp_path.name}-{n}-"
        command = argv("--fork", "--marker", marker, "--die-after", "0")
        spec = ChildSpec(name=marker, argv=command, log=tmp_path / "run.log", stop_timeout=0.05)
        return run_to_end(spec), marker

    assert await cancel_everywhere(make) >= 4


async def test_a_run_that_is_left_early_cancelled_at_every_wait(tmp_path: Path) -> None:
    async def enter_and_leave(spec: ChildSpec) -> None:
        async with Run(spec):
            pass

    def make(n: int) -> tuple[Coroutine[object, object, object], str]:
        marker = f"left-{tmp_path.name}-{n}-"
        command = argv("--marker", marker, "--ignore-term")
        spec = ChildSpec(name=marker, argv=command, log=tmp_path / "run.log", stop_timeout=0.05)
        return enter_and_leave(spec), marker

    assert await cancel_everywhere(make) >= 3


async def test_an_owner_cancelled_at_every_wait(tmp_path: Path) -> None:
    async def start_and_stop(child: OwnedChild) -> None:
        with contextlib.suppress(MeshdError):  # Closed, when the owner was cancelled meanwhile
            await child.ensure_ready()

    most = 0
    for n in range(1, MOST_WAITS):
        before = open_fds()
        marker = f"own-{tmp_path.name}-{n}-"
        maker = Maker(tmp_path, "--fork", "--marker", marker, name=marker, stop_timeout=0.05)
        child = OwnedChild(maker)
        cancelling = Cancelling(child.serve(), n)
        owner = asyncio.ensure_future(cancelling.run())
        await start_and_stop(child)
        if child.status.state is ChildState.READY:
            owner.cancel()
        await owner
        assert nothing_with(marker), f"cancelled at wait {n}"
        assert open_fds() <= before, f"cancelled at wait {n}"
        most = max(most, cancelling.waits)
        if cancelling.waits < n:
            break
    assert most >= 5


async def test_a_caller_cancelled_at_its_wait_leaves_the_child_usable(tmp_path: Path) -> None:
    child = OwnedChild(Maker(tmp_path))
    owner = asyncio.ensure_future(child.serve())
    await Cancelling(child.ensure_ready(), 1).run()
    await until(child, ChildState.READY)
    await child.ensure_ready()
    owner.cancel()
    await asyncio.wait([owner])
