"""From connected sockets to one proven link: all that came of a punch are raced, one is kept.

Two addresses of the same peer may both work, so more than one socket may connect. Only the dialler chooses:
it proves itself on one at a time, so that the other side never takes two for links.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from meshd.base.errors import Closed, MeshdError, Refused
from meshd.base.peer_limits import PUNCHED_UNPROVEN
from meshd.base.tasks import Owner
from meshd.identity.proof import Proven
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.link.punch.simultaneous_open import PunchGround
from meshd.link.secure.handshake import PROOF_SECONDS, dial_error
from meshd.link.tcp.pipe import TcpPipe
from meshd.wire.dialable import Dialable

MEET_SECONDS = 3.5  # of connecting; one lost SYN is sent again after 1 s
MAX_CONNECTED = PUNCHED_UNPROVEN.most  # sockets of one attempt that have not proven anything yet

Reached = tuple[TcpPipe, Proven]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The part of this side once a socket is connected: `prove` runs after TLS, one at a time if it
    `chooses`.
    """

    context: ssl.SSLContext
    server: bool
    prove: Callable[[TcpPipe], Coroutine[object, object, Proven]]


class PunchRace:
    """One attempt's sockets."""

    def __init__(self, side: Side, place: str) -> None:
        self._side = side
        self._place = place
        self._turn = asyncio.Lock()  # the dialler's choice
        self._decided = asyncio.Event()
        self._pipes: list[TcpPipe] = []
        self._unowned: set[socket.socket] = set()  # not a pipe's yet
        self._busy = 0
        self._winner: Reached | None = None
        self._errors: list[MeshdError] = []

    async def run(self, ground: PunchGround, others: Sequence[Dialable]) -> Reached:
        """Return the first proven pipe; everything else is closed. Raises DialError, Refused."""
        try:
            async with Owner() as owner:
                meeting = ground.meet(others, lambda sock: self._found(sock, owner))
                owner.start(meeting, name="punch")
                await self._until_decided()
                owner.cancel()
        finally:
            self._close_all()
        if self._winner is not None:
            return self._winner
        if self._errors:
            raise self._errors[-1].afresh()
        what = f"TCP hole punching to `{self._place}` failed"
        raise DialError(what, kind=LinkKind.TCP, failure=DialFailure.TIMEOUT)

    async def _until_decided(self) -> None:
        for limit in (MEET_SECONDS, PROOF_SECONDS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._decided.wait()
            if self._decided.is_set() or not self._busy:
                return

    def _found(self, sock: socket.socket, owner: Owner) -> None:
        if self._decided.is_set() or self._busy >= MAX_CONNECTED:
            sock.close()
            return
        self._unowned.add(sock)
        self._busy += 1
        try:
            task = owner.start_for(self._place, self._try(sock), name="punch-try")
        except Closed:  # shutting down
            self._tried()
        else:
            task.add_done_callback(lambda _: self._tried())

    def _tried(self) -> None:
        self._busy -= 1

    async def _try(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        pipe = TcpPipe(self._side.context, server_side=self._side.server)
        self._pipes.append(pipe)
        self._unowned.discard(sock)  # from here on it is closed with its transport
        try:
            if self._side.server:
                await loop.connect_accepted_socket(lambda: pipe, sock)
            else:
                await loop.create_connection(lambda: pipe, sock=sock)
            async with asyncio.timeout(PROOF_SECONDS):
                await pipe.secure()
            async with contextlib.nullcontext() if self._side.server else self._turn:
                if self._winner is None:
                    self._won(pipe, await self._side.prove(pipe))
        except (MeshdError, OSError, TimeoutError) as error:
            pipe.abort()
            self._failed(dial_error(error, kind=LinkKind.TCP, place=self._place))

    def _won(self, pipe: TcpPipe, proven: Proven) -> None:
        if self._winner is None:
            pipe.widen()
            self._winner = (pipe, proven)
            self._decided.set()

    def _failed(self, error: MeshdError) -> None:
        self._errors.append(error)
        del self._errors[:-MAX_CONNECTED]
        if isinstance(error, Refused):
            self._decided.set()  # the peer itself said no

    def _close_all(self) -> None:
        """Close everything but the winner; that one too when nobody will get it."""
        task = asyncio.current_task()
        kept = self._winner[0] if self._winner is not None and not (task and task.cancelling()) else None
        for sock in self._unowned:
            sock.close()
        for pipe in self._pipes:
            if pipe is not kept:
                pipe.abort()
