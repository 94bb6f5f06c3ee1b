"""The entrance for browsers, with pipes in memory: who takes places from whom, and what a ban ends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest
from meshd.base.errors import EndOfStream
from meshd.base.peer_limits import BROWSER_SILENT_SECONDS, BROWSERS_UNPROVEN
from meshd.base.tasks import Owner
from meshd.identity.browser_seal import BROWSER_CONTEXT, Seal, SealDialler
from meshd.identity.invite import derive
from meshd.identity.keys import KeyPair
from meshd.identity.membership import Chain, Role, issue
from meshd.link.browser.entrance import PROOF_SECONDS, Browsers
from meshd.link.interface import BrowserChannel
from meshd.wire.browser import (
    DATA,
    MAX_SEALED_BYTES,
    SIGNALLING,
    BrowserHello,
    BrowserRefused,
    BrowserWelcome,
    decode_browser,
)
from meshd.wire.hello import NotAdmitted, Welcome
from meshd.wire.message import LengthParser, framed

from tests.unit.identity.cast import FOUNDER, MESH, STRANGER

pytestmark = pytest.mark.virtual
KEYS = derive(b"b" * 16)
HEAD = FOUNDER


class MemoryPipe:
    """The node's end of a pipe within this process. `sent` is called before each piece goes out."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent: Callable[[], None] = lambda: None

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        self.sent()
        self.out.put_nowait(b"".join(data))

    async def receive(self) -> bytes:
        if (data := await self.came.get()) is None:
            raise EndOfStream("the browser has gone")
        return data

    async def aclose(self) -> None:
        self.out.put_nowait(None)


