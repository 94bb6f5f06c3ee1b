"""tests.watch: which tests belong to a change."""

import subprocess
from pathlib import Path

import pytest

from tests import watch

FILES = {
    "meshd/link/dial.py": "",
    "meshd/link/dialogue.py": "",
    "meshd/peer/dial.py": "",
    "tests/fakes.py": "",
    "tests/unit/link/test_dial.py": "",
    "tests/unit/link/test_dial_twice.py": "",
    "tests/unit/peer/test_peers.py": "from meshd.link import (\n    bbr,\n    dial,\n)\n",
    "tests/unit/peer/test_paths.py": "from meshd.link.dial import Dialer\n",
    "tests/unit/peer/test_dialogue.py": "from meshd.link.dialogue import Talk\n",
    "tests/unit/peer/test_faked.py": "from tests.fakes import Fake\n",
    "tests/unit/peer/test_far.py": "from tests import fakes, world\n",
    "tests/e2e/test_slow.py": "from meshd.link.dial import Dialer\n",
    "docs/page.md": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("meshd/link/dial.py", "link/dial link/dial_twice peer/paths peer/peers"),
        ("meshd/link/dialogue.py", "peer/dialogue"),
        ("meshd/peer/dial.py", ""),
        ("tests/fakes.py", "peer/faked peer/far"),
        ("tests/unit/peer/test_far.py", "peer/far"),
    ],
)
def test_tests_of_a_file(root: Path, path: str, tests: str) -> None:
    wanted = [f"tests/unit/{one.replace('/', '/test_')}.py" for one in tests.split()]
    assert watch.tests_of([path], root) == wanted


def test_a_slow_test_runs_when_it_is_changed_itself(root: Path) -> None:
    assert watch.tests_of(["tests/e2e/test_slow.py"], root) == ["tests/e2e/test_slow.py"]


def test_what_differs_from_the_last_commit(root: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "all")
    assert watch.changed(root) == []
    (root / "meshd/link/dial.py").write_text("x = 1\n")
    (root / "tests/unit/peer/test_new.py").write_text("")
    (root / "docs/page.md").write_text("changed")
    (root / "meshd/peer/dial.py").unlink()
    assert watch.changed(root) == ["meshd/link/dial.py", "tests/unit/peer/test_new.py"]


def test_nothing_to_run_is_no_failure() -> None:
    assert watch.run([]) == 0
