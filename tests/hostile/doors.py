"""The ways in that a member has, each with what it may say there: one volley of messages at a time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from meshd.base.errors import MeshdError
from meshd.base.shares import LINKS
from meshd.base.tasks import Owner
from meshd.link.interface import Link
from meshd.link.member_relay import FROM, TO
from meshd.link.member_relay import SERVICE as MEMBER_SERVICE
from meshd.peer.signal_ways import TO as SIGNAL_TO
from meshd.relay.limits import SMALL
from meshd.relay.states import Identity, Tell
from meshd.relay.switchboard import Switchboard
from meshd.tunnel.own import TUNNEL_SERVICE
from meshd.wire.hello import Go
from meshd.wire.lease import LEASE_SERVICE, Acquire, Grant, Reserve
from meshd.wire.lease import decode as decode_lease
from meshd.wire.lengths import LengthParser, framed
from meshd.wire.news import MAX_PRESENCES, NEWS_SERVICE, BanNews, PresenceNews, RecordNews
from meshd.wire.relay import Mail, decode_from_node
from meshd.wire.signal import SIGNAL_SERVICE

from tests.hostile.approach import EXPOSED, VIRTUAL, VOLLEY, Approach, Metadata, NotHeard, Pace
from tests.hostile.damage import Damage
from tests.hostile.member import OVER, Mallory, Talk, Target

ACQUIRE = Acquire(bytes(16), "tiny", "f" * 64, "pin", "patches")
_WEIGHTS = {"greeting": 1, "frames": 1, "away": 0.05, "links": 0.05}

DOORS = {
    "news": "tell_news",
    "moves": "move_about",
    "signals": "send_signals",
    "services": "open_services",
    "leases": "ask_leases",
    "circuits": "open_circuits",
    "tunnels": "open_tunnels",
    "mail": "post_mail",
    "greeting": "greet_badly",
    "frames": "break_frames",
    "relay": "use_relay",
    "away": "be_away",
    "links": "hold_links",
}
# What victims have to answer where they hear what is said there: services, or what the door itself counts.
SIGNS: dict[str, tuple[str, ...]] = {
    "news": (NEWS_SERVICE,),
    "moves": (NEWS_SERVICE,),
    "signals": (SIGNAL_SERVICE,),
    "services": (LEASE_SERVICE, TUNNEL_SERVICE, MEMBER_SERVICE),
    "leases": (LEASE_SERVICE, "rpc", "push"),
    "circuits": (MEMBER_SERVICE,),
    "tunnels": (TUNNEL_SERVICE,),
    "away": (),
} | {name: (name,) for name in ("mail", "greeting", "frames", "relay", "links")}
Door = Callable[[], Awaitable[int]]


class Visit(Approach):
    """Through any door, as chance has it."""

    def __init__(
        self, mallory: Mallory, targets: Sequence[Target], owner: Owner, *, pace: Pace = VIRTUAL
    ) -> None:
        super().__init__(mallory, targets, owner, pace=pace)
        self.doors: dict[str, Door] = {name: getattr(self, f"_{work}") for name, work in DOORS.items()}

    def unheard(self) -> list[str]:
        """The ways in on which no victim has answered yet."""
        heard = self.heard
        return [name for name in self.doors if not all(heard[sign] for sign in SIGNS[name])]

    async def once(self, name: str = "") -> int:
        """One volley through that door, or one by chance, and a rest; how many messages that were."""
        # what ends a session costs ten times what does not
        weights = [_WEIGHTS.get(name, 4) for name in self.doors]
        name = name or self._chance.choices(list(self.doors), weights)[0]
        try:
            count = await self.doors[name]()
        except NotHeard:
            count = 1
        await asyncio.sleep(self._pace.rest * self._chance.choice((0.0, 1.0, 1.0, 2.0)))
        return count

    # Streams.

    async def _tell_news(self) -> int:
        said = []
        for _ in range(VOLLEY):
            kind = self._chance.choice(("record", "ban", "presence", "any"))
            if kind == "any":
                said.append(self._said(self.speech.of("news")))
                continue
            self._count(f"signed.{kind}")
            if kind == "record":
                said.append(RecordNews(self._pen.some(kind)).encode())
            elif kind == "ban":
                said.append(BanNews(self._pen.some(kind)).encode())
            else:
                count = self._chance.choice((1, 3, MAX_PRESENCES))
                said.append(PresenceNews((self._pen.presence(),) * count).encode())
        return await self._tell(said)

    async def _tell(self, said: list[bytes]) -> int:
        """On the stream of news that there is with a victim, or a new one."""
        victim = self._target()
        talk = await self._talk(victim)
        number = self._news.get(victim.name)
        if number is None or number not in talk.live:
            theirs = [
                at for at, service in talk.theirs.items() if service == NEWS_SERVICE and at in talk.live
            ]
            opened = theirs[0] if theirs else talk.open(NEWS_SERVICE, {})
            if opened is None:
                return 1
            number = self._news[victim.name] = opened
        await talk.write(number, b"".join(map(self._framed, said)))
        return len(said)

    async def _move_about(self) -> int:
        """One node that is never there, and elsewhere each time: whoever believes it dials all day."""
        said = [RecordNews(self._pen.moved()).encode() for _ in range(VOLLEY // 8)]
        self.sent["signed.moved"] += len(said)
        return await self._tell(said)

    async def _send_signals(self) -> int:
        victim = self._target()
        talk = await self._talk(victim)
        others = [one.peer.raw for one in self._targets]
        for _ in range(VOLLEY // 4):
            metadata: Metadata = {}
            if self._chance.random() < 0.4:
                metadata = {SIGNAL_TO: self._chance.choice((*others, b"", bytes(32)))}
            number = talk.open(SIGNAL_SERVICE, metadata)
            if number is None:
                break
            self._count("signed.signal")
            await talk.write(number, self._pen.some("signal"), eof=True)
        return VOLLEY // 4

    async def _open_services(self) -> int:
        """Whatever the victim serves, and what nobody does, with any metadata and any first words."""
        victim = self._target()
        talk = await self._talk(victim)
        names = [*victim.services(), "", "nothing", "a" * 64]
        for _ in range(VOLLEY // 4):
            name = self._chance.choice(names)
            drawn = self._draw(Metadata)
            assert isinstance(drawn, dict)
            number = talk.open(name, drawn)
            if number is None:
                break
            self._count(f"open.{name[:16]}")
            word = self._chance.choice(list(self.speech.words))
            await talk.write(number, self._framed(self._said(word)), eof=self._chance.random() < 0.5)
            if self._chance.random() < 0.5 and number in talk.live:
                talk.session.reset(number, self._chance.randrange(1 << 32), "gone")
        return VOLLEY // 2

    async def _ask_leases(self) -> int:
        """A head that says its lines in their order, or anything; with a lease, streams that name it."""
        talk = await self._talk(self._target())
        number = talk.open(LEASE_SERVICE, {})
        if number is None:
            return 1
        count = 0
        for name in ("lease.Acquire", "lease.Reserve", "lease.Admit", "lease.Neighbour", "lease.Loaded"):
            said = self._said(self.speech.of("lease") if self._chance.random() < 0.1 else name)
            if name == "lease.Acquire" and self._chance.random() < 0.7:
                said = ACQUIRE.encode()
            elif name == "lease.Reserve" and self._chance.random() < 0.7:
                said = Reserve((self._chance.choice((1, 1 << 20, 1 << 29, 1 << 40)),)).encode()
            count += 1
            await talk.write(number, self._framed(said))
            await asyncio.sleep(self._chance.choice((0.0, 0.1)))
            if self._chance.random() < 0.1 or number not in talk.live:
                break
        count += await self._use_lease(talk, _granted(bytes(talk.heard.get(number, b""))))
        if self._chance.random() < 0.8 and number in talk.live:
            talk.session.reset(number, 1, "enough")
        return count

    async def _use_lease(self, talk: Talk, lease: bytes) -> int:
        """RPC and pushes to it, or to one that is not there."""
        for _ in range(VOLLEY // 8):
            service = self._chance.choice(("rpc", "push"))
            metadata: Metadata = {"lease": lease if self._chance.random() < 0.8 else bytes(16)}
            if self._chance.random() < 0.2:
                metadata["compressed"] = self._chance.choice((0, 1, 2, 1 << 40))
            if self._chance.random() < 0.2:
                metadata["ask"] = 1
            self._count(f"open.{service}")
            opened = talk.open(service, metadata)
            if opened is not None:
                await talk.write(opened, self._chance.randbytes(100), eof=True)
        return VOLLEY // 8

    async def _open_circuits(self) -> int:
        """Through one victim to the other, and as if from others."""
        victim = self._target()
        ids = [one.peer.raw for one in self._targets]
        asked: list[Metadata] = []
        for _ in range(self._volley()):
            name = self._chance.choice((TO, FROM))
            asked.append({name: self._chance.choice((*ids, bytes(32), b"x"))})
            self._count(f"open.onward.{name}")
        # a TLS record, or none
        head = self._chance.choice((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"", b"MESHD"))
        words = head + self._chance.randbytes(self._chance.choice((0, 30, 600)))
        return await self._open_all(victim, "onward", asked, words)

    async def _open_tunnels(self) -> int:
        asked: list[Metadata] = []
        for _ in range(self._volley()):
            self._count("open.tunnel")
            asked.append({"name": self._chance.choice((EXPOSED, EXPOSED, EXPOSED, "", "web", "a" * 64))})
            if self._chance.random() < 0.2:
                asked[-1]["ask"] = 1
        return await self._open_all(self._target(), TUNNEL_SERVICE, asked, self._chance.randbytes(100))

    # Beside a session.

    async def _post_mail(self) -> int:
        """By the mailbox of a relay, from whomever it likes to be."""
        for _ in range(VOLLEY // 4):
            post = self._target().post
            kind, blob = ("signal", self._pen.some("signal"))
            if self._chance.random() < 0.3:
                kind, blob = self._pen.any()
            self._count(f"mail.{kind}")
            if post is not None and post(blob):
                self._heard["mail"] += 1
        return VOLLEY // 4

    async def _greet_badly(self) -> int:
        """A proven link on which the greeting goes wrong."""
        victim = self._target()
        try:
            link = await victim.dial()
        except MeshdError as error:
            raise NotHeard from error
        count = 0
        try:
            for _ in range(self._chance.randint(1, 6)):
                name = self._chance.choice(("hello.Hello", self.speech.of("hello", "joining")))
                if self._chance.random() < 0.1:
                    count += 1
                    await link.send([framed(Go().encode())])
                    continue
                count += 1
                await link.send([self._framed(self._said(name))])
            async with asyncio.timeout(0.2):
                await link.receive()
            self._heard["greeting"] += 1
        except TimeoutError:
            pass
        except OVER:  # it has had enough
            self._heard["greeting"] += 1
        finally:
            await link.aclose()
        return max(1, count)

    async def _break_frames(self) -> int:
        """Raw frames in the middle of a good session: most end it."""
        victim = self._target()
        talk = await self._talk(victim)
        words = [name for name in self.speech.words if name.startswith("frame_types.")]
        count = self._chance.choice((1, 3, VOLLEY))
        said = [self._said(self._chance.choice(words)) for _ in range(count)]
        if self._chance.random() < 0.1:
            said.append(self._chance.randbytes(self._chance.choice((1, 5, 5000))))
        await talk.shout(b"".join(said))
        self._shouted.add(victim.name)
        return count

    async def _be_away(self) -> int:
        """Be gone for a while: whom its records name is dialled meanwhile."""
        for talk in self._talks.values():
            talk.over = talk.over or "away"
            await talk.link.aclose()
        await asyncio.sleep(self._pace.away)
        return 1

    async def _hold_links(self) -> int:
        """Proven, and then silent: so many at once."""
        victim = self._target()
        links = []
        try:
            for _ in range(3 * LINKS.most):
                with contextlib.suppress(MeshdError):
                    links.append(await victim.dial())
            await asyncio.sleep(0.5)
            held = sum([await _is_open(link) for link in links])
        finally:
            for link in links:
                await link.aclose()
        self._count("links")
        self._heard["links"] += held
        if held > LINKS.most:
            raise Damage(f"{victim.name} holds {held} silent links of one member")
        return 3 * LINKS.most

    async def _use_relay(self) -> int:
        """A relay's decisions, of which a member asks what it likes; the honest two keep their circuit."""
        board, now = Switchboard(SMALL, random=self._chance.randbytes), asyncio.get_running_loop().time()
        mesh = self._mallory.mesh.raw
        ids = [one.peer.raw for one in self._targets]
        for client, peer in enumerate(ids):
            board.enter(client, Identity(peer, mesh), host="192.0.2.1", seen="192.0.2.1:1", now=now)
        mine = Identity(self._mallory.key.peer.raw, self._chance.choice((mesh, b"")))
        board.enter(9, mine, host="192.0.2.2", seen="192.0.2.2:1", now=now)
        for _ in range(VOLLEY):
            name = self.speech.of("relay")
            try:
                message = decode_from_node(self._said(name))
            except MeshdError:
                continue
            self._heard["relay"] += 1
            for action in board.receive(9, message, now):
                if isinstance(action, Tell) and isinstance(action.message, Mail):
                    assert action.message.sender == mine.peer
            now += 0.1
        board.sweep(now)
        assert board.mail_bytes <= SMALL.mail_bytes and board.boxes <= SMALL.boxes
        return VOLLEY


def _granted(heard: bytes) -> bytes:
    """The id of the lease that a worker has granted in what it said, or none."""
    parser = LengthParser()
    parser.feed(heard)
    with contextlib.suppress(MeshdError):
        for message in parser.messages():
            if isinstance(said := decode_lease(message), Grant):
                return said.lease_id
    return bytes(16)


async def _is_open(link: Link) -> bool:
    """Whether the other side has not ended it; what it says meanwhile is dropped."""
    try:
        async with asyncio.timeout(0.01):
            while True:
                await link.receive()
    except TimeoutError:
        return True
    except MeshdError:
        return False
