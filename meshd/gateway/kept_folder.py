"""The files of answers that clients may come back for: who uses them, how many there are, and for how long.

They outlive the daemon, which is what they are for. Only its user can read them (0600 in 0700): they hold
what was answered. Writes are not synced: what a killed daemon has written is there, and after a loss of power
the records say how much is whole.
"""

import asyncio
import errno
import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from meshd.base.log import get
from meshd.base.peer_limits import (
    KEPT_ANSWER_MIB,
    KEPT_ANSWERS,
    KEPT_ANSWERS_MIB,
    KEPT_ANSWERS_OF_KEY,
    KEPT_ANSWERS_OF_KEY_MIB,
)
from meshd.gateway.failure import Failure, HttpRefusal
from meshd.gateway.kept_journal import Read

KEPT_ANSWERS_NAME = "kept-answers"
KEPT_SECONDS = 600.0  # after the last byte, or after its client asked last
_MOST_KEPT_BYTES = KEPT_ANSWERS_MIB.most << 20
_MOST_KEPT_OF_KEY = KEPT_ANSWERS_OF_KEY_MIB.most << 20
_MOST_KEPT_OF_ONE = KEPT_ANSWER_MIB.most << 20
_KEPT_SWEEP_SECONDS = 20.0
_GIVE_UP_SECONDS = 1.0  # for the last event of a client whose answer another one takes over
_NAME = re.compile(r"([0-9a-f]{16})-[0-9a-f]{32}\.answer")

_log = get("gateway")


def kept_name(key: bytes, asked: str) -> str:
    """Of the file for what the key with this digest calls `asked`: it tells neither.

    Each key has names of its own, so nobody meets another one's answers.
    """
    whose = hashlib.blake2b(key, digest_size=8, person=b"meshd answers").hexdigest()
    which = hashlib.blake2b(asked.encode(), digest_size=16, key=key, person=b"meshd answers").hexdigest()
    return f"{whose}-{which}.answer"


@dataclass(slots=True)
class _KnownAnswer:
    """A file that is there. `touched`: unix seconds."""

    whose: str
    size: int
    touched: float


class _KeptAmount:
    """How much there is of something: in all, and of each key."""

    def __init__(self) -> None:
        self.total = 0
        self.of: Counter[str] = Counter()

    def add(self, whose: str, by: int) -> None:
        self.total += by
        self.of[whose] += by
        if not self.of[whose]:
            del self.of[whose]


class KeptFolder:
    """In `path`; `wall` gives unix seconds. `open` it first; `serve` must run."""

    def __init__(self, path: Path, *, wall: Callable[[], float]) -> None:
        self._path = path
        self._wall = wall
        self._known: dict[str, _KnownAnswer] = {}
        self._answers, self._bytes = _KeptAmount(), _KeptAmount()
        self._used: dict[str, KeptFile] = {}
        self._trouble = ""

    async def open(self) -> None:
        """Find what an earlier daemon has left."""
        for name, size, touched in await asyncio.to_thread(lambda: list(self._left())):
            self._count(name, size)
            self._known[name].touched = touched
        self._sweep()

    async def serve(self) -> None:
        """Remove what nobody has come back for, until cancelled."""
        while True:
            await asyncio.sleep(_KEPT_SWEEP_SECONDS)
            self._sweep()

    def touch(self, name: str) -> bool:
        """Whether there is such an answer. Its client has asked for it: it stays for longer."""
        known = self._known.get(name)
        if known is not None:
            known.touched = self._wall()
        return known is not None

    @asynccontextmanager
    async def use(self, name: str, abort: Callable[[], None]) -> AsyncIterator["KeptFile"]:
        """One file for one request at a time: a later request takes it over. `abort` ends this one."""
        while (before := self._used.get(name)) is not None:
            await before.give_up()
        file = self._used[name] = KeptFile(self, self._path / name, abort)
        try:
            yield file
        finally:
            file.close()
            self.touch(name)
            del self._used[name]
            file.ended.set()

    def grow(self, name: str, by: int) -> bool:
        """Count bytes that are to be written; False where there is no room for them."""
        known = self._known.get(name)
        if (known.size if known is not None else 0) + by > _MOST_KEPT_OF_ONE:
            return False
        if not self._make_room(_whose(name), by, is_new=known is None):
            return False
        self._count(name, by)
        return True

    def resize(self, name: str, size: int) -> None:
        """It has so many bytes left."""
        known = self._known.get(name)
        self._count(name, size - (known.size if known is not None else 0))

    def _count(self, name: str, by: int) -> None:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _KnownAnswer(_whose(name), 0, self._wall())
            self._answers.add(known.whose, 1)
        known.size += by
        self._bytes.add(known.whose, by)

    def remove(self, name: str) -> None:
        """One that cannot be removed is tried again later."""
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            self.failed(error)
            return
        if (known := self._known.pop(name, None)) is not None:
            self._answers.add(known.whose, -1)
            self._bytes.add(known.whose, -known.size)

    def make(self) -> None:
        """The folder. Raises OSError."""
        self._path.mkdir(mode=0o700, exist_ok=True)

    def failed(self, error: OSError) -> None:
        """Logged once for each trouble."""
        why = (error.strerror or type(error).__name__).lower()
        if why != self._trouble:
            self._trouble = why
            _log.warning("answer_not_kept", path=str(self._path), why=why)

    def worked(self) -> None:
        """The next trouble is news."""
        self._trouble = ""

    def _left(self) -> Iterator[tuple[str, int, float]]:
        with suppress(OSError), os.scandir(self._path) as found:
            for one in found:
                about = one.stat(follow_symlinks=False)
                if _NAME.fullmatch(one.name) and stat.S_ISREG(about.st_mode):
                    yield one.name, about.st_size, about.st_mtime

    def _sweep(self) -> None:
        now = self._wall()
        for name, known in list(self._known.items()):
            if name not in self._used and abs(now - known.touched) > KEPT_SECONDS:
                self.remove(name)
        self._make_room("", 0, is_new=False)

    def _make_room(self, whose: str, by: int, *, is_new: bool) -> bool:
        """For so many bytes of this key. False where all that may go is in use."""
        while (what := self._excess(whose, by, is_new=is_new)) is not None:
            spare = self._spare(what)
            if spare is not None:
                self.remove(spare)
            if spare is None or spare in self._known:
                return False
        return True

    def _excess(self, whose: str, by: int, *, is_new: bool) -> Mapping[str, int] | None:
        """Of what there would be too much: what each key has of it, or what this one has."""
        for there, more, most_of_key, most in (
            (self._answers, int(is_new), KEPT_ANSWERS_OF_KEY.most, KEPT_ANSWERS.most),
            (self._bytes, by, _MOST_KEPT_OF_KEY, _MOST_KEPT_BYTES),
        ):
            if there.of[whose] + more > most_of_key:
                return {whose: there.of[whose]}
            if there.total + more > most:
                return there.of
        return None

    def _spare(self, had: Mapping[str, int]) -> str | None:
        """Of these keys' answers that nobody uses the oldest of the key that has most."""
        spare = {
            name: one for name, one in self._known.items() if name not in self._used and one.whose in had
        }
        return min(spare, key=lambda name: (-had[spare[name].whose], spare[name].touched), default=None)


