"""The benchmarks run, with real daemons and binaries, at a distance; how fast is not asserted here."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e import spaces
from tests.e2e.models import cache_folder, native, smollm2
from tests.e2e.test_mesh_compressed import GRAPH_BYTES
from tests.rules.source import ROOT

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(spaces.skip_reason()), reason=spaces.skip_reason() or "-"),
]

RTT_MS = 10.0


def meshd(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One call of a verb."""
    return module(folder, "meshd", *words)


def module(folder: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """One run of a module; a busy machine takes minutes for what an idle one does in half of one."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MESHD_")}
    return subprocess.run(
        [sys.executable, "-m", name, *words],
        env={**plain, "MESHD_HOME": str(folder / "home"), "MESHD_CACHE": str(cache_folder())},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_stock_and_meshd_at_a_distance(tmp_path: Path) -> None:
    """One cell: both loaded and answered the same, and meshd's link was as far as it should be.

    Once: how often is asked for, and three times is usual.
    """
    native(), smollm2()
    where = ("--workers", "1", "--rtt", f"{RTT_MS:g}")
    asked = ("bench", "latency", *where)
    done = meshd(tmp_path, *asked, "--pairs", "1", "--json")
    assert done.returncode in (0, 1), done.stderr  # 1: a promise was not kept, which a busy machine may cause
    found = json.loads(done.stdout)
    runs = {run["way"]: run for run in found["runs"] if run["token"]}
    loads = Counter(run["way"] for run in found["runs"])
    assert loads == {"stock": 1, "meshd": 1, "local": 1}
    assert found["ways"][f"{RTT_MS:g}"] > 0.9 * RTT_MS / 2000, "no way is shorter than it was asked to be"
    assert set(runs) == {"stock", "meshd", "local"}
    assert runs["stock"]["text"] == runs["meshd"]["text"] == runs["local"]["text"] != ""
    for way in ("stock", "meshd"):
        assert runs[way]["token"] > RTT_MS / 1000, "a token cannot come sooner than its round trip"
    assert runs["meshd"]["load_bytes"] < runs["stock"]["load_bytes"] / 10, "weights crossed the link"


def test_the_demo_at_a_distance(tmp_path: Path) -> None:
    """Two workers, each as far as asked; the API answers from the head's own network."""
    smollm2()
    done = meshd(tmp_path, "demo", "--latency", "20,30")
    assert done.returncode == 0, done.stderr
    links = {
        line.split()[1]: float(line.split()[-2]) for line in done.stdout.splitlines() if "round trip" in line
    }
    assert links.keys() == {"worker-1:", "worker-2:"}
    assert links["worker-1:"] >= 20
    assert links["worker-2:"] >= 30
    assert "0 bytes of weights sent over the network" in done.stdout
    load = re.search(r"network +([0-9.]+) kB to load", done.stdout)
    assert load is not None, done.stdout
    assert float(load[1]) * 1000 < GRAPH_BYTES, "compressed: that is one part of what crosses, with logits"
