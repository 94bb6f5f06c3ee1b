"""The service files: the invite on stdout must end up in no journal and no log."""

import configparser
import plistlib
from pathlib import Path

import pytest
from meshd.base.errors import UsageError

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.service")), ids=lambda file: file.name)
def test_systemd_keeps_stderr_alone(file: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(file.read_text(encoding="utf-8"))
    assert unit["Service"]["StandardOutput"] == "null"
    assert unit["Service"]["StandardError"] == "journal", "it would follow stdout"


@pytest.mark.parametrize("role", ["serve", "worker", "client"])
def test_a_command_line_that_does_not_parse_is_not_restarted(role: str) -> None:
    """`meshd serve` with the configuration as `config init` writes it has no model."""
    lines = (CONFIGS / f"meshd-{role}.service").read_text(encoding="utf-8").splitlines()
    assert f"RestartPreventExitStatus={UsageError.exit_code}" in lines


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.plist")), ids=lambda file: file.name)
def test_launchd_keeps_no_stdout(file: Path) -> None:
    assert "StandardOutPath" not in plistlib.loads(file.read_bytes())
