"""A worker's weights lie in large pages soon after its first token, however they came."""

import sys
from pathlib import Path

import pytest

from tests.e2e.mesh_rig import Mesh, MeshServer
from tests.e2e.mesh_server_scene import MARKS, found_build
from tests.e2e.models import smollm2, stock_text
from tests.e2e.native_rig import wait_until

pytestmark = [
    *MARKS,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lays pages together when asked"),
]

LEAST = 64 << 20  # bytes: SmolLM2 has 97 MB of weights, of which the edges of each buffer stay as they are
_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("local", [True, False], ids=["from its file", "over the network"])
def test_weights_lie_in_large_pages_after_the_first_token(tmp_path: Path, local: bool) -> None:
    setting = _ENABLED.read_text().strip() if _ENABLED.exists() else "[never]"
    if "[never]" in setting or _kernel() < (6, 1):
        pytest.skip(f"this kernel, {_kernel()}, gives no large pages to who asks: {setting}")
    weights = [smollm2()] if local else []
    with Mesh(found_build(), tmp_path, smollm2(), 1, weights=weights) as mesh:
        assert mesh.head.complete() == stock_text(smollm2())
        wait_until(lambda: _large(mesh.servers[0]) >= LEAST, "weights are in large pages")
        assert mesh.head.complete() == stock_text(smollm2())


def _large(worker: MeshServer) -> int:
    """Bytes of its memory that lie in large pages."""
    for line in Path(f"/proc/{worker.process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    return 0


def _kernel() -> tuple[int, int]:
    major, minor = Path("/proc/sys/kernel/osrelease").read_text().split(".")[:2]
    return int(major), int(minor)
