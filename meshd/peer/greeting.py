"""The greeting on a proven link: agree on names, session and bans.

The greeting drives wire/hello.py over one link. The side that speaks first need not be the dialer: it is the
leader of the pair (the higher PeerId), so that racing links agree on one session (mux/session_choice.py).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, Protocol

from meshd.base.errors import IN_USE_CODE, IN_USE_HINT, Broken, EndOfStream, Refused, RemoteProtocolError
from meshd.base.peer_limits import GREETED_FAULTS
from meshd.base.tasks import Owner, first_error
from meshd.link.interface import Link
from meshd.wire.hello import Bans, Go, Greeting, Hello, Refusal, decode
from meshd.wire.message import LengthParser, framed

TURN_AWAY_SECONDS = 1.0
GREETING_SECONDS = 10.0  # a few round trips, plus the 2 s challenge of another place with our identity
BANS_PER_MESSAGE = 12  # 4 KiB each at most, so that a message stays under MAX_CONTROL_BYTES


class GreetingHandler(Protocol):
    """The decisions of a peer during a greeting (peer.py). Each may raise Refused, `settle` also Broken."""

    def my_hello(self, theirs: Hello | None) -> Hello:
        """Return our Hello; `theirs` is None for the leader, which speaks first."""
        ...

    async def check_hello(self, theirs: Hello) -> None:
        """Check the version and the incarnation. Raises Refused if this link must not continue."""
        ...

    def settle(self, mine: Hello, theirs: Hello) -> bytes:
        """Return the session's id. This is called as soon as both Hellos are known here."""
        ...

    def ban_entries(self) -> Sequence[bytes]: ...
    def take_bans(self, entries: Sequence[bytes]) -> int:
        """Take bans in; return how many are invalid."""
        ...

    def keep_bans(self) -> None:
        """Persist them: once, as a member that was away for long may lack thousands."""
        ...

    def check_banned(self, link: Link) -> None:
        """Check the peer after both sets of bans are known. Raises Refused (code `banned`)."""
        ...


class Greeted(NamedTuple):
    """The peer's Hello, the session that both agreed on, and the bytes received behind the greeting."""

    hello: Hello
    session_id: bytes
    rest: bytes


@dataclass(slots=True)
class _GreetingWire:
    link: Link
    parser: LengthParser = field(default_factory=LengthParser)
    refused: bool = False  # the other side refused, so it needs no message

    async def send(self, message: Greeting) -> None:
        await self.link.send([framed(message.encode())])

    async def receive(self) -> Greeting:
        while (message := self.parser.next()) is None:
            self.parser.feed(await self.link.receive())
        greeting = decode(message)
        if isinstance(greeting, Refusal):
            self.refused = True
            raise Refused(greeting.text, code=greeting.code, hint=greeting.hint)
        return greeting


async def greet(link: Link, handler: GreetingHandler, *, leader: bool) -> Greeted:
    """Exchange greetings on `link`. Raises Refused, Broken, EndOfStream, RemoteProtocolError."""
    wire = _GreetingWire(link)
    try:
        async with asyncio.timeout(GREETING_SECONDS):
            try:
                theirs, session_id = await _exchange(wire, handler, leader=leader)
            except ExceptionGroup as group:
                raise first_error(group) from None
            except Refused as refusal:
                if not wire.refused:
                    await _tell(wire, refusal)
                raise
    except TimeoutError as error:
        raise Broken(f"no greeting within {GREETING_SECONDS:.0f} s") from error
    return Greeted(theirs, session_id, wire.parser.rest())


def in_use(remote: str) -> Refused:
    """Return why a second place with one identity gets no link: the first, at `remote`, still answers."""
    return Refused(
        f"this identity is in use at {remote}, which still answers",
        code=IN_USE_CODE,
        hint=IN_USE_HINT,
    )


async def turn_away(link: Link, refusal: Refused) -> NoReturn:
    """Refuse the link before anything else, and raise `refusal`."""
    await _tell(_GreetingWire(link), refusal)
    with suppress(TimeoutError, Broken, EndOfStream):  # closing with unread data would reset our message away
        async with asyncio.timeout(TURN_AWAY_SECONDS):
            while True:
                await link.receive()
    raise refusal


async def _exchange(wire: _GreetingWire, handler: GreetingHandler, *, leader: bool) -> tuple[Hello, bytes]:
    # Settling follows the decision without an await between: a second link's greeting that runs at
    # the same time must see the session that this one has chosen.
    if leader:
        mine = handler.my_hello(None)
        await wire.send(mine)
        theirs = _hello(await wire.receive())
        await handler.check_hello(theirs)
        session_id = handler.settle(mine, theirs)
    else:
        theirs = _hello(await wire.receive())
        await handler.check_hello(theirs)
        mine = handler.my_hello(theirs)
        session_id = handler.settle(mine, theirs)
        await wire.send(mine)
    if mine.bans_digest != theirs.bans_digest:
        async with Owner() as owner:  # in both directions at once: two full sets would block each other
            owner.start(_send_bans(wire, handler.ban_entries()), name="send bans")
            owner.start(_receive_bans(wire, handler, theirs.bans_count), name="receive bans")
    # Both know all bans now.
    handler.check_banned(wire.link)
    if leader:
        await wire.send(Go())
    elif not isinstance(await wire.receive(), Go):
        raise RemoteProtocolError("greeting: expected `go`", code="greeting")
    return theirs, session_id


async def _send_bans(wire: _GreetingWire, entries: Sequence[bytes]) -> None:
    parts = [entries[i : i + BANS_PER_MESSAGE] for i in range(0, len(entries), BANS_PER_MESSAGE)] or [[]]
    for index, part in enumerate(parts):
        await wire.send(Bans(tuple(part), last=index == len(parts) - 1))


async def _receive_bans(wire: _GreetingWire, handler: GreetingHandler, announced: int) -> None:
    try:
        await _take_bans(wire, handler, announced)
    finally:  # if the link is too slow, the next one continues from here
        handler.keep_bans()


async def _take_bans(wire: _GreetingWire, handler: GreetingHandler, announced: int) -> None:
    received = invalid = 0
    while True:
        message = await wire.receive()
        if not isinstance(message, Bans):
            raise RemoteProtocolError("greeting: expected `bans`", code="greeting")
        received += len(message.entries)
        if received > announced:
            raise RemoteProtocolError("greeting: more bans than announced", code="greeting")
        invalid += handler.take_bans(message.entries)
        if invalid > GREETED_FAULTS.most:
            raise RemoteProtocolError("greeting: invalid bans", code="greeting")
        await asyncio.sleep(0)  # let other tasks run
        if message.last:
            return


def _hello(message: Greeting) -> Hello:
    if not isinstance(message, Hello):
        raise RemoteProtocolError("greeting: expected `hello`", code="greeting")
    return message


async def _tell(wire: _GreetingWire, refusal: Refused) -> None:
    """Tell the other side why; it may be gone already."""
    try:
        async with asyncio.timeout(1.0):
            await wire.send(Refusal(refusal.code, refusal.what, refusal.hint))
    except (Broken, TimeoutError):
        return
