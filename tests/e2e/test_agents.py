"""Real programs at the gateway do what the kept table says (tests/recorded, docs/lab/agents.md).

`MESHD_PROGRAMS` names the folder in which programs are installed, each in `DIR/PACKAGE`
(tests/recorded/README.md), and `MESHD_NODE` Node.js 22 or later. A short run tries one program, drawn, with
a session and one fault; MESHD_SOAK=1 all that are installed, in every scene, on every template.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recorded.page import FAULTS, RESULTS, TEMPLATES
from tests.recorded.run import REPOSITORY
from tests.soak import SOAK, drawn

FOLDER = os.environ.get("MESHD_PROGRAMS", "")
pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(0 if SOAK else 3000),
    pytest.mark.skipif(sys.platform != "linux", reason="programs run in network namespaces"),
    pytest.mark.skipif(not FOLDER, reason="MESHD_PROGRAMS names no folder with programs to be tried"),
]
KEPT = json.loads(RESULTS.read_text())["programs"]
PACKAGES = {name: program["package"].rpartition("/")[2] for name, program in KEPT.items()}


def _options() -> list[str]:
    """Return what a run of this length tries."""
    installed = [name for name, package in PACKAGES.items() if (Path(FOLDER) / package).exists()]
    assert installed, f"none of {list(PACKAGES.values())} is in {FOLDER}"
    if SOAK:
        return installed
    [name] = drawn("program", installed, 1, always=())
    [fault] = drawn("fault", FAULTS, 1, always=())
    [template] = drawn("template", TEMPLATES, 1, always=())
    return [name, "--run", "session", "--run", fault, "--template", template]


def test_programs_do_what_the_table_says(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    node = os.environ.get("MESHD_NODE", "/usr/bin/node")
    command = [sys.executable, "-m", "tests.recorded.table", "--programs", FOLDER, "--node", node]
    subprocess.run([*command, "--results", results, *_options()], cwd=REPOSITORY, check=True)
    tried = json.loads(results.read_text())["programs"]
    assert tried
    faults = [
        f"{name} {program['version']}, {template}, {column}: {cell['seen']}"
        for name, program in tried.items()
        for template, row in program["cells"].items()
        for column, cell in row.items()
        if cell["passed"] is False and KEPT[name]["cells"].get(template, {}).get(column, cell)["passed"]
    ]
    assert not faults, "\n".join(faults)
