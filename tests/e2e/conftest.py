"""For the end-to-end tests: the sums of lost workers at the end."""

from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.losses import Loss, note_losses, noted_losses, page, table
from tests.soak import SEED


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--losses", metavar="FILE", help="write the sums of lost workers there, as a page")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of `pytest -n` hands over what it noted."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["losses"] = [asdict(loss) for loss in noted_losses()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """That process has ended. A crashed one has no output."""
    note_losses(Loss(**fields) for fields in getattr(node, "workeroutput", {}).get("losses", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    losses = noted_losses()
    if losses:
        terminalreporter.section("lost workers")
        for line in table(losses):
            terminalreporter.write_line(line)
        if (target := config.getoption("--losses", None)) is not None:
            Path(target).write_text(page(losses, seed=SEED, today=date.today()), encoding="utf-8")
