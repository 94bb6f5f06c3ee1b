"""mesh-server by itself: its options, its report, its threads, and how it reads what comes in pieces."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from meshd.devices.devices import parse_devices
from meshd.rpc import mesh_protocol as wire

from tests.e2e.bare_head import bare_head
from tests.e2e.hostile_stage import BUFFER, ROOM, message, tensor, write
from tests.e2e.mesh_rig import BarePair, Mesh
from tests.e2e.mesh_server_scene import MARKS, ends_without_a_context, found_build
from tests.e2e.models import small, smollm2, stock_text
from tests.e2e.native_rig import DEADLINE

MIB = 1 << 20
# floats that are set one after the other: one, some, and more than any buffer of a socket or a reader
FLOATS = (1, 2, 576, 4096, 4097, 100_000, 5, 4)
pytestmark = MARKS


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(found_build().server), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_an_unknown_option_is_an_error() -> None:
    done = _run("--what", "1")
    assert done.returncode != 0
    assert "--what" in done.stderr


@pytest.mark.parametrize("text", ["", "1,", "1,2", "x", "-1", "99999999999999999999"])
def test_memory_that_makes_no_sense_stops_the_start(text: str) -> None:
    pair = BarePair()
    with closing(pair):
        number = pair.worker.fileno()
        argv = [str(found_build().server), "--fd", str(number), "--memory", text]
        done = subprocess.run(
            argv, pass_fds=[number], capture_output=True, text=True, timeout=DEADLINE, check=False
        )
    assert done.returncode == 2, done.stderr
    assert "--memory" in done.stderr


def test_the_devices_are_listed_with_what_they_are() -> None:
    done = _run("--list-devices")
    [device] = [one for one in parse_devices(done.stdout.splitlines(), "here") if one.kind == "cpu"]
    assert (device.name, device.card) == ("CPU", "")
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.description


def test_a_report_that_nobody_reads_keeps_nobody_waiting() -> None:
    pair = BarePair()
    reading, writing = os.pipe()
    with closing(pair):
        os.set_blocking(writing, False)
        with pytest.raises(BlockingIOError):
            while True:  # fill the pipe
                os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
        number = pair.worker.fileno()
        argv = [str(found_build().server), "--fd", str(number), "--report-fd", str(writing)]
        with subprocess.Popen(argv, pass_fds=[number, writing], stderr=subprocess.DEVNULL) as process:
            pair.head.sendall(message(wire.SYNC))  # HELLO comes first: it fails, and says why
            assert process.wait(DEADLINE) == 1
    os.close(reading)
    os.close(writing)


def test_what_is_free_is_reported_before_the_head_is_heard() -> None:
    """As `--list-devices` has it, from which the worker knows that nothing has taken memory since."""
    pair = BarePair()
    reading, writing = os.pipe()
    with closing(pair):
        number = pair.worker.fileno()
        argv = [str(found_build().server), "--fd", str(number), "--report-fd", str(writing)]
        with subprocess.Popen(argv, pass_fds=[number, writing], stderr=subprocess.DEVNULL) as process:
            os.close(writing)
            line = os.read(reading, 512)
            pair.head.close()
            process.wait(DEADLINE)
    os.close(reading)
    listed = parse_devices(_run("--list-devices").stdout.splitlines(), "here")
    [cpu] = [one for one in listed if one.name == "CPU"]
    assert line == f"free CPU {cpu.free_bytes}\n".encode()


@pytest.mark.parametrize("size", [1 << 20, 4097, 1009, 7])
def test_requests_mean_the_same_in_whatever_pieces_they_come(tmp_path: Path, size: int) -> None:
    said, contents, at = b"", [], 0
    for number, floats in enumerate(FLOATS):
        content = struct.pack(f"<{floats}f", *(number + n / 7 for n in range(floats)))
        said += write(tensor(at, floats), content)
        said += message(wire.READ, BUFFER, len(content), at, 0, 0, identity=2 + number)
        contents.append(content)
        at += (len(content) + 63) // 64 * 64
    assert at < ROOM
    with bare_head(tmp_path) as head:
        for begin in range(0, len(said), size):
            head.say(said[begin : begin + size])
        assert [head.hear(wire.DATA) for _ in contents] == contents


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_threads_of_a_worker_stay_over_the_tokens(tmp_path: Path) -> None:
    """Thread ids count up, so a thread that is ended and made again for each token would have another one."""
    with Mesh(found_build(), tmp_path, small(), 1, weights=[small()], threads=2) as mesh:
        tasks = Path(f"/proc/{mesh.servers[0].process.pid}/task")
        mesh.head.complete(tokens=2)
        seen = [{path.name for path in tasks.iterdir()}]
        text, error = mesh.head.stream(
            tokens=24, on_piece=lambda _: seen.append({path.name for path in tasks.iterdir()})
        )
        assert (text, error) == (stock_text(small()), "")
    assert len(seen) > 20
    assert set.intersection(*seen) == set.union(*seen)


def test_a_refusal_of_memory_is_told_as_one(tmp_path: Path, one_processor: None) -> None:
    """The weights fit and the cache does not: the head may have gone on when the answer comes."""
    del one_processor
    for _ in range(8):
        with Mesh(
            found_build(),
            tmp_path,
            smollm2(),
            1,
            weights=[smollm2()],
            memory=str(100 * MIB),
            extra=("-c", "1024"),
            ready=False,
        ) as mesh:
            assert mesh.head.wait_end() in ends_without_a_context()
            assert mesh.head.report is not None
            assert mesh.head.report.wait("exceeded 0 0 ").endswith(f" {100 * MIB}")


@pytest.fixture
def one_processor() -> Iterator[None]:
    """For all that is started meanwhile."""
    if sys.platform == "linux":
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        yield
        os.sched_setaffinity(0, before)
    else:
        pytest.skip("only Linux keeps programs to one processor")
