"""Test what a newcomer runs: `make help` tells all, and hooks, container and CI do what make does."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.netns import home_router, space
from tests.rules.source import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def _recipe(target: str) -> list[str]:
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def test_help_tells_of_every_target_in_full() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    told = dict(re.findall(r"^([\w-]+):.*?## (.*)$", MAKEFILE, re.MULTILINE))
    assert set(phony.split()) == told.keys()
    shown = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split(None, 2) for line in shown.splitlines() if line.startswith("  make ")]
    assert {name: text for _, name, text in lines} == told
    assert (
        len({line.index(text) for line in shown.splitlines() for text in told.values() if text in line}) == 1
    )


def test_the_release_workflow_makes_what_there_is() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    made = {target for step in steps for target in re.findall(r"\bmake ([\w/-]+)", step)}
    assert made == {"build/vulkan", "dist", "wheels", "cuda-wheel", "demo"}
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in made)


def test_hooks_run_the_commands_of_make_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0][
        "hooks"
    ]
    entries = [re.sub(r"^sh -c '(.*)'$", r"\1", hook["entry"]) for hook in hooks]
    assert sorted(entries) == sorted(_recipe("check"))
    assert not any(hook["pass_filenames"] for hook in hooks), "all files, as make does"


def test_both_systems_are_checked_for_types() -> None:
    assert any("mypy --platform darwin" in line for line in _recipe("check"))


def test_setup_installs_what_ci_does() -> None:
    (packages,) = re.findall(r"^PACKAGES := (.*)$", MAKEFILE, re.MULTILINE)
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    (wanted,) = re.findall(r"apt-get install -y -qq (?!-)(.*)", ci)
    assert set(wanted.split()) <= set(packages.split())
    for hint in (space.HOW_TO_GET, home_router.HOW_TO_GET):  # else these tests would be skipped in CI
        assert set(hint.removeprefix("apt-get install -y ").split()) <= set(wanted.split())


def test_the_container_is_made_by_make_setup() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    assert container["onCreateCommand"].endswith("make setup")


@pytest.mark.parametrize("page", sorted((ROOT / ".github").rglob("*.md")), ids=lambda page: page.name)
def test_links_of_templates_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link
