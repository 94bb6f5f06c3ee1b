"""Keeps one peer connected: dials while there is no link, at once after a change, else with back-off."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from meshd.base import log
from meshd.base.errors import Broken, MeshdError, Refused, RemoteProtocolError
from meshd.base.tasks import Owner, first_error, first_success
from meshd.link.interface import Dialer, Link
from meshd.peer.attempts import plan, retry_delay
from meshd.peer.connection import PeerConnection
from meshd.peer.interface import Book
from meshd.peer.node import Node

LOG = log.get("peer")


class Connector:
    """The dialling side of one peer connection."""

    def __init__(
        self,
        *,
        node: Node,
        connection: PeerConnection,
        book: Book,
        dialers: Sequence[Dialer],
        chance: Callable[[], float],
    ) -> None:
        self._node = node
        self._connection = connection
        self._book = book
        self._dialers = {dialer.kind: dialer for dialer in dialers}
        self._chance = chance
        self._poke = asyncio.Event()
        self._again = False
        self._stopped = False

    def poke(self, *, although_connected: bool = False) -> None:
        """Something changed (a new record, our addresses): dial now, and forget the back-off."""
        self._again = self._again or although_connected
        self._poke.set()

    def stop(self) -> None:
        """This node leaves: dial no more."""
        self._stopped = True

    async def serve(self) -> None:
        """Dial for as long as this runs; owns the links that it made."""
        failures = 0
        async with Owner() as links:
            while True:
                await self._until_wanted()
                error = self._connection.take_fault() or await self._round(links)
                failures = failures + 1 if error is not None else 0
                if error is not None:
                    self._connection.last_error = error.what
                    if isinstance(error, Refused):
                        self._connection.refused(error)
                        LOG.warning(
                            "peer_refuses", peer=self._connection.label, why=error.what, hint=error.hint
                        )
                    no = isinstance(error, Refused | RemoteProtocolError)
                    delay = retry_delay(failures=failures, refused=no, chance=self._chance())
                    if await self._poked_within(delay):
                        failures = 0

    async def _until_wanted(self) -> None:
        seen = self._node.version
        while self._stopped or (
            not self._again
            and (self._connection.connected or not self._book.candidates(self._connection.peer))
        ):
            seen = await self._node.wait_changed(seen)
        self._again = False
        self._poke.clear()

    async def _round(self, links: Owner) -> MeshdError | None:
        self._connection.dialling = True
        try:
            link = await self._race()
        except MeshdError as error:
            return error
        finally:
            self._connection.dialling = False
        ended = asyncio.Event()
        run = links.start(self._run(link, ended), name=f"link to {self._connection.peer.short}")
        # The round is over when the link carries the session, or has failed to.
        seen = self._node.version
        while not ended.is_set():
            if self._connection.carries(link):
                self._book.worked(self._connection.peer, link.info.remote)
                return None
            seen = await self._node.wait_changed(seen)
        # Without an error of its own the peer just hung up: it must not be dialled again at once either.
        return await run or Broken("the link ended before it carried anything")

    async def _run(self, link: Link, ended: asyncio.Event) -> MeshdError | None:
        try:
            await self._connection.run_link(link)
        except MeshdError as error:
            return error
        finally:
            ended.set()
            self._node.changed()
        return None

    async def _race(self) -> Link:
        peer = self._connection.peer
        candidates = self._book.candidates(peer)
        starts: list[tuple[float, Callable[[], Coroutine[object, object, Link]]]] = []
        for attempt in plan(tuple(self._dialers)):
            dialer = self._dialers[attempt.kind]
            starts.append((attempt.delay, lambda dialer=dialer: dialer.dial(peer, candidates)))  # type: ignore[misc]
        try:
            return await first_success(starts, discard=lambda link: link.aclose())
        except ExceptionGroup as group:
            refusals = [error for error in group.exceptions if isinstance(error, Refused)]
            error = refusals[0] if refusals else first_error(group)
            raise error from None

    async def _poked_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._poke.wait()
        except TimeoutError:
            return False
        return True
