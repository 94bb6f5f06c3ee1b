"""A worker comes while the model runs, and is lost and comes back: the model is loaded again with it."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.alone import alone
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]


def test_a_worker_is_taken_in_when_nobody_asks(tmp_path: Path) -> None:
    text = alone(smollm2(), 24)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            head = await fleet.head(
                smollm2(), "--device", "none", "--grace", "10", *SAME_THREADS, token=token
            )
            await fleet.ready(head)

            async def until_split(*names: str) -> None:
                def is_split(status: object) -> bool:
                    model = model_of(status)  # type: ignore[arg-type]
                    nodes = {part.node for part in model.split if part.layers}
                    return model.state == "ready" and nodes == set(names)

                status = await head.until(is_split)
                assert [child.restarts for child in status.children] == [0]
                assert await api_of(status).complete(PROMPT, 24) == text

            await until_split("worker-0")
            other = await fleet.worker("other", model=smollm2(), token=token)
            await until_split("worker-0", "other")
            assert other.pid is not None
            fleet.forget(other)
            os.kill(other.pid, signal.SIGKILL)

    play(check())
