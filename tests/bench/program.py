"""Parse options and show progress for the benches that are started with `python -m`."""

import os
import sys
from collections.abc import Callable, Coroutine

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import first_error
from meshd.bench.interface import BenchOutput
from meshd.cli.output import Output
from meshd.fleet.proxy import run_loop


def run_program(work: Coroutine[object, object, None]) -> int:
    """Run it to its end; returns the exit code. Raises SystemExit with what went wrong, and what to do."""
    log.set_up(level="error")
    try:
        run_loop(work)
    except MeshdError as error:
        raise SystemExit(f"error: {error.what}\n\nhint: {error.hint}") from None
    except ExceptionGroup as group:
        raise SystemExit(f"error: {first_error(group)}") from None
    return 0


def run_bench(measure: Callable[[BenchOutput], int]) -> int:
    """Run one that prints as the verbs do; returns its exit code. Raises SystemExit like `run_program`."""
    try:
        return measure(Output(sys.stdout, sys.stderr, os.environ))
    except MeshdError as error:
        raise SystemExit(f"error: {error.what}\n\nhint: {error.hint}") from None
