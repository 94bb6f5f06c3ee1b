"""BLAKE3-256 of every tensor of an open file, by one sequential reading in a worker thread.

Callers take turns (`HashCache.reading`): a second reading would make both slower on a disk, and hashing runs
beside a model that may be answering. Memory is one buffer of _READ_BYTES.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from blake3 import blake3

from meshd.base.errors import UserError
from meshd.base.tasks import until_done

_READ_BYTES = 1024 * 1024  # fits the cache of a core; larger reads were not faster
_STEP_SECONDS = 0.25  # a step of the thread: how fast a cancel is heard, how often progress can be told
_FIRST_STEP_BYTES = 8 * _READ_BYTES
_MOST_STEP_BYTES = 512 * _READ_BYTES


class HashedSpan(Protocol):
    """A span of a file that is hashed as one: a tensor (TensorInfo), for example."""

    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...


class Sweep:
    """One pass over the tensors (or other spans) of a file, for one thread at a time.

    Owns a duplicate of the descriptor.
    """

    def __init__(self, descriptor: int, tensors: Sequence[HashedSpan], *, label: str) -> None:
        self._descriptor = os.dup(descriptor)  # stays valid although the file may be closed meanwhile
        self._tensors = tensors
        self._label = label
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._current = blake3()
        self._inside = 0  # bytes of the current tensor that are done
        self.digests: list[bytes] = []
        if sys.platform == "linux":
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def finished(self) -> bool:
        return len(self.digests) == len(self._tensors)

    def step(self, budget: int) -> int:
        """Read and hash about `budget` bytes; returns how many. Raises UserError."""
        done = 0
        while not self.finished and done <= budget:
            tensor = self._tensors[len(self.digests)]
            if self._inside == tensor.size:
                self.digests.append(self._current.digest())
                self._current, self._inside = blake3(), 0
                continue
            done += self._read(tensor)
        return done

    def _read(self, tensor: HashedSpan) -> int:
        length = min(_READ_BYTES, tensor.size - self._inside)
        try:
            count = os.preadv(self._descriptor, [self._buffer[:length]], tensor.offset + self._inside)
        except OSError as error:
            raise unreadable(self._label, error) from error
        if count == 0:
            missing = tensor.size - self._inside
            raise UserError(
                f"cannot use `{self._label}`: the file ends inside tensor `{tensor.name}`: "
                f"short by {missing} bytes",
                hint="it was truncated while it was read: download the file again",
            )
        self._current.update(self._buffer[:count])
        self._inside += count
        return count


def unreadable(label: str, error: OSError) -> UserError:
    """Return the UserError for a failed read of an open file: a disk or a network share."""
    return UserError(
        f"cannot read `{label}`: {error.strerror or error}",
        hint="check the disk, or copy the file from the network share to a local disk",
    )


async def hash_tensors(
    descriptor: int,
    tensors: Sequence[HashedSpan],
    *,
    label: str,
    on_progress: Callable[[int, float], None],
) -> tuple[bytes, ...]:
    """Return the BLAKE3-256 of each tensor. `on_progress(bytes, seconds)` is called on the event loop after
    each step.

    A cancel takes effect within one step, when the thread has ended. Raises UserError.
    """
    loop = asyncio.get_running_loop()
    sweep = Sweep(descriptor, tensors, label=label)
    running: asyncio.Future[int] | None = None
    budget = _FIRST_STEP_BYTES
    began = loop.time()
    done = 0
    try:
        # Hash in steps of bounded time, so that a cancel takes effect soon.
        while not sweep.finished:
            step_began = loop.time()
            running = loop.run_in_executor(None, sweep.step, budget)
            await until_done(running)
            done += running.result()
            now = loop.time()
            budget = next_budget(budget, now - step_began)
            on_progress(done, now - began)
        return tuple(sweep.digests)
    finally:
        if running is None or running.done():
            if running is not None and not running.cancelled():
                running.exception()  # seen, even when a cancel came before it
            sweep.close()
        else:  # cancelled twice while a read hung: its thread closes behind itself
            running.add_done_callback(lambda step: _close_after(step, sweep))


def _close_after(step: asyncio.Future[int], sweep: Sweep) -> None:
    step.exception()
    sweep.close()


def next_budget(budget: int, seconds: float) -> int:
    wanted = budget * _STEP_SECONDS / max(seconds, 1e-6)
    return int(min(_MOST_STEP_BYTES, max(_READ_BYTES, wanted, budget / 4), budget * 2))
