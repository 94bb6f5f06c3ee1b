"""How long a head waits for workers that only say that they get ready, and what it does without them."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.peer_limits import PROGRESS_SHOWN
from meshd.head.lease import GRANT_SECONDS, OFFER_SECONDS
from meshd.head.leases import LATE_AGAIN_SECONDS, LATE_OFFER_SECONDS
from meshd.model.status import ModelState
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.wire.lease import Acquire, OfferedDevice, Progress, Reserve, WorkerOffer, decode
from meshd.worker.cycle import Worker
from meshd.worker.worker_options import WorkerOptions

from tests.unit.head.fake_mesh import NATIVE
from tests.unit.head.rig import Bench
from tests.unit.head.scene import LITTLE, Scene, scene
from tests.unit.head.stubs import FakeFile

pytestmark = pytest.mark.virtual

DEVICE = OfferedDevice("CPU", "cpu", "", 64 << 30, 64 << 30)


class Dripping:
    """A worker that says `progress` for ever: before the offer, or before the grant."""

    def __init__(self, it: Scene, name: str = "evil", *, offers: bool = False, every: float = 20.0) -> None:
        self.asked: list[float] = []
        self.said = 0
        self._offers = offers
        self._every = every
        self.mesh = it.net.mesh(name)
        self.mesh.handle("lease", self._serve, allow=lambda *_: None)
        self.mesh.handle("push", self._serve, allow=lambda *_: "it lends nothing")

    async def _serve(self, stream: Stream) -> None:
        messages = MessageStream(stream)
        assert isinstance(decode(await messages.receive()), Acquire)
        self.asked.append(now())
        if self._offers:
            offer = WorkerOffer(
                (DEVICE,), has_model=False, machine="e", lease_id=bytes(16), protocol=NATIVE.protocol
            )
            await messages.send(offer.encode())
            assert isinstance(decode(await messages.receive()), Reserve)
        while True:
            self.said += 1
            await messages.send(Progress(f"trying GPU {self.said}").encode())
            await asyncio.sleep(self._every)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_worker_that_is_never_ready_holds_up_one_load_and_no_further_one(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        Dripping(it)
        it.worker("bert")
        it.start()
        for patience in (LATE_OFFER_SECONDS, LATE_AGAIN_SECONDS):
            began = now()
            await it.until(ModelState.READY, seconds=100)
            assert now() - began == pytest.approx(patience, abs=1.0)
            assert len(it.serve.status.tunnels) == 1
            it.workers["bert"].children[-1].die("ended by signal 9")
            await it.until(ModelState.LOADING)


async def test_a_worker_that_still_hashes_its_file_is_waited_for_a_moment_and_used(tmp_path: Path) -> None:
    async with scene(tmp_path, devices=("none",)) as it:
        file = FakeFile()
        file.hashed.clear()
        anna = Bench(it.net.mesh("anna"), tmp_path)
        it.net.owner.start(Worker(anna.runtime, [file], WorkerOptions()).serve(), name="anna")
        it.worker("bert")
        it.start()
        await asyncio.sleep(LATE_OFFER_SECONDS - 5)
        assert it.serve.readiness.state is ModelState.LOADING
        file.hashed.set()
        await it.until(ModelState.READY, seconds=5)
        assert len(it.bench.tunnels) == 2


async def test_a_model_that_does_not_fit_without_it_waits_and_says_for_whom(tmp_path: Path) -> None:
    async with scene(tmp_path, devices=("none",)) as it:
        file = FakeFile()
        file.hashed.clear()
        anna = Bench(it.net.mesh("anna"), tmp_path)
        it.net.owner.start(Worker(anna.runtime, [file], WorkerOptions()).serve(), name="anna")
        it.worker("bert")
        it.workers["bert"].device_lines = LITTLE
        it.start()
        await it.until(ModelState.WAITING, "anna is not ready yet", seconds=100)
        assert "MiB" in it.serve.readiness.reason
        file.hashed.set()
        await it.until(ModelState.READY, seconds=100)


async def test_alone_it_is_asked_for_minutes_and_then_others_are_taken_in(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        evil = Dripping(it)
        it.start()
        await asyncio.sleep(OFFER_SECONDS / 2)
        assert len(evil.asked) == 1, "an honest one may need as long"
        it.worker("bert")
        await it.until(ModelState.READY, seconds=OFFER_SECONDS / 2 + 2 * LATE_OFFER_SECONDS)
        assert "evil" not in {part.node for part in it.serve.model_status.split}


async def test_a_grant_that_never_comes_is_given_up_and_its_worker_left_out(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        evil = Dripping(it, offers=True)
        it.worker("bert")
        it.start()
        await it.until(ModelState.READY, "evil is left out", seconds=2 * GRANT_SECONDS + 20)
        assert len(evil.asked) == 2
        assert "evil" not in {part.node for part in it.serve.model_status.split}


async def test_words_of_progress_are_shown_at_a_rate(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        evil = Dripping(it, every=0.01)
        it.start()
        shown = set()
        for _ in range(20_000):
            await asyncio.sleep(0.001)
            shown.add(it.serve.readiness.reason)
        assert evil.said > 1000
        words = [text for text in shown if "evil: trying GPU" in text]
        assert 1 <= len(words) <= PROGRESS_SHOWN.burst + 20 * PROGRESS_SHOWN.per_second
