"""For the end-to-end tests: what became of lost workers is summed up at the end."""

import pytest

from tests.e2e.losses import noted_losses, table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    losses = noted_losses()
    if losses:
        terminalreporter.section("lost workers")
        for line in table(losses):
            terminalreporter.write_line(line)
