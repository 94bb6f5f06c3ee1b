"""Keeps one peer connected: dials while there is no link, and for a better one while there is.

Decides nothing: dial_schedule.py says which transport is tried when, path_selection.py which link is used. An
attempt that is not needed any more is given up; a link that it made is not, the leader of the pair closes
what is too much.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from meshd.base import log
from meshd.base.errors import Broken, Closed, MeshdError, Refused, RemoteProtocolError
from meshd.base.fault_boundary import Fault, contained
from meshd.base.peer_limits import DIALLED_KNOWN, DIALS, RETRIES
from meshd.base.rate_by_key import Rates
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.link.interface import TRANSPORTS, Dialer, DialError, DialFailure, Link, LinkKind
from meshd.peer.connection import PeerConnection
from meshd.peer.dial_schedule import DialPlan, DialSchedule, Facts
from meshd.peer.interface import Book
from meshd.peer.node import Node
from meshd.peer.path_selection import fragile
from meshd.peer.reasons import Failed, last_error
from meshd.wire.dialable import Dialable, Source
from meshd.wire.netfacts import CAPABILITY, NetFacts

_ATTEMPT_SECONDS = 30.0  # for a dialler that knows no end
LOG = log.get("peer")


class DialRates:
    """How often this node dials because of what is said of a peer, for all peers.

    By their keys: one that leaves and returns has the same, while there is a new connector for it.
    """

    def __init__(self) -> None:
        self.dials = Rates(DIALS, most=DIALLED_KNOWN.most)
        self.retries = Rates(RETRIES, most=DIALLED_KNOWN.most)


class Connector:
    """A DiallingSide, which makes its connection; of two `dialers` that are due the first begins first."""

    def __init__(
        self,
        *,
        node: Node,
        peer: PeerId,
        book: Book,
        dialers: Sequence[Dialer],
        rates: DialRates,
        rng: Callable[[], float],
    ) -> None:
        self._node = node
        self._book = book
        self._dialers = dialers
        self._source = f"peer {peer.short}"
        self._rng = rng
        self._schedule = DialSchedule(tuple(dialer.transport for dialer in dialers))
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._greeting: dict[int, Link] = {}  # made, and not attached yet
        self._failed: dict[int, Failed] = {}
        self._wake = asyncio.Event()
        self._test = False
        self._stopped = False
        self._wanted = True
        self._rates = rates
        self.connection = PeerConnection(node, peer, self)

    def poke(self, *, although_connected: bool = False) -> None:
        """Something changed (a record, a NAT; `although_connected`: our addresses, or we slept): dial now.

        Back-offs are forgotten; with `although_connected` what there is is tested and dialled anew as well.
        """
        self._schedule.changed(self._facts(), again=although_connected)
        self._test = self._test or although_connected
        self._wake.set()

    def links_changed(self) -> None:
        """See DiallingSide."""
        self._wake.set()

    def told(self) -> None:
        """Others said something new of the peer: dial now, unless they do so too often."""
        if self._rates.retries.spend(self.connection.peer, self._node.now()):
            self.poke()
        self._wake.set()  # there may be something to dial for the first time

    @property
    def wanted(self) -> bool:
        """Is there to be a session? If not, nothing is dialled; what there is stays."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: bool) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def stop(self) -> None:
        """This node leaves: dial no more."""
        self._stopped = True
        self._wake.set()

    def why_not_direct(self) -> str:
        """See DiallingSide."""
        record = self._book.record(self.connection.peer)
        theirs = None
        if record is not None and CAPABILITY in record.capabilities:
            with suppress(RemoteProtocolError):  # of a later version, say
                theirs = NetFacts.from_text(record.capabilities[CAPABILITY])
        return self._node.host.why_not_direct(theirs, last_error(self._failed))

    async def serve(self) -> None:
        """Dial for as long as this runs; owns the links that it made."""
        async with Owner() as owner:
            while True:
                self._wake.clear()
                self._look()
                plan = self._plan()
                for index in plan.drop:
                    self._tasks[index].cancel()
                for index in plan.start:
                    self._schedule.began(index)
                    self._tasks[index] = owner.start_for(
                        self._source,
                        self._attempt(index, owner),
                        name=f"dial {self.connection.peer.short}",
                        blame=self.connection.blame,
                    )
                self.connection.view.dialling = self._schedule.running
                await self._until(plan.at)

    def _facts(self) -> Facts:
        peer = self.connection.peer
        present, candidates = self.connection.present(), self._places()
        return Facts(
            present,
            possible=bool(candidates) or self._book.record(peer) is not None,
            leads=self.connection.leads,
            near=not present and self._node.host.is_near(candidates),
        )

    def _places(self) -> list[Dialable]:
        """Where the peer may be dialled, best first."""
        peer = self.connection.peer
        found = [
            place
            for source, told in self._book.told(peer)
            for place in self._node.host.may_dial(peer, told, source)
        ]
        return list(dict.fromkeys(found))

    def _affordable(self, index: int) -> list[Dialable]:
        """What this attempt may dial: each address that nobody but the peer names counts against its rate."""
        proto, places = TRANSPORTS[self._dialers[index].transport].proto, self._places()
        if proto is None:
            return places
        peer, now = self.connection.peer, self._node.now()
        sure = {one for source, told in self._book.told(peer) if source is Source.GIVEN for one in told}
        dials = self._rates.dials
        return [
            place for place in places if place.proto == proto and (place in sure or dials.spend(peer, now))
        ]

    def _plan(self) -> DialPlan:
        if self._stopped or not self._wanted:
            return DialPlan(drop=tuple(index for index in self._tasks if index not in self._greeting))
        if self._test:
            self._test = False
            self.connection.test_links()
        return self._schedule.plan(self._facts(), self._node.now())

    def _look(self) -> None:
        """What became of the links that were greeting, and of the last session."""
        for index, link in list(self._greeting.items()):
            if self.connection.carries(link):
                del self._greeting[index]
                self._tasks.pop(index, None)
                self._failed.pop(index, None)
                self._schedule.made(index)
                info = link.info
                if info.kind is LinkKind.TCP and not fragile(info.kind, info.path):
                    self._book.worked(self.connection.peer, info.remote)
        fault = self.connection.take_fault()
        if fault is not None:
            self.connection.view.last_error = fault.what
            self._schedule.refused(self._node.now(), self._rng())

    async def _attempt(self, index: int, owner: Owner) -> None:
        """Dial, and hand the link to a separate task: giving up the attempt must not end it."""
        dialer, peer = self._dialers[index], self.connection.peer
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                link = await contained(
                    dialer.dial(peer, self._affordable(index)),
                    source=self._source,
                    name=f"dial {dialer.transport.value}",
                    blame=self.connection.blame,
                )
        except TimeoutError:
            what = f"no link within {_ATTEMPT_SECONDS:.0f} s"
            kind = TRANSPORTS[dialer.transport].kind
            self._fell_through(index, DialError(what, kind=kind, failure=DialFailure.TIMEOUT))
        except MeshdError as error:
            self._fell_through(index, error)
        except asyncio.CancelledError:
            self._tasks.pop(index, None)
            self._schedule.dropped(index)
            raise
        else:
            await self._keep(index, link, owner)
        finally:
            self._wake.set()

    async def _keep(self, index: int, link: Link, owner: Owner) -> None:
        self._greeting[index] = link
        self._schedule.dialled(index)
        try:
            owner.start_for(
                self._source,
                self._run(index, link),
                name=f"link to {link.info.peer.short}",
                blame=self.connection.blame,
            )
        except Closed:  # everything ends
            await link.aclose()

    async def _run(self, index: int, link: Link) -> None:
        error: MeshdError | None = None
        began = self._node.now()
        try:
            await self.connection.run_link(link)
        except MeshdError as caught:
            error = caught
        finally:
            if self._greeting.get(index) is link:  # never attached, or so short that nobody saw it
                del self._greeting[index]
                # Without an error of its own the peer just hung up: it is not dialled again at once either.
                self._fell_through(index, error or Broken("the link ended before it carried any data"))
                if isinstance(error, Refused):  # by the peer itself: the link was proven
                    self._schedule.refused(self._node.now(), self._rng())
            else:
                now = self._node.now()
                self._schedule.ended(index, lived=now - began, now=now, draw=self._rng())
            self._wake.set()

    def _fell_through(self, index: int, error: MeshdError) -> None:
        self._tasks.pop(index, None)
        connection = self.connection
        failure = error.failure if isinstance(error, DialError) else None
        self._failed[index] = Failed(self._dialers[index].transport, failure, error.what)
        # what fails in a way that nobody foresaw fails again; a peer that broke the rules: see take_fault
        refused = isinstance(error, Refused | Fault)
        self._schedule.failed(index, self._node.now(), self._rng(), refused=refused)
        if not connection.linked and (refused or index == min(self._failed)):
            connection.view.last_error = error.what
        if isinstance(error, Refused):
            connection.view.refused(error)

    async def _until(self, at: float | None) -> None:
        try:
            async with asyncio.timeout_at(at):
                await self._wake.wait()
        except TimeoutError:
            return
