"""A worker's weights lie in large pages soon after its first token, however they came."""

import sys
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.model.weights_index import encode_index

from tests.e2e.models import patched, smollm2, text_alone
from tests.e2e.native_rig import Head, Worker, index_of, wait_until

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(3000),  # the first test may have to build
    pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lays pages together when asked"),
]

LEAST = 64 << 20  # bytes: SmolLM2 has 97 MB of weights, of which the edges of each buffer stay as they are


@pytest.mark.parametrize("local", [True, False], ids=["from its file", "over the network"])
def test_weights_lie_in_large_pages_after_the_first_token(tmp_path: Path, local: bool) -> None:
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    setting = enabled.read_text().strip() if enabled.exists() else "[never]"
    if "[never]" in setting or _kernel() < (6, 1):
        pytest.skip(f"this kernel, {_kernel()}, gives no large pages to who asks: {setting}")
    with (
        Worker(patched().binaries[RPC_SERVER], tmp_path, weights=[smollm2()] if local else []) as worker,
        Head(
            patched().binaries[LLAMA_SERVER],
            tmp_path,
            smollm2(),
            [worker.endpoint],
            index=encode_index(index_of([smollm2()])) if local else None,
        ) as head,
    ):
        assert head.complete() == text_alone(smollm2())
        wait_until(lambda: _large(worker) >= LEAST, "weights are in large pages")
        assert head.complete() == text_alone(smollm2())


def _large(worker: Worker) -> int:
    """Bytes of its memory that lie in large pages."""
    for line in Path(f"/proc/{worker.process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    return 0


def _kernel() -> tuple[int, int]:
    major, minor = Path("/proc/sys/kernel/osrelease").read_text().split(".")[:2]
    return int(major), int(minor)
