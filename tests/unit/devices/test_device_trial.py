"""Trials of devices: which are made, what becomes of their outcome, and what a lease offers after them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.peer_limits import TRIALS_ASKED
from meshd.devices.device_trial import AGAIN_SECONDS, STILL_SECONDS, DeviceTrials
from meshd.devices.interface import NativeBuild
from meshd.process.interface import Ended
from meshd.wire.lease import SHARED_MEMORY, LeaseMessage, Lost, OfferedDevice, Progress, Reserve, WorkerOffer

from tests.unit.head.calls import ACQUIRE, scene
from tests.unit.head.rig import DEVICE_LINES, GPU_LINE, Bench
from tests.unit.head.test_model import model_of, ready, stage

pytestmark = pytest.mark.virtual

WORDS = ("rms_norm:64", "mul_mat:q4_0:64")
ASKS = replace(ACQUIRE, operations=WORDS)
GPU = OfferedDevice("GPU0", "gpu", "some card", 5, 10)
CPU = OfferedDevice("CPU", "cpu", "some processor", 5, 10)
WRONG = ["trying rms_norm:64", "wrong rms_norm:64 1.0e+00 1.0e-04", "tried 2"]
TOLD_WRONG = "it computes rms_norm:64 wrong (error 1.0e+00, 1.0e-04 is allowed)"
FAILED, CRASHED = Ended(2, None, ()), Ended(None, 11, ())


async def silent(_text: str) -> None:
    pass


def device_trials(
    bench: Bench, folder: Path, *, machine: str = "m", native: NativeBuild | None = None
) -> DeviceTrials:
    runtime = bench.runtime
    paths = replace(runtime.paths, trial_cache=folder / "trials")
    return DeviceTrials(native or runtime.native, runtime.processes.run_to_end, paths, machine=machine)


async def test_a_card_is_tried_once_and_a_processor_never(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        tried = device_trials(it.bench, tmp_path)
        for _ in range(2):
            assert await tried.unfit([CPU, GPU], WORDS, silent) == ("", "")
        assert it.bench.trials == [("GPU0", WORDS)]
        assert await tried.unfit([GPU], (), silent) == ("",)
        assert await device_trials(it.bench, tmp_path).unfit([GPU], WORDS, silent) == ("",)
        assert len(it.bench.trials) == 1  # kept over a restart


async def test_of_devices_that_are_one_card_the_first_fit_one_is_used(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        tried = device_trials(it.bench, tmp_path)
        first, second, other = (
            replace(GPU, card="a"),
            replace(GPU, name="VK0", card="a"),
            replace(GPU, name="B", card="b"),
        )
        shared = [replace(GPU, name=name, card=SHARED_MEMORY) for name in ("IGPU0", "IGPU1")]
        why = "it is the same card as GPU0"
        assert await tried.unfit([CPU, first, second, other], WORDS, silent) == ("", "", why, "")
        assert tried.notes == (f"device VK0 is not used: {why}",)
        assert await tried.unfit([first, second], (), silent) == ("", why)
        assert await tried.unfit([*shared, GPU, replace(GPU, name="VK0")], (), silent) == ("",) * 4
        it.bench.trial_lines, it.bench.trial_ended = WRONG, FAILED
        words = (*WORDS, "rope:64:9:64")
        assert (await tried.unfit([first, second], words, silent))[0] == TOLD_WRONG
        assert it.bench.trials[-1] == ("VK0", words), "it may be one driver's fault"


async def test_of_devices_that_are_one_card_a_faster_one_is_used(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        native = replace(it.bench.runtime.native, slower=("GPU0",))
        tried = device_trials(it.bench, tmp_path, native=native)
        first, second = replace(GPU, card="a"), replace(GPU, name="VK0", card="a")
        assert await tried.unfit([CPU, first, second], WORDS, silent) == (
            "",
            "it is the same card as VK0",
            "",
        )


async def test_what_a_device_lacks_is_a_failure(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.bench.trial_lines = ["trying rms_norm:64", "lacks rms_norm:64 RMS_NORM", "tried 2"]
        tried = device_trials(it.bench, tmp_path)
        assert await tried.unfit([GPU], WORDS, silent) == ("it cannot compute rms_norm:64 (RMS_NORM)",)
        assert it.bench.trials == [("GPU0", WORDS)]


@pytest.mark.parametrize("change", ["machine", "device", "words", "program", "variable"])
async def test_what_decides_it_makes_it_another_trial(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mesh-server"
    program.write_text("built")
    device = replace(GPU, description="another card") if change == "device" else GPU
    words = WORDS[:1] if change == "words" else WORDS
    machine = "restarted" if change == "machine" else "m"

    async with stage(tmp_path) as it:
        native = replace(it.bench.runtime.native, mesh_server=program)
        assert await device_trials(it.bench, tmp_path, native=native).unfit([GPU], WORDS, silent) == ("",)
        if change == "program":
            program.write_text("built anew")
        if change == "variable":
            monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "1")
        again = device_trials(it.bench, tmp_path, machine=machine, native=native)
        assert await again.unfit([device], words, silent) == ("",)
        assert len(it.bench.trials) == 2


@pytest.mark.parametrize(
    ("lines", "ended", "why"),
    [
        (WRONG, FAILED, TOLD_WRONG),
        (WRONG[:1], CRASHED, "its trial was ended by SIGSEGV while it computed rms_norm:64"),
        (WRONG[:1], None, "its trial hung while it computed rms_norm:64"),
    ],
    ids=["wrong", "crash", "hang"],
)
async def test_a_failure_holds_for_a_while(
    tmp_path: Path, lines: Sequence[str], ended: Ended | None, why: str
) -> None:
    async with stage(tmp_path) as it:
        it.bench.trial_lines, it.bench.trial_ended = lines, ended
        tried = device_trials(it.bench, tmp_path)
        for _ in range(2):
            assert await tried.unfit([GPU], WORDS, silent) == (why,)
        assert list(tried.notes) == [f"device GPU0 is not used: {why}"]
        assert len(it.bench.trials) == 1
        await asyncio.sleep(AGAIN_SECONDS + 1)
        it.bench.trial_lines, it.bench.trial_ended = None, Ended(0, None, ())
        assert await tried.unfit([GPU], WORDS, silent) == ("",)
        assert list(tried.notes) == []
        assert len(it.bench.trials) == 2


async def test_one_that_goes_on_is_waited_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.bench.trial_seconds = STILL_SECONDS - 1  # after its last line
        told: list[str] = []

        async def tell(text: str) -> None:
            told.append(text)

        assert await device_trials(it.bench, tmp_path).unfit([GPU], WORDS, tell) == ("",)
        assert len(told) > 10 and set(told) == {"trying GPU0"}


async def test_a_driver_may_compile_for_minutes(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.bench.trial_seconds = 240.0
        assert await device_trials(it.bench, tmp_path).unfit([GPU], WORDS, silent) == ("",)


async def test_two_who_ask_at_once_share_one_trial(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.bench.trial_seconds = 5
        tried = device_trials(it.bench, tmp_path)
        answers = await asyncio.gather(*(tried.unfit([GPU], WORDS, silent) for _ in range(3)))
        assert set(answers) == {("",)} and len(it.bench.trials) == 1


# A worker.


async def test_a_worker_offers_nothing_of_a_device_that_failed(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.bench.device_lines = [GPU_LINE, *DEVICE_LINES]
        it.bench.trial_lines, it.bench.trial_ended, it.bench.trial_seconds = WRONG, FAILED, 5
        call = it.call()
        await call.says(ASKS)
        heard = await call.hears()
        assert heard == Progress("trying GPU0")  # so that its head does not give up
        while isinstance(heard, Progress):
            heard = await call.hears()
        assert isinstance(heard, WorkerOffer)
        assert heard.unfit == (TOLD_WRONG,)
        assert [(device.name, device.free_bytes) for device in heard.devices] == [("GPU0", 0)]
        assert it.worker.status.unfit == (f"device GPU0 is not used: {TOLD_WRONG}",)
        await call.says(Reserve((1,)))  # a head that does not care
        assert isinstance(await call.hears(), Lost)
        assert it.bench.children == []


async def test_a_head_that_goes_in_the_trial_ends_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.bench.device_lines = [GPU_LINE, *DEVICE_LINES]
        it.bench.trial_ended = None
        call = it.call()
        await call.says(ASKS)
        assert isinstance(await call.hears(), Progress)
        call.stream.reset(1, "gone")
        await asyncio.sleep(5)
        it.bench.trial_ended = Ended(0, None, ())
        again = it.call()  # which need not wait for the deadline of the first
        await again.says(ASKS)
        heard = await again.hears()
        while isinstance(heard, Progress):
            heard = await again.hears()
        assert isinstance(heard, WorkerOffer) and heard.unfit == ()
        assert len(it.bench.trials) == 2


async def test_a_head_that_asks_for_ever_new_trials_waits_and_others_do_not(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.bench.device_lines = [GPU_LINE, *DEVICE_LINES]

        async def ask(head: str, word: str) -> LeaseMessage:
            call = it.call(head)
            await call.says(replace(ASKS, operations=(word,)))
            answer = await call.hears()
            while isinstance(answer, Progress):
                answer = await call.hears()
            call.stream.write_eof()
            await call.is_over()
            return answer

        burst = int(TRIALS_ASKED.burst)
        for number in range(burst):
            assert isinstance(await ask("evil", f"rms_norm:{number}"), WorkerOffer)
        refused = await ask("evil", "rms_norm:64")
        assert isinstance(refused, Lost) and refused.code == "busy"
        assert len(it.bench.trials) == burst
        assert isinstance(await ask("evil", "rms_norm:0"), WorkerOffer), "which is known"
        assert isinstance(await ask("honest", "rms_norm:64"), WorkerOffer)
        await asyncio.sleep(1 / TRIALS_ASKED.per_second)
        assert isinstance(await ask("evil", "rms_norm:65"), WorkerOffer)
        assert len(it.bench.trials) == burst + 2


# A head.


async def test_a_head_does_without_it_and_says_why(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        bad, _good = it.worker("a-bad"), it.worker("b-good")
        bad.device_lines = [GPU_LINE, *DEVICE_LINES]
        bad.trial_lines, bad.trial_ended = ["trying rms_norm:32"], CRASHED
        serve = it.serve()
        assert await ready(serve) == {"head", "b-good"}
        told = "a-bad GPU0 left out: its trial was ended by SIGSEGV while it computed rms_norm:32"
        assert told in model_of(serve).reason
        assert [device for device, _ in bad.trials] == ["GPU0"]
        assert bad.children == []


async def test_a_head_tries_its_own_card_as_well(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("good")
        it.bench.device_lines = [GPU_LINE, *DEVICE_LINES]
        it.bench.trial_lines, it.bench.trial_ended = ["trying rms_norm:32"], CRASHED
        serve = it.serve()
        await ready(serve)
        assert "head GPU0 left out: its trial was ended by SIGSEGV" in model_of(serve).reason
        assert {part.device for part in model_of(serve).split} == {"CPU"}
        assert serve.status.unfit