@dataclass
class Head:
    """A node with one invite; channels stay until they end."""

    owner: Owner
    banned: bool = False
    refusal: NotAdmitted | None = None
    channels: list[BrowserChannel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.browsers = Browsers(
            key=HEAD,
            name="ann",
            invites=lambda invite_id: KEYS if invite_id == KEYS.invite_id else None,
            admit=self._admit,
            why_banned=lambda _chain: "it was revoked" if self.banned else None,
            stun=tuple,
            meetings=None,
            random=lambda count: bytes(range(1, count + 1)),
        )
        self.browsers.serve_channel = self._serve

    def _admit(self, peer: object, invite_id: bytes) -> Welcome | NotAdmitted:
        if self.refusal is not None:
            return self.refusal
        certificate = issue(
            signer=HEAD,
            mesh=MESH,
            node=STRANGER.peer,
            roles={Role.USE},
            serial=bytes(16),
            invite=invite_id,
            issued_at=0,
        )
        return Welcome(Chain((certificate,), HEAD.peer).encode(), (), ())

    async def _serve(self, channel: BrowserChannel) -> None:
        self.channels.append(channel)
        while True:
            await channel.receive()

    def visit(self, place: str) -> "Visit":
        """Let a pipe from `place` come in."""
        pipe = MemoryPipe()
        return Visit(pipe, self.owner.start(self.browsers.welcome(pipe, place), name="visit"))


@dataclass
class Visit:
    """A browser at its end of the pipe. `task` runs until the node is done with it."""

    pipe: MemoryPipe
    task: asyncio.Task[bool]
    seal: Seal | None = None

    async def take(self, parser: LengthParser) -> bytes:
        while (message := parser.next()) is None:
            data = await self.pipe.out.get()
            assert data is not None
            parser.feed(data)
        return message

    async def enter(self, key: KeyPair = STRANGER) -> BrowserWelcome:
        """Prove the invite and the key; return the welcome."""
        welcome = await self.ask(key)
        assert isinstance(welcome, BrowserWelcome)
        return welcome

    async def ask(self, key: KeyPair = STRANGER) -> object:
        """Prove the invite and the key; return the answer."""
        parser = LengthParser(limit=MAX_SEALED_BYTES)
        dialler = SealDialler(KEYS, HEAD.peer, ephemeral=b"e" * 32)
        self.pipe.came.put_nowait(framed(dialler.first))
        self.seal = seal = dialler.finish(await self.take(parser))
        hello = BrowserHello(key.peer.raw, key.sign(BROWSER_CONTEXT, seal.binding))
        self.put(SIGNALLING, hello.encode())
        return decode_browser(seal.open(await self.take(parser))[1:])

    def put(self, kind: bytes, message: bytes) -> None:
        assert self.seal is not None
        self.pipe.came.put_nowait(framed(self.seal.seal(kind + message)))


def on_a_node(work: Callable[[Head], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Run a test with a node that lets browsers in."""

    async def test() -> None:
        async with Owner() as owner:
            await work(Head(owner))
            owner.cancel()

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


@on_a_node
async def test_one_address_that_proves_nothing_keeps_nobody_else_out(head: Head) -> None:
    idle = [head.visit("192.0.2.1") for _ in range(4 * BROWSERS_UNPROVEN.most)]
    await asyncio.sleep(0.1)
    assert (await head.visit("198.51.100.7").enter()).name == "ann"
    assert not all(visit.task.done() for visit in idle)  # some of its own wait for their time


@on_a_node
async def test_many_addresses_that_prove_nothing_displace_each_other(head: Head) -> None:
    visits = [head.visit(f"192.0.{number}.1") for number in range(4 * BROWSERS_UNPROVEN.most)]
    await asyncio.sleep(0.1)
    assert sum(not visit.task.done() for visit in visits) == BROWSERS_UNPROVEN.most
    assert (await head.visit("198.51.100.7").enter()).name == "ann"


@on_a_node
async def test_who_proves_nothing_is_dropped_and_counted(head: Head) -> None:
    visit = head.visit("192.0.2.1")
    await asyncio.sleep(PROOF_SECONDS + 0.1)
    assert visit.task.result() is False and not len(head.browsers._unproven)


@on_a_node
async def test_a_ban_while_the_browser_is_told_that_it_is_welcome_ends_it(head: Head) -> None:
    visit = head.visit("192.0.2.1")

    def ban_at_the_welcome() -> None:
        if visit.seal is not None:
            head.banned = True
            head.browsers.bans_changed()

    visit.pipe.sent = ban_at_the_welcome
    await visit.enter()
    visit.put(DATA, b"hello")
    await asyncio.sleep(0.1)
    assert visit.task.done() and not head.channels and not head.browsers.connected


@on_a_node
async def test_whoever_answers_browsers_hears_of_a_ban(head: Head) -> None:
    banned: list[bytes] = []
    head.browsers.on_ban = banned.append
    visit = head.visit("192.0.2.1")
    await visit.enter()
    head.browsers.bans_changed()
    assert banned == []
    head.banned = True
    head.browsers.bans_changed()
    await asyncio.sleep(0.1)
    assert visit.task.done() and banned == [STRANGER.peer.raw]


@on_a_node
async def test_a_browser_that_was_let_in_and_says_nothing_more_is_dropped(head: Head) -> None:
    visit = head.visit("192.0.2.1")
    await visit.enter()
    await asyncio.sleep(BROWSER_SILENT_SECONDS.most - 1)
    assert head.browsers.connected
    await asyncio.sleep(2)
    assert visit.task.done() and not head.browsers.connected


@on_a_node
async def test_a_refused_browser_hears_what_it_can_do_itself(head: Head) -> None:
    """It cannot run `meshd leave`, as a node's hint says."""
    for code, hint in (
        ("banned", "get a new invite"),
        ("revoked", "get a new invite"),
        ("disk", "free space"),
    ):
        head.refusal = NotAdmitted(code, "no", "free space" if code == "disk" else "run `meshd leave`")
        answer = await head.visit("192.0.2.1").ask()
        assert isinstance(answer, BrowserRefused)
        assert hint in answer.hint and "meshd leave" not in answer.hint, code
