"""Child processes with an owner.

One task owns one child: it spawns it in its own process group behind a guard, probes it until it is
ready, keeps its output, and ends the whole group. Nothing is started again. If meshd
itself dies, however that happens, the guard ends the group. This package knows nothing but base.

It opens no connection to a child in use to see whether it lives (a plain rpc-server has a backlog of one),
and never hands a child a descriptor, variable or argument that was not named. Words: *child*, one program
that meshd runs; *group*, that process and all it forked; *guard*, the small process that ends the group when
meshd is gone.
Tests: tests/process (real processes), tests/unit/process (pure parts). Why it is so: decision 0005.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from meshd.base.errors import MeshdError

SHOWN_LINES = 3  # of a child's output, in the message that says how it ended

ReadyProbe = Callable[[], Awaitable[bool]]
"""Asked again and again while STARTING; True means ready. Must not raise but for cancellation."""


class ChildState(StrEnum):
    """States of a child. FAILED is its end; STOPPED is before its start, and after its owner has gone."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


class ChildFailed(MeshdError):
    """The child could not be started, or ended. `tail` holds the last lines of its output, oldest first."""

    def __init__(self, what: str, *, hint: str = "", tail: tuple[str, ...] = ()) -> None:
        super().__init__(what, hint=hint)
        self.tail = tail


class Network(StrEnum):
    """Sockets that a confined program may use beside those that it inherits."""

    NONE = "none"
    UNIX = "unix"
    """Unix sockets to listen on."""
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Name what a program may use beside its libraries and the GPUs.

    `read` are files and folders. It may change and create files only in the folders `keep`, and sockets in
    the folder `listen`. `memory` limits the private memory that it maps, in bytes, except where a GPU's
    driver maps far more than it uses. `is_required`: rather start nothing than run the program with less
    than all parts of the sandbox.
    """

    read: tuple[Path, ...] = ()
    keep: tuple[Path, ...] = ()
    listen: Path | None = None
    network: Network = Network.NONE
    memory: int | None = None
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The way to run a child. Times in seconds, sizes in bytes.

    `pass_fds` are inherited with their numbers kept and stay the caller's; so are `hand_over`, but those
    belong to the child's owner from now on and are closed here when the child has them or could not start.
    `on_line` gets each line of output (cut, without control characters); it must be quick and must not
    raise. `stamped`: lines of the log begin with the time; not where the child's own lines have it, or a
    program reads them. `sandbox`: what it may use; None: everything that this process may.
    """

    name: str
    argv: Sequence[str]
    log: Path
    probe: ReadyProbe | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # added to a small clean environment
    pass_fds: tuple[int, ...] = ()
    ready_timeout: float | None = 60.0  # None: as long as it lives (a model that loads slowly is not dead)
    stop_timeout: float = 5.0
    hand_over: tuple[int, ...] = ()
    cwd: Path = Path("/")  # never the daemon's: llama.cpp loads libraries that lie in its own
    on_line: Callable[[str], None] | None = None
    log_filter: Callable[[str], str] | None = (
        None  # a line as log and tail get it, where only on_line may have all
    )
    stamped: bool = True
    log_bytes: int = 4 << 20  # of the log file; one older file of the same size is kept beside it
    sandbox: Sandbox | None = None


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """The present state of a child process."""

    name: str
    state: ChildState
    pid: int | None = None
    restarts: int = 0  # that nobody asked for, as its user counts them
    reason: str = ""  # why it is in this state, in words; the last error
    tail: tuple[str, ...] = ()  # last lines of output, filled when it failed
    exit_code: int | None = None  # of its last process, once that has ended
    exit_signal: int | None = None  # or what ended it
    no_memory: str = ""  # the kernel ended it, because this memory ran out

    @property
    def is_up(self) -> bool:
        """True if it runs, and is not being ended."""
        return self.state in (ChildState.STARTING, ChildState.READY)


class Child(Protocol):
    """One child process. `serve` is its owner task and must run for anything to happen."""

    @property
    def status(self) -> ChildStatus: ...

    async def serve(self) -> None:
        """Run the child once it is asked for; returns or raises only when the whole group is gone.

        Cancelling it ends the group: by TERM, then by KILL after `stop_timeout`.
        """
        ...

    async def ensure_ready(self) -> None:
        """Start it if need be; returns when READY. Raises MeshdError with the reason and last lines.

        Once it has failed, each call raises the same. No longer owned: raises Closed. Cancelling the call
        does not stop the child.
        """
        ...

    def kill(self) -> None:
        """Kill the whole group, if there is one: it ends as by any other signal."""
        ...

    async def wait_changed(self, seen: ChildStatus) -> ChildStatus:
        """Wait until the status differs from `seen`; return the new one."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program that ran to its end: exit code, or signal (the other is None)."""

    code: int | None
    signal: int | None
    tail: tuple[str, ...]
    no_memory: str = ""  # the kernel ended it, because this memory ran out


RunToEnd = Callable[[ChildSpec], Awaitable[Ended]]
"""Runs a program once and waits for its end (a compiler, say); probe and ready_timeout do not count.

Raises UserError when it cannot be started. Cancelled: ends the whole group first.
"""
