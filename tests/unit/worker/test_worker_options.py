"""With how many threads a worker's CPU computes, and the switch by which its user stops lending."""

import asyncio

import pytest
from meshd.base.errors import UserError
from meshd.identity.membership import Role
from meshd.worker import worker_options
from meshd.worker.worker_options import Pause, WorkerOptions, check_may_work


@pytest.mark.parametrize(("usable", "threads"), [(2, 2), (1, 1), (32, 32), (64, 32)])
def test_half_of_the_processors_but_no_more_than_it_may_use(
    usable: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(worker_options, "usable_processors", lambda: usable)
    assert WorkerOptions().cpu_threads == threads
    assert WorkerOptions(threads=5).cpu_threads == 5, "what the user asks for"


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (None, 1), (2, 1), (3, 1), (8, 4)])
def test_one_thread_at_least(processors: int | None, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    monkeypatch.setattr(worker_options, "usable_processors", lambda: 64)
    assert WorkerOptions().cpu_threads == threads


def test_who_may_not_lend_is_told_how_to_get_there() -> None:
    check_may_work(frozenset({Role.WORK}))
    with pytest.raises(UserError) as caught:
        check_may_work(frozenset(Role) - {Role.WORK})
    assert "--role work" in caught.value.hint


@pytest.mark.virtual
async def test_a_pause_ends_leases_if_it_is_to_and_only_while_it_lasts() -> None:
    pause = Pause()

    async def ends() -> bool:
        try:
            async with asyncio.timeout(1):
                await pause.until_leases_end()
        except TimeoutError:
            return False
        return True

    states = [(pause.is_on, await ends())]
    for end_leases in (False, True, False):
        pause.begin(end_leases=end_leases)
        states.append((pause.is_on, await ends()))
    pause.end()
    states.append((pause.is_on, await ends()))
    assert states == [(False, False), (True, False), (True, True), (True, True), (False, False)]
