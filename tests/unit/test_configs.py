"""The service files in configs/: what `meshd service install` writes (tests/reference compares them)."""

from pathlib import Path

import pytest
from meshd.base.errors import UsageError

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("role", ["serve", "worker", "client", "relay"])
def test_a_command_line_that_does_not_parse_is_not_restarted(role: str) -> None:
    """`meshd serve` with the configuration as `config init` writes it has no model."""
    lines = (CONFIGS / f"meshd-{role}.service").read_text(encoding="utf-8").splitlines()
    [codes] = [line.partition("=")[2] for line in lines if line.startswith("RestartPreventExitStatus=")]
    assert str(UsageError.exit_code) in codes.split()