class KeptFile:
    """The file of one answer, while a request uses it."""

    def __init__(self, folder: KeptFolder, path: Path, abort: Callable[[], None]) -> None:
        self._folder = folder
        self._path = path
        self._abort = abort
        self._descriptor = -1
        self._limits: set[asyncio.Timeout] = set()
        self._is_taken = False
        self.ended = asyncio.Event()

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """From its beginning. A file that cannot be read is an empty one."""
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.fdopen(os.open(self._path, flags), "rb")
        except OSError:
            yield lambda _count: b""
            return
        with file:
            yield partial(_read, file)

    def cut(self, size: int) -> bool:
        """Go on behind so many bytes. False where that cannot be."""
        try:
            with self._open() as descriptor:
                os.ftruncate(descriptor, size)
        except OSError as error:
            self._folder.failed(error)
            return False
        self._folder.resize(self._path.name, size)
        return True

    def append(self, data: bytes) -> bool:
        """Write at once, so that it is there if this process is killed. False: it is not kept any more."""
        if not self._folder.grow(self._path.name, len(data)):
            self.remove()
            return False
        try:
            if self._descriptor < 0:
                self._folder.make()
                self._descriptor = self._opened()
            if os.write(self._descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._folder.failed(error)
            self.remove()
            return False
        self._folder.worked()
        return True

    def remove(self) -> None:
        """It is not to be found again."""
        self.close()
        self._folder.remove(self._path.name)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @asynccontextmanager
    async def until_taken(self) -> AsyncIterator[None]:
        """Raises HttpRefusal when another request takes the answer over."""
        try:
            async with asyncio.timeout(0 if self._is_taken else None) as limit:
                self._limits.add(limit)
                try:
                    yield
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            message = "another request with this Idempotency-Key has taken the answer over"
            raise HttpRefusal(Failure(409, message, code="answer_taken_over")) from error

    async def give_up(self) -> None:
        """Another request wants it: returns when this one has ended."""
        self._is_taken = True
        now = asyncio.get_running_loop().time()
        for limit in tuple(self._limits):
            if not limit.expired():
                limit.reschedule(now)
        try:
            async with asyncio.timeout(_GIVE_UP_SECONDS):
                await self.ended.wait()
        except TimeoutError:
            self._abort()  # it writes to a client that takes nothing
            await self.ended.wait()

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(self._path, flags, 0o600)

    @contextmanager
    def _open(self) -> Iterator[int]:
        descriptor = self._opened()
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _read(file: BinaryIO, count: int) -> bytes:
    try:
        return file.read(count)
    except OSError:
        return b""


def _whose(name: str) -> str:
    return name.partition("-")[0]
