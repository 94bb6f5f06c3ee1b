"""What the benches that are started with `python -m` do alike."""

from collections.abc import Coroutine

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import first_error
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
