"""`pytest -n` keeps a file in one process, and what tests/netns measures in one as well."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.conftest import MEASURE, unit_of

ROOT = Path(__file__).parents[2]
FILES = tuple(f"tests/unit/wire/test_{name}.py" for name in ("stun", "signal", "address"))
RAN = re.compile(r"^\[(gw\d)\] .*? PASSED (tests/[\w/]+\.py)::", re.MULTILINE)


def test_a_file_stays_in_one_process() -> None:
    argv = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-v", "-p", "no:cacheprovider"]
    ran = subprocess.run([*argv, *FILES], cwd=ROOT, capture_output=True, text=True, check=True)
    processes: defaultdict[str, set[str]] = defaultdict(set)
    for process, file in RAN.findall(ran.stdout):
        processes[file].add(process)
    assert set(processes) == set(FILES), ran.stdout
    assert all(len(of) == 1 for of in processes.values())
    assert len(set.union(*processes.values())) == 2, "one process did all"


def test_what_is_measured_is_oneunit_of() -> None:
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/netns").glob("test_*.py"))
    alone = [file for file in files if unit_of(f"{file}::test") == "netns"]
    assert {Path(file).name for file in alone} == MEASURE
    assert [unit_of(f"{file}::test") for file in files if file not in alone] == sorted({*files} - {*alone})
