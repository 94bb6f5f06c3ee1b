"""The virtual clock itself."""

import asyncio

import pytest

from tests.sim.loop import run


@pytest.mark.parametrize("pause", [1e-12, 5e-10, 0.02, 19.42])
def test_a_timer_never_fires_before_its_time(pause: float) -> None:
    """However little is left, as two sums of the same times may differ by a rounding; and in company."""

    async def waits(due: float, steps: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(steps):  # so that one of them is always ready
            await asyncio.sleep(0)
        for _ in range(100):
            if loop.time() >= due:
                return
            try:
                async with asyncio.timeout_at(due):
                    await asyncio.Event().wait()
            except TimeoutError:
                pass
        raise AssertionError(f"the clock stands at {loop.time()!r}, waiting for {due!r}")

    async def main() -> None:
        for _ in range(1000):
            due = asyncio.get_running_loop().time() + pause
            await asyncio.gather(*(waits(due + late * 1e-10, late) for late in range(4)))

    run(main())


@pytest.mark.virtual
async def test_the_least_wait_moves_the_clock() -> None:
    """A task that waits for a time that is nearly there would wait again and again while the clock stands."""
    loop = asyncio.get_running_loop()
    for _ in range(100):
        began = loop.time()
        await asyncio.sleep(1e-15)
        assert loop.time() > began
