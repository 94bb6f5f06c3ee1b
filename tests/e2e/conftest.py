"""For the end-to-end tests: with fewer patches if asked for, and the sums of lost workers at the end."""

from dataclasses import replace

import pytest

from tests.e2e import models
from tests.e2e.losses import noted_losses, table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--patches",
        type=int,
        metavar="N",
        help="take the build with the first N patches only, to see what fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    count = config.getoption("--patches", None)
    if count is not None:
        from tests.e2e.patch_builds import build_first  # which needs the whole build itself

        found = replace(models.patched(), binaries=build_first(count))
        vars(models)["patched"] = lambda: found  # the tests import the name later


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    losses = noted_losses()
    if losses:
        terminalreporter.section("lost workers")
        for line in table(losses):
            terminalreporter.write_line(line)
