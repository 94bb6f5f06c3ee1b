"""Set up tests of native/mesh in real processes: the marks, the build, a loss in mid-answer."""

import contextlib
import http.client
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER

from tests.e2e.mesh_rig import CountedPair, Mesh, MeshHead, MeshServer
from tests.e2e.models import smollm2, stock, stock_text
from tests.native import build as native_build
from tests.native.build import MeshBuild
from tests.native.suite import ggml_of

LOST = 86  # what a head ends with
MANY = 300  # tokens of an answer in which something happens
LONG = " ".join(f"The {number}th sentence is about the {number * 7}th thing." for number in range(25))
MARKS = [
    pytest.mark.native,
    pytest.mark.timeout(3000),  # the first test may have to build upstream's llama-server
    pytest.mark.skipif(
        native_build.find() is None, reason="native/mesh is not built: `python -m tests.native.build`"
    ),
]


def found_build() -> MeshBuild:
    """The build that MARKS has seen to be there."""
    found = native_build.find()
    assert found is not None
    return found


@cache
def is_before(release: tuple[int, ...]) -> bool:
    """Return True if what is built is of an earlier release of ggml: native/FOLLOW.toml."""
    return tuple(int(part) for part in ggml_of(found_build()).split(".")) < release


def ends_without_a_context() -> set[int]:
    """Return the exit codes of a llama-server whose context could not be made.

    Before 0.20 it asks the one that it has not got how large it is: upstream's own.
    """
    return {1, -signal.SIGSEGV} if is_before((0, 20)) else {1}


@contextmanager
def unready_head(
    folder: Path,
    pair: CountedPair,
    *,
    weights: Sequence[Path] = (),
    devices: Sequence[int] | None = None,
    activations: str = "",
) -> Iterator[MeshHead]:
    """A head of one worker, which may never be ready. `weights`: files of the worker."""
    with (
        closing(pair),
        MeshServer(found_build(), folder, pair, weights=weights),
        MeshHead(
            found_build(),
            folder,
            smollm2(),
            [pair],
            binary=stock().binaries[LLAMA_SERVER],
            ready=False,
            devices=devices,
            activations=activations,
        ) as head,
    ):
        yield head


def lose(mesh: Mesh, happens: Callable[[], object]) -> None:
    """`happens` while an answer is on its way: what came of it is right, and then the head ends."""
    came: list[str] = []

    def on_piece(text: str) -> None:
        came.append(text)
        if len(came) == 5:
            happens()

    with contextlib.suppress(OSError, http.client.HTTPException):
        mesh.head.stream(tokens=MANY, on_piece=on_piece)
    assert mesh.head.wait_end() == LOST
    assert len(came) >= 5
    assert stock_text(smollm2(), MANY).startswith("".join(came))


def check_wrong_push_is_named(mesh: Mesh) -> None:
    """Raise AssertionError unless worker 1 said what worker 0 has pushed to it, and the head names either.

    Worker 0 sees that worker 1 has ended, and the head may hear that first.
    """
    why = "lost neighbour 0: it pushed something else than the head says"
    report = mesh.servers[1].report
    assert report is not None
    report.wait(f"failed {why}")
    named = rf"mesh: lost MESH(0: it says: lost neighbour 1: it ended|1: it says: {why})"
    assert re.search(named, mesh.head.output), mesh.head.output
