"""`make watch`: the unit tests of what differs from the last commit, again whenever a file is saved.

A test file belongs to a module when it has its name (`test_NAME…` below tests/unit/PACKAGE) or imports it.
Slow tests (e2e, netns, process and the like) run only when they are changed themselves.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.rules.source import ROOT

_LOOK_SECONDS = 0.5


def changed(root: Path = ROOT) -> list[str]:
    """Python files that differ from the last commit, the new ones among them; relative to `root`."""
    found = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all", "--no-renames", "-z"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (entry[3:] for entry in found.stdout.split("\0") if entry)
    return sorted(path for path in paths if path.endswith(".py") and (root / path).is_file())


def tests_of(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """The test files to be run after a change of these."""
    unit = {path: path.read_text(encoding="utf-8") for path in (root / "tests/unit").rglob("test_*.py")}
    found: set[Path] = set()
    for path in map(Path, paths):
        if path.parts[0] == "tests" and path.name.startswith("test_"):
            found.add(root / path)
            continue
        imported = _import_of(path)
        found |= {test for test, text in unit.items() if imported.search(text) or _is_named_for(test, path)}
    return sorted(test.relative_to(root).as_posix() for test in found)


def _is_named_for(test: Path, path: Path) -> bool:
    named = test.stem == f"test_{path.stem}" or test.stem.startswith(f"test_{path.stem}_")
    return named and path.parts[0] == "meshd" and path.parts[1] in test.parts


def _import_of(path: Path) -> re.Pattern[str]:
    """Return what a file has that imports this one: `a.b.c`, or `from a.b import x, c`."""
    *above, name = path.with_suffix("").parts if path.name != "__init__.py" else path.parent.parts
    package = re.escape(".".join(above))
    dotted = rf"{package}\.{name}\b" if above else rf"\b{name}\b"
    return re.compile(
        rf"^\s*(?:from|import) {dotted}|^\s*from {package} import \(?[^)]*?\b{name}\b", re.MULTILINE
    )


def run(tests: Sequence[str]) -> int:
    """pytest's exit code; 0 when there is nothing to run."""
    if not tests:
        sys.stdout.write("nothing that differs from the last commit has a unit test\n")
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], cwd=ROOT, check=False).returncode


def main() -> int:
    """Run the program that the module's docstring describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="run them, and end with pytest's exit code")
    once = parser.parse_args().once
    before = None
    while True:
        paths = changed()
        state = [(path, (ROOT / path).stat().st_mtime_ns) for path in paths]
        if state != before:
            before = state
            code = run(tests_of(paths))
            if once:
                return code
            sys.stdout.write("waiting for a change; Ctrl-C ends\n")
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
