"""The user's say over a worker: what is lent, whether this node may lend anything, and the pause switch."""

import asyncio
import os
from dataclasses import dataclass

from meshd.base.errors import UserError
from meshd.base.resource_limits import usable_processors
from meshd.identity.membership import Role

IS_PAUSED = "its user has paused it"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The user's limits on lending.

    `memory` is bytes per device, None for all of it. `devices` empty means all GPUs, else the CPU. `threads`
    are CPU threads, None for half of the processors, or as many as this process may use if those are fewer.
    """

    devices: tuple[str, ...] = ()
    memory: int | None = None
    threads: int | None = None
    machine: str = ""

    @property
    def cpu_threads(self) -> int:
        """The number of threads with which a CPU computes."""
        if self.threads is not None:
            return self.threads
        return min(max(1, (os.cpu_count() or 2) // 2), usable_processors())


def check_may_work(roles: frozenset[Role]) -> None:
    """Check that a node with these roles may lend devices. Raises UserError."""
    if Role.WORK not in roles:
        raise UserError(
            "this node cannot lend its devices: its certificate lacks the role `work`",
            hint="get an invite with that role (`meshd invite --role work` on a member that can grant "
            "it), run `meshd "
            "leave` here, then start again with `--join INVITE`",
        ).final()


class Pause:
    """A switch by which the user stops lending, and resumes. It is off at first."""

    def __init__(self) -> None:
        self.is_on = False
        self._leases_end = asyncio.Event()

    @property
    def drains(self) -> bool:
        """Return True if running leases may go on until their heads end them."""
        return self.is_on and not self._leases_end.is_set()

    def begin(self, *, end_leases: bool) -> None:
        """Grant no new leases; with `end_leases`, also end the running ones."""
        self.is_on = True
        if end_leases:
            self._leases_end.set()

    def end(self) -> None:
        """Grant leases again."""
        self.is_on = False
        self._leases_end.clear()

    async def until_leases_end(self) -> None:
        """Wait until running leases have to end."""
        await self._leases_end.wait()
