"""For the end-to-end tests: the sums of lost workers at the end."""

from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.losses import Loss, note_losses, noted_losses, page, tables_of
from tests.e2e.open_answers import Interruption, note_interruptions, noted_interruptions
from tests.soak import SEED


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--losses", metavar="FILE", help="write the sums of lost workers there, as a page")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of `pytest -n` hands over what it noted."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["losses"] = [asdict(loss) for loss in noted_losses()]
        output["interruptions"] = [asdict(one) for one in noted_interruptions()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process of `pytest -n` noted, at its end. A crashed one has no output."""
    output = getattr(node, "workeroutput", {})
    note_losses(Loss(**fields) for fields in output.get("losses", ()))
    note_interruptions(Interruption(**fields) for fields in output.get("interruptions", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    losses, interruptions = noted_losses(), noted_interruptions()
    if tables := list(tables_of(losses, interruptions)):
        terminalreporter.section("lost workers")
        for line in (line for lines in tables for line in lines):
            terminalreporter.write_line(line)
        if (target := config.getoption("--losses", None)) is not None:
            text = page(losses, interruptions, seed=SEED, today=date.today())
            Path(target).write_text(text, encoding="utf-8")
