"""The two native protocols that daemons speak: what a test that runs with both of them needs to know.

MESH is the default, and skipped where it is not built. RPC is that of the patched rpc-server. Tests that name
none run with MESH, or with RPC under `pytest tests/e2e --native-protocol rpc`.
"""

from dataclasses import dataclass

import pytest
from meshd.build import mesh
from meshd.build.interface import MESH_PROGRAM, RPC_SERVER

from tests.e2e.models import cache_folder


@dataclass(frozen=True, slots=True)
class NativeProtocol:
    """`program`: what a worker runs for a lease. `place`: in the table of lost workers."""

    options: tuple[str, ...]
    program: str
    place: str


RPC = NativeProtocol(("--native-protocol", "rpc"), RPC_SERVER, "mesh")
MESH = NativeProtocol(("--native-protocol", "mesh"), MESH_PROGRAM, "mesh protocol")

_chosen = [MESH]


def usual() -> NativeProtocol:
    """For tests that name none."""
    return _chosen[-1]


def choose(name: str) -> None:
    """That one."""
    _chosen.append({"rpc": RPC, "mesh": MESH}[name])


needs_mesh = pytest.mark.skipif(
    not (mesh.folder_of(cache_folder()) / MESH_PROGRAM).is_file(),
    reason="native/mesh is not built: `make mesh`",
)
both = pytest.mark.parametrize(
    "protocol", [pytest.param(RPC, id="rpc"), pytest.param(MESH, id="mesh", marks=needs_mesh)]
)
