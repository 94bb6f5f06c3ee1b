"""native/mesh: workers that stand still with their connections open, and those that are only slow."""

import contextlib
import http.client
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from meshd.rpc import mesh_protocol as wire

from tests.e2e.frozen import preloaded, skip_reason
from tests.e2e.mesh_rig import Mesh
from tests.e2e.models import smollm2, stock_text
from tests.native import build as native_build
from tests.native.build import MeshBuild

LOST = 86  # what a head ends with
MANY = 300  # tokens
SLOW_DEADLINE = 300.0  # seconds, in which a worker gets 35 of a processor
pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(3000),  # the first test may have to build upstream's llama-server
    pytest.mark.skipif(
        native_build.find() is None, reason="native/mesh is not built: `python -m tests.native.build`"
    ),
]


@pytest.fixture
def mesh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """Two workers that push; with the parameter "stands" the first one has the library of frozen.py."""
    build = native_build.find()
    assert build is not None
    library = None
    if getattr(request, "param", "") == "stands":
        if why := skip_reason():
            pytest.skip(why)
        library = preloaded(tmp_path)
    with Mesh(
        MeshBuild(build.folder), tmp_path, smollm2(), 2, weights=[smollm2()], push=True, preload=library
    ) as made:
        yield made


def _lose(mesh: Mesh, happens: Callable[[], object]) -> list[str]:
    """`happens` while an answer is on its way, and then the head ends: what it told its parent."""
    came: list[str] = []

    def told(text: str) -> None:
        came.append(text)
        if len(came) == 5:
            happens()

    with contextlib.suppress(OSError, http.client.HTTPException):
        mesh.head.stream(tokens=MANY, on_piece=told)
    assert mesh.head.wait_end() == LOST
    assert len(came) >= 5
    assert stock_text(smollm2(), MANY).startswith("".join(came))
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


@pytest.mark.parametrize("mesh", ["stands"], indirect=True)
def test_a_device_that_hangs_is_lost_and_given_up(mesh: Mesh, tmp_path: Path) -> None:
    lines = _lose(mesh, (tmp_path / "stop").touch)
    assert len(lines) == 1
    assert lines[0].startswith("lost 0 it has not moved on for 2")
    hung, other = mesh.servers
    assert other.process.wait(60) == 0
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
