"""The pause switch of a worker: its user can stop lending, and resume."""

import asyncio

IS_PAUSED = "its user has paused it"


class Pause:
    """Pause switch. It is off at first."""

    def __init__(self) -> None:
        self.is_on = False
        self._leases_end = asyncio.Event()

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
