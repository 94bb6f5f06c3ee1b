"""The native suite: mesh-tests, and the tests of tests/e2e that need llama-server and our programs alone.

`make test` runs it on the pin; follow.py on what it has built of another release, and counts.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from meshd.build.pin import mesh_sources

from tests.native.build import OTHER, MeshBuild
from tests.native.schema import ROOT

# these start the programs, and nothing of meshd
FILES = tuple(
    path.relative_to(ROOT) for path in sorted((ROOT / "tests" / "e2e").glob("test_mesh_server*.py"))
)
JOBS = 2  # processes: most tests wait for something, and some for a worker that is short of processor time
_SAME_TEXT = ("as_one_node", "as_by_one_node")  # in names of tests that compare texts


@dataclass(frozen=True, slots=True)
class Count:
    """The number of tests, and what came of them."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def good(self) -> bool:
        return self.passed > 0 and self.failed == 0

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} of {self.passed + self.failed}{skipped}"


def ggml_of(build: MeshBuild) -> str:
    """The version of ggml that it is built with, as it says itself."""
    said = subprocess.run([build.server, "--describe"], capture_output=True, check=True).stdout
    return str(json.loads(said)["ggml"])


def count_tests() -> int:
    """Count the tests of mesh-tests on Linux by its sources."""
    texts = (path.read_text("utf-8") for path in (mesh_sources() / "tests").glob("*.cpp"))
    return sum(len(re.findall(r"^TEST\(", text, re.MULTILINE)) for text in texts)


def run_mesh_tests(build: MeshBuild) -> Count:
    """Shows those that fail."""
    done = subprocess.run([build.tests], check=False, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAILED ")]
    if done.returncode != 0 and not failed:  # it was ended, by a sanitizer for one
        failed = [done.stderr or f"mesh-tests ended with {done.returncode}"]
    sys.stdout.write("".join(f"{line}\n" for line in failed))
    return Count(sum(line.startswith("passed ") for line in lines), len(failed))


def run_processes(other: Path | None) -> tuple[Count, Count]:
    """Run FILES on the programs in `other`, or on the pin's: all that compare texts, and the rest."""
    env = os.environ if other is None else {**os.environ, OTHER: str(other)}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.xml"
        argv = [sys.executable, "-m", "pytest", "-q", "-n", str(JOBS), "--junitxml", str(result)]
        code = subprocess.run([*argv, *map(str, FILES)], cwd=ROOT, env=env, check=False).returncode
        cases = list(ElementTree.parse(result).iter("testcase")) if result.exists() else []
    texts, others = split(cases)
    if code != 0 and texts.failed + others.failed == 0:  # it came to no end
        others = replace(others, failed=1)
    return texts, others


def split(cases: Sequence[ElementTree.Element]) -> tuple[Count, Count]:
    """All that compare texts, and the rest."""
    texts = [case for case in cases if any(part in case.get("name", "") for part in _SAME_TEXT)]
    return count(texts), count(case for case in cases if case not in texts)


def count(cases: Iterable[ElementTree.Element]) -> Count:
    """Count the tests in pytest's report."""
    passed = failed = skipped = 0
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Count(passed, failed, skipped)
