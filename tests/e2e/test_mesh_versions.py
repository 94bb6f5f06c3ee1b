"""Nodes whose llama.cpp differs: both say so when they meet, with what to do."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import meshd
import pytest
from meshd.build.interface import MESH_PROGRAM
from meshd.build.pin import native_folder

from tests.e2e.models import native, small
from tests.e2e.nodes import Fleet, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

OTHERS = "f" * 40


def _of_another_pin(folder: Path) -> Path:
    """A copy of meshd that is for another commit of the same release, as a later version of it might be."""
    package = Path(meshd.__file__).parent
    shutil.copytree(package, folder / "meshd", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(native_folder(), folder / "native")
    pin = folder / "native" / "UPSTREAM.toml"
    changed, count = re.subn(native().pin, OTHERS, pin.read_text())
    assert count
    pin.write_text(changed)
    return folder


def test_another_pin_is_told_on_both_sides_at_the_join(tmp_path: Path) -> None:
    other = _of_another_pin(tmp_path / "other")
    ours = str(native().binaries[MESH_PROGRAM].parent)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            spec = fleet.spec("worker", "worker", "--model", str(small()), "--native-bin", ours)
            # not the checkout in which the tests are started
            elsewhere = {**spec.environment, "PYTHONPATH": str(other), "PYTHONSAFEPATH": "1"}
            worker = await fleet.start(replace(spec, environment=elsewhere))
            head = await fleet.head(small(), "--min-workers", "1", token=await worker.token())
            there = await worker.until(lambda status: bool(status.warnings))
            here = await head.until(lambda s: s.model is not None and "llama.cpp" in s.model.reason)
            mine, theirs = native().pin[:12], OTHERS[:12]
            assert f"worker runs llama.cpp {theirs}, this node {mine}" in model_of(here).reason
            for status, far, near in ((here, theirs, mine), (there, mine, theirs)):
                [warning] = [one for one in status.warnings if one.code == "native_mismatch"]
                assert warning.severity == "error"
                assert f"runs llama.cpp {far}, this node {near}" in warning.what
                assert "meshd native build" in warning.hint
            for node in (worker, head):
                assert "native_differs" in (node.spec.home / "node.log").read_text()

    play(check())
