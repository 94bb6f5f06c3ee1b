"""Devices are measured once, and again when something changed that decides how long they take."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import SPEEDS_FAILED
from meshd.devices.device_speeds import KEPT_SPEEDS, DeviceSpeeds, SpeedCache, with_kind
from meshd.devices.device_trial import STILL_SECONDS, trial_key
from meshd.process.interface import Ended
from meshd.wire.capacity import TimedLayer
from meshd.wire.lease import OfferedDevice

from tests.unit.head.rig import Bench
from tests.unit.head.test_model import stage

pytestmark = pytest.mark.virtual

KINDS = ("30=mul_mat:q4_0:64:64,rms_norm:64", "1=mul_mat:q8_0:64:1000")
GPU = OfferedDevice("GPU0", "gpu", "some card", 5, 10)
CPU = OfferedDevice("CPU", "cpu", "some processor", 5, 10)
MEASURED = tuple(TimedLayer(kind, tokens, 1_000_000 * tokens) for kind in (0, 1) for tokens in (1, 128))


async def silent(_text: str) -> None:
    pass


def speeds(bench: Bench, folder: Path, *, machine: str = "m", threads: int = 2) -> DeviceSpeeds:
    runtime = bench.runtime
    paths = replace(runtime.paths, speed_cache=folder / "speeds")
    run_to_end = runtime.processes.run_to_end
    return DeviceSpeeds(runtime.native, run_to_end, paths, machine=machine, threads=threads)


async def test_a_device_is_measured_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        measured = speeds(it.bench, tmp_path)
        assert measured.lacks([CPU], KINDS) and measured.known(CPU, KINDS) == ()
        for _ in range(2):
            await measured.measure([CPU], KINDS, silent)
        assert len(it.bench.timings) == 1
        assert it.bench.timings[0][1:] == (
            *("--time-device", "CPU", "--threads", "2"),
            *("--time", KINDS[0], "--time", KINDS[1]),
        )
        assert measured.known(CPU, KINDS) == MEASURED and not measured.lacks([CPU], KINDS)
        again = speeds(it.bench, tmp_path)
        assert again.known(CPU, KINDS) == MEASURED, "kept over a restart"
        assert again.known(CPU, KINDS[1:]) == MEASURED[:2], "by what it is, not by its place"


async def test_only_what_is_new_is_measured(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        measured = speeds(it.bench, tmp_path)
        await measured.measure([CPU], KINDS[:1], silent)
        await measured.measure([CPU], KINDS, silent)
        assert it.bench.timings[1][5:] == ("--time", KINDS[1])
        assert measured.known(CPU, KINDS) == MEASURED


@pytest.mark.parametrize(
    ("change", "again"), [("machine", 1), ("device", 1), ("threads", 1), ("", 0), ("limit", 0)]
)
async def test_what_decides_a_time_is_measured_again(tmp_path: Path, change: str, again: int) -> None:
    async with stage(tmp_path) as it:
        await speeds(it.bench, tmp_path).measure([CPU], KINDS, silent)
        other = speeds(
            it.bench,
            tmp_path,
            machine="n" if change == "machine" else "m",
            threads=3 if change == "threads" else 2,
        )
        device = replace(CPU, description="another") if change == "device" else CPU
        if change == "limit":  # of what is lent: `--memory`
            device = replace(CPU, total_bytes=7)
        await other.measure([device], KINDS, silent)
        assert len(it.bench.timings) == 1 + again


async def test_the_threads_of_a_processor_do_not_matter_to_a_card(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        await speeds(it.bench, tmp_path).measure([GPU], KINDS, silent)
        assert not speeds(it.bench, tmp_path, threads=3).lacks([GPU], KINDS)


@pytest.mark.parametrize("ended", [Ended(2, None, ()), Ended(None, 11, ()), None])
async def test_a_device_that_cannot_be_measured_has_no_times(tmp_path: Path, ended: Ended | None) -> None:
    async with stage(tmp_path) as it:
        it.bench.timing_ended = ended
        measured = speeds(it.bench, tmp_path)
        began = asyncio.get_running_loop().time()
        await measured.measure([CPU], KINDS, silent)
        took = asyncio.get_running_loop().time() - began
        assert took == pytest.approx(STILL_SECONDS if ended is None else 0.0)
        assert measured.known(CPU, KINDS) == () and not measured.lacks([CPU], KINDS)
        await measured.measure([CPU], KINDS, silent)
        assert len(it.bench.timings) == 1, "in vain once is enough"
        assert speeds(it.bench, tmp_path).lacks([CPU], KINDS), "until a restart"


async def test_a_kind_that_a_device_does_not_compute_is_not_asked_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.bench.timing_lines = ["took 1 1 5", "nonsense", "timed 2"]
        measured = speeds(it.bench, tmp_path)
        await measured.measure([CPU], KINDS, silent)
        assert measured.known(CPU, KINDS) == (TimedLayer(1, 1, 5),)
        assert not measured.lacks([CPU], KINDS)


async def test_who_waits_hears_of_it(tmp_path: Path) -> None:
    told: list[str] = []

    async def tell(text: str) -> None:
        told.append(text)

    async with stage(tmp_path) as it:
        it.bench.timing_seconds = 5.0
        await speeds(it.bench, tmp_path).measure([CPU, GPU], KINDS, tell)
    so_far = (
        "",
        " for 2 s, once for each kind of model: 1 of 2 parts",
        " for 4 s, once for each kind of model: ",
    )
    for device, word in (("CPU", 0), ("GPU0", 3)):
        for said, part in zip(told[word : word + 3], so_far, strict=True):
            assert said.startswith(f"measuring {device}{part}")


async def test_a_driver_may_compile_for_minutes(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.bench.timing_seconds = 240.0
        measured = speeds(it.bench, tmp_path)
        await measured.measure([GPU], KINDS, silent)
        assert measured.known(GPU, KINDS)


async def test_what_was_forgotten_is_measured_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        measured, other = speeds(it.bench, tmp_path), speeds(it.bench, tmp_path)
        await measured.measure([CPU], KINDS, silent)
        assert not other.lacks([CPU], KINDS)
        it.bench.timing_lines = ["took 0 1 7", "took 1 1 5", "timed 2"]
        measured.forget()
        assert other.lacks([CPU], KINDS)
        await measured.measure([CPU], KINDS, silent)
        assert other.known(CPU, KINDS) == (TimedLayer(0, 1, 7), TimedLayer(1, 1, 5))


async def test_a_device_that_failed_is_tried_again_once_all_is_forgotten(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.bench.timing_ended = Ended(2, None, ())
        measured = speeds(it.bench, tmp_path)
        await measured.measure([CPU], KINDS, silent)
        assert not measured.lacks([CPU], KINDS)
        measured.forget()
        assert measured.lacks([CPU], KINDS)


async def test_invented_layers_take_no_memory_without_end(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.bench.timing_ended = Ended(2, None, ())
        measured = speeds(it.bench, tmp_path)
        layers = [f"1=mul_mat:q8_0:64:{width}" for width in range(SPEEDS_FAILED.most + 5)]
        for at in range(0, len(layers), 8):
            await measured.measure([CPU], layers[at : at + 8], silent)
        assert sum(not measured.lacks([CPU], [layer]) for layer in layers) == SPEEDS_FAILED.most
        assert not measured.lacks([CPU], layers[-SPEEDS_FAILED.most :]) and measured.lacks([CPU], layers[:5])


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ((900, 700), (300, 710), (300, 700)),  # more tokens in less time
        ((10, 1000), (12, 50), (10, 50)),  # 25 times as long for each
    ],
)
async def test_times_that_no_device_has_are_measured_once_more(
    tmp_path: Path, first: tuple[int, int], second: tuple[int, int], kept: tuple[int, int]
) -> None:
    def lines(times: tuple[int, int]) -> list[str]:
        return [f"took 0 {tokens} {took}" for tokens, took in zip((1, 4), times, strict=True)]

    async with stage(tmp_path) as it:
        it.bench.timing_runs = [[*lines(first), "took 1 1 5", "took 1 4 20"], lines(second)]
        measured = speeds(it.bench, tmp_path)
        await measured.measure([CPU], KINDS, silent)
        assert len(it.bench.timings) == 2 and it.bench.timings[1][5:] == ("--time", KINDS[0])
        assert measured.known(CPU, KINDS) == (
            *(TimedLayer(0, 1, kept[0]), TimedLayer(0, 4, kept[1])),
            *(TimedLayer(1, 1, 5), TimedLayer(1, 4, 20)),
        )


async def test_a_device_that_failed_beside_a_model_is_tried_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        measured, roomy = speeds(it.bench, tmp_path), replace(CPU, free_bytes=4 << 30)
        it.bench.timing_ended = Ended(1, None, ())
        await measured.measure([roomy], KINDS, silent, beside_model=True)
        assert measured.lacks([roomy], KINDS) and len(it.bench.timings) == 1
        await measured.measure([roomy], KINDS, silent)
        assert not measured.lacks([roomy], KINDS) and len(it.bench.timings) == 2


POINTS = ((1, 190_656), (128, 25_746_603))
LONGEST = tuple((4096 - number, 10**12) for number in range(8))


def key(number: int) -> str:
    return trial_key([str(number)])


def test_it_is_kept_and_shared(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "speeds"
    first, second = SpeedCache(path), SpeedCache(path)
    first.add(key(1), POINTS)
    second.add(key(2), ())
    again = SpeedCache(path)
    assert again.find(key(1)) == POINTS
    assert again.find(key(2)) == (), "there is no time for it, and nobody need look again"
    assert again.find(key(3)) is None


def test_the_oldest_go(tmp_path: Path) -> None:
    kept = SpeedCache(tmp_path / "speeds")
    for number in range(KEPT_SPEEDS + 1):
        kept.add(key(number), POINTS)
    again = SpeedCache(tmp_path / "speeds")
    assert again.find(key(0)) is None and again.find(key(1)) == POINTS == again.find(key(KEPT_SPEEDS))


def test_times_for_others_displace_neither_those_of_this_node_nor_of_each_other(tmp_path: Path) -> None:
    kept = SpeedCache(tmp_path / "speeds")
    own, head = range(20), range(100, 130)
    for number in own:
        kept.add(key(number), POINTS)
    for number in head:
        kept.add(key(number), POINTS, "the invite of a head")
    many = range(1000, 1000 + KEPT_SPEEDS)
    for number in many:
        kept.add(key(number), LONGEST, "another invite")
    again = SpeedCache(tmp_path / "speeds")
    assert all(again.find(key(number)) == POINTS for number in (*own, *head))
    left = [number for number in many if again.find(key(number)) is not None]
    assert left == list(many[-(KEPT_SPEEDS - len(own) - len(head)) :])


def test_what_this_node_has_measured_without_end_leaves_room_for_others(tmp_path: Path) -> None:
    kept = SpeedCache(tmp_path / "speeds")
    for number in range(KEPT_SPEEDS):
        kept.add(key(number), POINTS)
    for number in range(1000, 1010):
        kept.add(key(number), POINTS, "an invite")
    assert all(kept.find(key(number)) for number in range(1000, 1010))


def test_the_newest_time_counts(tmp_path: Path) -> None:
    kept = SpeedCache(tmp_path / "speeds")
    kept.add(key(1), POINTS)
    kept.add(key(1), ((1, 5),))
    assert SpeedCache(tmp_path / "speeds").find(key(1)) == ((1, 5),)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "short 1:2",
        f"{'g' * 64} 1:2",
        f"{'a' * 64} 1:0",
        f"{'a' * 64} 0:1",
        f"{'a' * 64} 1",
        f"{'a' * 64}",
        f"{'a' * 64} 1:2,",
        f"{'a' * 64} 1:2 ",
        f"{'a' * 64} 1:2 {'g' * 32}",
        f"{'a' * 64} 1:2 {'a' * 31}",
        f"{'a' * 64} 9999:1",
        f"{'a' * 64} 1:2,4:5,1:3",
        f"{'a' * 64} " + ",".join(["1:1"] * 9),
    ],
)
def test_a_damaged_line_is_none(tmp_path: Path, line: str) -> None:
    path = tmp_path / "speeds"
    path.write_text(f"{line}\n{key(1)} 1:2\n")
    assert SpeedCache(path).find("a" * 64) is None
    assert SpeedCache(path).find(key(1)) == ((1, 2),)


@given(st.binary(max_size=300))
def test_a_damaged_file_costs_a_measurement(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("speeds") / "speeds"
    path.write_bytes(data)
    kept = SpeedCache(path)
    kept.add(key(1), POINTS)
    assert SpeedCache(path).find(key(1)) == POINTS


def test_without_a_file_or_where_none_can_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (None, folder):
        kept = SpeedCache(path)
        kept.add(key(1), POINTS)
        assert kept.find(key(1)) == POINTS
    assert list(folder.iterdir()) == []


def test_they_are_told_with_the_place_of_what_was_asked() -> None:
    assert with_kind(3, ((1, 5), (4, 6))) == (TimedLayer(3, 1, 5), TimedLayer(3, 4, 6))


def test_what_another_daemon_measures_or_forgets_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "speeds"
    first, second = SpeedCache(path), SpeedCache(path)
    first.add(key(1), POINTS)
    assert second.find(key(1)) == POINTS
    second.add(key(1), ((1, 5),))
    assert first.find(key(1)) == ((1, 5),)
    second.clear()
    assert first.find(key(1)) is None
    first.add(key(2), POINTS)
    assert second.find(key(2)) == POINTS and SpeedCache(path).find(key(1)) is None
