"""Child processes with an owner.

One task owns one child: it spawns it in a process group of its own behind a guard, probes it until it is
ready, keeps its output, restarts it with back-off, and ends the whole group. If meshd itself dies, however
that happens, the guard ends the group. This package knows nothing but base.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

ReadyProbe = Callable[[], Awaitable[bool]]
"""Asked again and again while STARTING; True means ready. Must not raise but for cancellation."""


class ChildState(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to run a child. Times in seconds. `pass_fds` are inherited with their numbers kept."""

    name: str
    argv: Sequence[str]
    log: Path
    probe: ReadyProbe | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # added to a small clean environment
    pass_fds: tuple[int, ...] = ()
    ready_timeout: float | None = 60.0  # None: as long as it lives (a model that loads slowly is not dead)
    stop_timeout: float = 5.0
    restart: bool = False


@dataclass(frozen=True, slots=True)
class ChildStatus:
    name: str
    state: ChildState
    pid: int | None
    restarts: int
    reason: str  # why it is in this state, in words; the last error
    tail: tuple[str, ...]  # last lines of output, filled when it failed


class Child(Protocol):
    """One child process. `serve` is its owner task and must run for anything to happen."""

    @property
    def status(self) -> ChildStatus: ...

    async def serve(self) -> None:
        """Own the child until cancelled; returns or raises only when the whole group is gone."""
        ...

    async def ensure_ready(self) -> None:
        """Start it if need be; returns when READY. Raises MeshdError with the reason and last lines."""
        ...

    async def stop(self) -> None:
        """TERM, then KILL after `stop_timeout`, reap; returns when the group is gone. Idempotent."""
        ...

    async def wait_changed(self, seen: ChildStatus) -> ChildStatus:
        """Returns as soon as the status differs from `seen`."""
        ...
