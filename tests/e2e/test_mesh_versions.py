"""Nodes whose llama.cpp differs: both say so when they meet, with what to do."""

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.models import patched, small
from tests.e2e.native_protocol import RPC
from tests.e2e.nodes import Fleet, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]


def _of_another_pin(folder: Path) -> Path:
    """The patched binaries under a stamp that names another commit. The mesh protocol reads no stamp."""
    native = patched()
    shutil.copytree(native.bin_dir, folder / "bin", symlinks=True)
    stamp = json.loads((native.bin_dir.parent / "stamp.json").read_text())
    stamp["commit"] = "f" * 40
    (folder / "stamp.json").write_text(json.dumps(stamp))
    return folder / "bin"


def test_another_pin_is_told_on_both_sides_at_the_join(tmp_path: Path) -> None:
    other = str(_of_another_pin(tmp_path / "other"))

    async def check() -> None:
        async with Fleet(tmp_path, protocol=RPC) as fleet:
            token, [worker] = await fleet.workers(small(), options=("--native-bin", other))
            head = await fleet.head(small(), "--min-workers", "1", token=token)
            there = await worker.until(lambda status: bool(status.warnings))
            here = await head.until(lambda s: s.model is not None and "llama.cpp" in s.model.reason)
            ours, others = patched().pin[:12], "f" * 12
            assert f"worker-0 runs llama.cpp {others}, this node {ours}" in model_of(here).reason
            for status, theirs, mine in ((here, others, ours), (there, ours, others)):
                [warning] = [one for one in status.warnings if one.code == "native_mismatch"]
                assert warning.severity == "error"
                assert f"runs llama.cpp {theirs}, this node {mine}" in warning.what
                assert "meshd native build" in warning.hint
            for node in (worker, head):
                assert "native_differs" in (node.spec.home / "node.log").read_text()

    play(check())
