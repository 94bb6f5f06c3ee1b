"""The boundary around work that outsiders cause: a peer, a relay, a router, a client of the API.

Any failure there, expected or not, ends that work but never the daemon. An unexpected failure leaves
the boundary as a `Fault`; it is logged as an error, at a bounded rate for each source and kind, and `blame`
counts it against the source. Bugs outside such work still end the process: nothing here catches them.
"""

import asyncio
import errno
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import TypeVar

from meshd.base import log
from meshd.base.admission import TokenBucket
from meshd.base.errors import Broken, LocalProtocolError, MeshdError
from meshd.base.peer_limits import FAULT_LINES, FAULT_LINES_IN_ALL

T = TypeVar("T")
Blame = Callable[["Fault"], object]

KEEP_UP_SECONDS = 10.0
MAX_FAULT_KINDS = 256  # of failures whose lines are counted
# errno of a socket that could not be made or accepted: this process, or this machine, has no more of them
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# What this machine lacks is nobody's fault but ours: logged, and not counted against the source.
OURS = NO_ROOM | {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES}
LOG = log.get("boundary")


class Fault(Broken):
    """Work that an outsider caused failed unexpectedly. `is_theirs`: it counts against the source."""

    def __init__(self, what: str, *, is_theirs: bool) -> None:
        super().__init__(what)
        self.is_theirs = is_theirs


class _FaultLedger:
    """The ledger of failures logged lately: one for the process, as the log is."""

    def __init__(self) -> None:
        self.kinds = log.LineBudgets(FAULT_LINES, most=MAX_FAULT_KINDS)
        self._all: TokenBucket | None = None

    def may_say(self, kind: str, now: float) -> int | None:
        """Return how many similar lines were suppressed before, or None to suppress this one, too."""
        if self._all is None:
            self._all = FAULT_LINES_IN_ALL.bucket(now)
        may = self.kinds.of(kind, now).spend(1, now) and self._all.spend(1, now)
        return self.kinds.count(kind, may=may)


_ledger = _FaultLedger()


def forget() -> None:
    """Reset the ledger to its state at the start of the process, for tests."""
    global _ledger
    _ledger = _FaultLedger()


class Contained:
    """A context manager: an unexpected exception (no MeshdError, or a bug) leaves its block as a `Fault`.

    It may be entered repeatedly. `source` is the outsider that caused the work, `name` the work.
    Cancellation and the end of the process pass.
    """

    __slots__ = ("_blame", "_name", "_source")

    def __init__(self, source: str, name: str, blame: Blame | None = None) -> None:
        self._source = source
        self._name = name
        self._blame = blame

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception):
            return
        unforeseen = next((leaf for leaf in leaves(error) if not _is_foreseen(leaf)), None)
        if unforeseen is None:
            if isinstance(error, ExceptionGroup):
                raise next(leaves(error)) from None
            return
        if unforeseen.__traceback__ is None:
            unforeseen.__traceback__ = error.__traceback__
        raise fault(unforeseen, source=self._source, name=self._name, blame=self._blame) from error


async def contained(
    work: Coroutine[object, object, T], *, source: str, name: str, blame: Blame | None = None
) -> T:
    """Return the result of `work`. Raises only MeshdErrors; an unexpected exception becomes a `Fault`."""
    with Contained(source, name, blame):
        return await work


async def ended(
    work: Coroutine[object, object, T], *, source: str, name: str, blame: Blame | None = None
) -> T | None:
    """Return the result of `work`, or None if it failed: a failure ends only this work, as in `contained`."""
    try:
        return await contained(work, source=source, name=name, blame=blame)
    except Fault:
        return None  # it is logged
    except MeshdError as error:
        LOG.debug("work_ended", cause=source, name=name, why=error.what)
        return None


async def kept_up(
    work: Callable[[], Coroutine[object, object, None]],
    *,
    source: str,
    name: str,
    pause: float = KEEP_UP_SECONDS,
) -> None:
    """Run `work` to its end; if it fails unexpectedly, run it again after `pause` seconds.

    For permanent work with others' answers: a router, STUN servers, neighbours.
    """
    while True:
        try:
            await contained(work(), source=source, name=name)
        except Fault:
            await asyncio.sleep(pause)
        else:
            return


def fault(error: Exception, *, source: str, name: str, blame: Blame | None = None) -> Fault:
    """Log an unexpected error, count it, and return what its caller may raise."""
    is_theirs = not (isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in OURS))
    found = Fault(f"{name}: {_words(error)}", is_theirs=is_theirs)
    note(error, source=source, name=name)
    if blame is not None and is_theirs:
        blame(found)
    return found


def note(error: BaseException, *, source: str, name: str) -> None:
    """Log an unexpected failure, unless too many similar ones were logged recently."""
    place = _place(error)
    now = time.monotonic()
    left_out = _ledger.may_say(f"{source} {name} {type(error).__name__} {place}", now)
    if left_out is not None:
        LOG.error("work_failed", cause=source, name=name, why=_words(error), place=place, left_out=left_out)


def watch_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Log failures in callbacks of the loop (a socket's, a library's) here as well."""

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if not isinstance(error, BaseException):
            error = RuntimeError(str(context.get("message")))
        note(error, source="event loop", name=str(context.get("message"))[:80])

    loop.set_exception_handler(handle)


def leaves(error: BaseException) -> Iterator[Exception]:
    """Yield the plain exceptions in (nested) groups, or `error` itself."""
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from leaves(member)
    elif isinstance(error, Exception):
        yield error


def _is_foreseen(error: Exception) -> bool:
    return isinstance(error, MeshdError) and not isinstance(error, LocalProtocolError)


def _words(error: BaseException) -> str:
    text = str(error)[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """Return where in our source `error` was raised, with the library's frame: `ssl.py:9 < file.py:123`."""
    frames = traceback.extract_tb(error.__traceback__)
    shown: list[str] = []
    for frame in reversed(frames):
        where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        if "/meshd/" in frame.filename and not frame.filename.endswith("/base/fault_boundary.py"):
            shown.append(where)
            break
        if not shown:
            shown.append(where)
    return " < ".join(shown)
