"""Requests for answers wait here for their turn: the queue of one llama-server, with clock and tasks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager

from meshd.base.byte_format import in_number
from meshd.base.time_format import in_time
from meshd.gateway.answer_queue import AnswerQueue, Ticket
from meshd.gateway.failure import Failure, HttpRefusal

_LOOK_SECONDS = 1.0  # nobody tells when llama-server is loaded again with more slots
_SHORTEST_SECONDS = 0.01  # what is left in the end may be too short for the clock to move
_RETRY_SECONDS = 10


class Turn:
    """Of one request, which waits in `come`; times in seconds."""

    def __init__(self, turns: "Turns", ticket: Ticket) -> None:
        self._turns = turns
        self._ticket = ticket

    async def come(self) -> None:
        """Wait for it; at once when it has come before. Raises HttpRefusal when it takes too long."""
        await self._turns.wait_for(self._ticket)

    @asynccontextmanager
    async def for_model(self) -> AsyncIterator[None]:
        """It waits for its model, for others as well: in this time its user uses nothing."""
        before = self._ticket.computes
        self._turns.compute(self._ticket, False)
        try:
            yield
        finally:
            self._turns.compute(self._ticket, before)

    def notice(self, silence: float) -> str:
        """What a client is told that has waited for `silence` seconds, else nothing."""
        if self._ticket.began is not None or self.waited < silence:
            return ""
        before, held = self._turns.before(self._ticket), self._turns.held
        place = f"{before} before this one" if before else "next"
        return f"waiting for a turn: {place}" + (f"; {held}" if held else "")

    @property
    def waited(self) -> float:
        """Until its turn came, or until now."""
        began = self._ticket.began
        return (self._turns.now if began is None else began) - self._ticket.entered

    @property
    def computed(self) -> float:
        """Since its turn came."""
        return 0.0 if self._ticket.began is None else self._turns.now - self._ticket.began


class Turns:
    """Of one llama-server, which generates `slots()` answers at a time."""

    def __init__(
        self,
        slots: Callable[[], int],
        *,
        max_wait: float,
        is_loading: Callable[[], bool],
        held: Callable[[], str] = str,
        on_waiting: Callable[[int], object] = lambda _waiting: None,
        clock: Callable[[], float],
    ) -> None:
        """`max_wait`: seconds that a request waits at most; those in which the model `is_loading` do not
        count, as whoever is first waits for its load without limit. Nor do those in which no turn begins,
        because of what `held` says. `on_waiting`: told how many wait."""
        self._queue = AnswerQueue()
        self._slots = slots
        self._max_wait = max_wait
        self._is_loading = is_loading
        self._held = held
        self._on_waiting = on_waiting
        self._clock = clock
        self._come: dict[Ticket, asyncio.Event] = {}  # of those that wait

    @property
    def now(self) -> float:
        """Of the queue's clock."""
        return self._clock()

    @property
    def running(self) -> int:
        """Requests whose turn has come."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """Requests whose turn has not."""
        return self._queue.waiting

    @property
    def held(self) -> str:
        """Why no turn begins now; empty: they do."""
        return self._held()

    @contextmanager
    def enter(self, user: Hashable) -> Iterator[Turn]:
        """A place in the queue, and afterwards at llama-server, until the block is left."""
        ticket = self._queue.enter(user, self.now)
        self._come[ticket] = asyncio.Event()
        try:
            self._begin()
            yield Turn(self, ticket)
        finally:
            self._come.pop(ticket, None)
            self._queue.leave(ticket, self.now)
            self._begin()

    def compute(self, ticket: Ticket, computes: bool) -> None:
        """See AnswerQueue.compute."""
        self._queue.compute(ticket, computes, self.now)

    async def wait_for(self, ticket: Ticket) -> None:
        """See Turn.come."""
        event = self._come.get(ticket)
        if event is None:
            return
        left, seen = self._max_wait, self.now
        while not event.is_set():
            await _wait(event, max(_SHORTEST_SECONDS, min(_LOOK_SECONDS, left)))
            self._begin()
            since, seen = seen, self.now
            left -= 0.0 if self._is_loading() or self.held else seen - since
            if left <= 0 and not event.is_set():
                raise HttpRefusal(self._too_late())

    def _too_late(self) -> Failure:
        message = (
            f"no turn within {in_time(self._max_wait)}: {in_number(self.running, 'request')} under way, "
            f"{in_number(self.waiting, 'request')} waiting"
        )
        return Failure(
            503, message, type="unavailable_error", code="queue_timeout", retry_after=_RETRY_SECONDS
        )

    def before(self, ticket: Ticket) -> int:
        """How many of those that wait come before this one, as things are."""
        return self._queue.place(ticket, self.now)

    def _begin(self) -> None:
        for ticket in self._queue.begin(0 if self.held else max(1, self._slots()), self.now):
            self._come.pop(ticket).set()
        self._on_waiting(self.waiting)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
