"""Trials of devices: which are made, what becomes of their outcome, and what a lease offers after them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import TRIALS_ASKED
from meshd.devices.device_trial import (
    AGAIN_SECONDS,
    MAX_TRIALS,
    STILL_SECONDS,
    DeviceTrials,
    TrialCache,
    TrialReport,
    trial_key,
)
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


TRIED = ("mul_mat:q4_0:576", "rope:64:9:64")
GOOD, BAD, USAGE = Ended(0, None, ()), Ended(2, None, ()), Ended(1, None, ())
CRASHED = Ended(None, 11, ())


def report(*lines: str) -> TrialReport:
    made = TrialReport(TRIED)
    for line in lines:
        made.see(line)
    return made


def test_all_right() -> None:
    made = report(
        "ggml_vulkan: Found 1 Vulkan devices:",
        "trying mul_mat:q4_0:576",
        "right mul_mat:q4_0:576 1.0e-08",
        "trying rope:64:9:64",
        "unknown rope:64:9:64",
        "tried 2",
    )
    assert made.why_unfit(GOOD) == ""
    assert made.was_tried(GOOD)


def test_one_that_it_lacks_is_a_failure() -> None:
    made = report("trying rope:64:9:64", "lacks rope:64:9:64 ROPE", "tried 1")
    assert made.why_unfit(GOOD) == "it cannot compute rope:64:9:64 (ROPE)"


def test_wrong_and_failed_ones_are_named() -> None:
    made = report(
        "trying mul_mat:q4_0:576",
        "wrong mul_mat:q4_0:576 1.0e+00 2.0e-03",
        "trying rope:64:9:64",
        "failed rope:64:9:64 memory",
        "tried 2",
    )
    why = "it computes mul_mat:q4_0:576 wrong (error 1.0e+00, 2.0e-03 is allowed), and 1 more"
    assert made.why_unfit(BAD) == why
    assert report("failed device it cannot be opened").why_unfit(BAD) == "it cannot be opened"
    assert report("failed device its memory is odd").why_unfit(BAD) == "its memory is odd"
    assert report("failed device").why_unfit(BAD) == "it cannot be opened"


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (CRASHED, "its trial was ended by SIGSEGV while it computed rope:64:9:64"),
        (
            Ended(None, 9, (), "the memory of this machine ran out"),
            "its trial was ended by the kernel while it computed rope:64:9:64: "
            "the memory of this machine ran out",
        ),
        (None, "its trial hung while it computed rope:64:9:64"),
        (Ended(3, None, ()), "its trial ended with exit code 3 while it computed rope:64:9:64"),
        (GOOD, "its trial ended with exit code 0 while it computed rope:64:9:64"),
    ],
)
def test_an_end_before_the_end_names_the_operation(ended: Ended | None, why: str) -> None:
    made = report("trying mul_mat:q4_0:576", "right mul_mat:q4_0:576 0.0", "trying rope:64:9:64")
    assert made.why_unfit(ended) == why


@pytest.mark.parametrize("ended", [CRASHED, None, GOOD, BAD])
def test_an_end_before_the_beginning_is_a_failure_as_well(ended: Ended | None) -> None:
    assert report("some driver's words").why_unfit(ended)


def test_a_program_that_knows_no_trial_says_nothing_of_the_device() -> None:
    made = report("error: unknown argument: --try-device", "Usage: mesh-server")
    assert made.why_unfit(USAGE) == ""
    assert not made.was_tried(USAGE)


KINDS = st.sampled_from(["trying", "right", "wrong", "failed", "lacks", "unknown", "tried", ""])
LINES = st.builds("{} {} {}".format, KINDS, st.sampled_from([*TRIED, "device", "2"]), st.text(max_size=300))
ENDS = st.sampled_from([GOOD, BAD, USAGE, CRASHED, None])


@given(st.lists(st.text(max_size=80) | LINES, max_size=30), ENDS)
def test_whatever_is_printed_gives_a_reason_that_can_be_sent(lines: list[str], ended: Ended | None) -> None:
    why = report(*lines).why_unfit(ended)
    assert len(why) < 500 and why.isprintable()


def test_it_is_kept_and_shared(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "trials"
    first, second = TrialCache(path), TrialCache(path)
    keys = [trial_key([str(number)]) for number in range(3)]
    first.add(keys[0])
    second.add(keys[1])
    first.add(keys[2])
    assert all(key in TrialCache(path) for key in keys)
    assert trial_key(["other"]) not in TrialCache(path)


def test_the_oldest_go(tmp_path: Path) -> None:
    kept = TrialCache(tmp_path / "trials")
    keys = [trial_key([str(number)]) for number in range(MAX_TRIALS + 2)]
    for key in keys:
        kept.add(key)
    again = TrialCache(tmp_path / "trials")
    assert keys[0] not in again and keys[1] not in again and all(key in again for key in keys[2:])


def test_one_that_is_used_outlives_many_that_are_not(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    kept, used = TrialCache(path), trial_key(["used"])
    kept.add(used)
    for number in range(3 * MAX_TRIALS):
        kept.add(trial_key([str(number)]))
        assert kept.use(used)
    assert used in TrialCache(path), "after a restart as well"
    assert not kept.use(trial_key(["0"])) and trial_key(["0"]) not in kept


def test_one_that_is_used_all_the_time_is_not_written_each_time(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    kept, used = TrialCache(path), trial_key(["used"])
    kept.add(used)
    path.unlink()
    assert kept.use(used) and not path.exists()


def test_without_a_file_or_with_a_damaged_one(tmp_path: Path) -> None:
    key = trial_key(["a"])
    nowhere = TrialCache(None)
    nowhere.add(key)
    assert key in nowhere
    damaged = tmp_path / "trials"
    damaged.write_bytes(b"\xff\x00 nothing\n" + b"a" * 100_000)
    kept = TrialCache(damaged)
    kept.add(key)
    assert key in TrialCache(damaged)
    folder = tmp_path / "folder"
    folder.mkdir()
    kept = TrialCache(folder)
    kept.add(key)  # cannot be written
    assert key in kept and list(folder.iterdir()) == []
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder", "trials"]


@given(st.lists(st.text(max_size=20), max_size=5), st.lists(st.text(max_size=20), max_size=5))
def test_other_parts_are_another_key(one: list[str], two: list[str]) -> None:
    assert (trial_key(one) == trial_key(two)) == (one == two)
