"""native/mesh: workers that stand still with their connections open, and those that are only slow."""

import contextlib
import http.client
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from meshd.rpc import mesh_protocol as wire

from tests.e2e.frozen import preloaded, skip_reason
from tests.e2e.mesh_rig import Mesh
from tests.e2e.mesh_server_scene import LOST, MARKS, found_build, lose
from tests.e2e.models import smollm2, stock_text

SLOW_DEADLINE = 300.0  # seconds, in which a worker gets 35 of a processor
pytestmark = MARKS


@pytest.fixture
def mesh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """Two workers that push; with the parameter "stands" the first one has the library of frozen.py."""
    library = None
    if getattr(request, "param", "") == "stands":
        if why := skip_reason():
            pytest.skip(why)
        library = preloaded(tmp_path)
    with Mesh(
        found_build(), tmp_path, smollm2(), 2, weights=[smollm2()], push=True, preload=library, threads=2
    ) as made:
        yield made


def _lose(mesh: Mesh, happens: Callable[[], object]) -> list[str]:
    """As `lose`, and what the head told its parent."""
    lose(mesh, happens)
    return _told(mesh)


def _told(mesh: Mesh) -> list[str]:
    assert mesh.head.report is not None
    mesh.head.report.join()
    return mesh.head.report.lines


@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_that_is_suspended_in_an_answer_is_lost(mesh: Mesh, which: int) -> None:
    """And the other one, which waits for it, is not accused."""
    lines = _lose(mesh, lambda: mesh.servers[which].process.send_signal(signal.SIGSTOP))
    assert lines == [f"lost {which} it has said nothing for 21 s"]


def test_a_worker_that_is_suspended_while_nobody_asks_is_lost(mesh: Mesh) -> None:
    mesh.servers[1].process.send_signal(signal.SIGSTOP)
    assert mesh.head.wait_end() == LOST
    assert _told(mesh) == ["lost 1 it has said nothing for 21 s"]


def test_a_worker_that_claims_progress_for_ever_is_lost(mesh: Mesh) -> None:
    """The head's own clock has run out then: a minute for a token like those before."""
    over = threading.Event()

    def claim() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(1):
                mesh.pairs[1].claim_progress()

    liar = threading.Thread(target=claim)

    def lie() -> None:
        mesh.servers[1].process.send_signal(signal.SIGSTOP)
        liar.start()

    try:
        (line,) = _lose(mesh, lie)
    finally:
        over.set()
        liar.join()
    assert line.startswith("lost 1 it does not answer: requests have waited for ")


@pytest.mark.parametrize("mesh", ["stands"], indirect=True)
def test_a_device_that_hangs_is_lost_and_given_up(mesh: Mesh, tmp_path: Path) -> None:
    lines = _lose(mesh, (tmp_path / "stop").touch)
    assert len(lines) == 1
    assert lines[0].startswith("lost 0 it has not moved on for 2")
    hung, other = mesh.servers
    assert other.report is not None
    if other.process.wait(60) != 0:  # it noticed the end of its neighbour before that of the head
        assert other.process.returncode == 1
        other.report.wait("failed lost neighbour 0: it ended")
    assert hung.process.wait(60) == 1  # its thread cannot be ended
    assert hung.report is not None
    hung.report.wait("failed the head is gone, and the device does not come back")


@pytest.mark.parametrize("mesh", ["stands"], indirect=True)
def test_a_device_that_is_slow_is_waited_for(mesh: Mesh, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    assert mesh.head.complete(deadline=SLOW_DEADLINE) == stock_text(smollm2())
    assert not (tmp_path / "slow").exists()
    assert mesh.messages(wire.PROGRESS) > 2 * 5  # of each, one in 5 s


def test_a_path_between_two_workers_that_is_silent_is_found(mesh: Mesh) -> None:
    lines = _lose(mesh, mesh.between[0, 1].stop)
    assert len(lines) == 1
    assert lines[0].startswith("lost 1 it has waited for neighbour 0 for 2")


def test_a_worker_says_why_it_fails(mesh: Mesh) -> None:
    mesh.cut(0, 1)
    with contextlib.suppress(OSError, http.client.HTTPException):
        mesh.head.stream(tokens=3)
    assert mesh.head.wait_end() == LOST
    assert _told(mesh) == ["lost 1 it says: lost neighbour 0: it ended"]
    failing = mesh.servers[1]
    assert failing.process.wait(60) == 1
    assert failing.report is not None
    failing.report.wait("failed lost neighbour 0: it ended")
