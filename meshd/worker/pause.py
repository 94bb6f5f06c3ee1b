"""Whether a worker lends at all: its user may pause it, and resume."""

import asyncio

IS_PAUSED = "its user has paused it"


class Pause:
    """Off at first."""

    def __init__(self) -> None:
        self.is_on = False
        self._leases_end = asyncio.Event()

    def begin(self, *, end_leases: bool) -> None:
        """No new leases; `end_leases`: nor those that run."""
        self.is_on = True
        if end_leases:
            self._leases_end.set()

    def end(self) -> None:
        """Leases as before."""
        self.is_on = False
        self._leases_end.clear()

    async def until_leases_end(self) -> None:
        """Returns when running leases shall end."""
        await self._leases_end.wait()
