"""The ways in that a member has, each with what it may say there: one volley of messages at a time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from meshd.base.errors import MeshdError
from meshd.base.local_way import LOCAL, OFFERED_BYTES
from meshd.base.tasks import Owner
from meshd.devices.path_probe import PATH_PROBE_SERVICE
from meshd.link.interface import Link
from meshd.link.relayed.through_member import FROM, TO
from meshd.link.relayed.through_member import SERVICE as MEMBER_SERVICE
from meshd.peer.signals import SIGNAL_TO as SIGNAL_TO
from meshd.tunnel.user_tunnels import TUNNEL_SERVICE
from meshd.wire.capacity import CAPACITY_SERVICE
from meshd.wire.hello import Go
from meshd.wire.lease import LEASE_SERVICE, PUSH_SERVICE, RPC_SERVICE, Acquire, Grant, Reserve
from meshd.wire.lease import decode as decode_lease
from meshd.wire.message import LengthParser, framed
from meshd.wire.models import API_SERVICE, MODELS_SERVICE, PIECES_SERVICE, SERVING_SERVICE
from meshd.wire.news import MAX_PRESENCES, NEWS_SERVICE, BanNews, PresenceNews, RecordNews
from meshd.wire.signal import SIGNAL_SERVICE

from tests.hostile.approach import EXPOSED, VIRTUAL, VOLLEY, Metadata, NotHeard, Pace, Said
from tests.hostile.asking import Asking, answered_sign
from tests.hostile.damage import Damage
from tests.hostile.member import OVER, Mallory, Talk, Target
from tests.unit.head.fake_mesh import NATIVE

ACQUIRE = Acquire(bytes(16), "tiny", "f" * 64, "pin", protocol=NATIVE.protocol)
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
    "away": "be_away",
    "links": "hold_links",
    "models": "ask_models",
    "pieces": "ask_pieces",
    "serving": "watch_serving",
    "api": "call_api",
    "capacity": "ask_capacity",
    "path-probe": "fill_path",
}
ANSWERING = (
    MODELS_SERVICE,
    PIECES_SERVICE,
    SERVING_SERVICE,
    API_SERVICE,
    CAPACITY_SERVICE,
    PATH_PROBE_SERVICE,
)
# What victims have to answer where they hear what is said there: services, or what the door itself counts.
SIGNS: dict[str, tuple[str, ...]] = {
    "news": (NEWS_SERVICE,),
    "moves": (NEWS_SERVICE,),
    "signals": (SIGNAL_SERVICE,),
    "services": (TUNNEL_SERVICE, MEMBER_SERVICE),
    "leases": (LEASE_SERVICE, RPC_SERVICE, PUSH_SERVICE),
    "circuits": (MEMBER_SERVICE,),
    "tunnels": (TUNNEL_SERVICE,),
    "away": (),
}
SIGNS |= {name: (name,) for name in ("mail", "greeting", "frames", "links")}
SIGNS |= {name: (name, answered_sign(name)) for name in ANSWERING}
SILENT = frozenset({"away", "links"})  # nothing is said there
MOST_LINKS = 8  # of one member, those that are greeting included
Door = Callable[[], Awaitable[None]]


class Visit(Asking):
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

    @property
    def said(self) -> int:
        """Messages that honest nodes were given."""
        return self.sent.total()

    async def once(self, name: str = "") -> None:
        """One volley through that door, or one by chance, and a rest."""
        # what ends a session costs ten times what does not
        weights = [_WEIGHTS.get(name, 4) for name in self.doors]
        name = name or self._rng.choices(list(self.doors), weights)[0]
        with contextlib.suppress(NotHeard):
            await self.doors[name]()
        await asyncio.sleep(self._pace.rest * self._rng.choice((0.0, 1.0, 1.0, 2.0)))

    # Streams.

    async def _tell_news(self) -> None:
        await self._tell([self._news_of_any_kind() for _ in range(VOLLEY)])

    def _news_of_any_kind(self) -> Said:
        kind = self._rng.choice(("record", "ban", "presence", "any"))
        if kind == "any":
            return self._word(self.speech.of("news"))
        if kind == "record":
            said = RecordNews(self._pen.some(kind)).encode()
        elif kind == "ban":
            said = BanNews(self._pen.some(kind)).encode()
        else:
            count = self._rng.choice((1, 3, MAX_PRESENCES))
            said = PresenceNews((self._pen.presence(),) * count).encode()
        return f"signed.{kind}", self._framed(said)

    async def _tell(self, said: list[Said]) -> None:
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
                return
            number = self._news[victim.name] = opened
        await self._say(talk, number, said)

    async def _move_about(self) -> None:
        """One node that is never there, and elsewhere each time: a node that believes it dials all day."""
        said = [RecordNews(self._pen.moved()).encode() for _ in range(VOLLEY // 8)]
        await self._tell([("signed.moved", self._framed(one)) for one in said])

    async def _send_signals(self) -> None:
        victim = self._target()
        talk = await self._talk(victim)
        others = [one.peer.raw for one in self._targets]
        for _ in range(VOLLEY // 4):
            metadata: Metadata = {}
            if self._rng.random() < 0.4:
                metadata = {SIGNAL_TO: self._rng.choice((*others, b"", bytes(32)))}
            number = talk.open(SIGNAL_SERVICE, metadata)
            if number is None:
                break
            await self._say(talk, number, [("signed.signal", self._pen.some("signal"))], eof=True)

    async def _open_services(self) -> None:
        """Whatever the victim serves, and what nobody does, with any metadata and any first words."""
        victim = self._target()
        talk = await self._talk(victim)
        names = [*victim.services(), "", "nothing", "a" * 64]
        unsaid = [name for name in self.speech.words if not self.sent[name]]
        for _ in range(VOLLEY // 4):
            name = self._rng.choice(names)
            drawn = self._draw(Metadata)
            assert isinstance(drawn, dict)
            number = talk.open(name, drawn)
            if number is None:
                break
            word = self._word(self._rng.choice(unsaid or list(self.speech.words)))
            said = [(f"open.{name[:16]}", b""), word]
            await self._say(talk, number, said, eof=self._rng.random() < 0.5)
            if self._rng.random() < 0.5 and number in talk.live:
                talk.session.reset(number, self._rng.randrange(1 << 32), "gone")

    async def _ask_leases(self) -> None:
        """A head that says its lines in their order, or anything; with a lease, streams that name it."""
        talk = await self._talk(self._target())
        number = talk.open(LEASE_SERVICE, {})
        if number is None:
            return
        order = ("Acquire", "Reserve", "Admit", "Neighbour", "Introduced", "Loaded")
        for name in (f"lease.{word}" for word in order):
            said = self._word(self.speech.of("lease") if self._rng.random() < 0.1 else name)
            if name == "lease.Acquire" and self._rng.random() < 0.7:
                said = name, self._framed(ACQUIRE.encode())
            elif name == "lease.Reserve" and self._rng.random() < 0.7:
                amount = self._rng.choice((1, 1 << 20, 1 << 29, 1 << 40))
                said = name, self._framed(Reserve((amount,)).encode())
            await self._say(talk, number, [said])
            await asyncio.sleep(self._rng.choice((0.0, 0.1)))
            if self._rng.random() < 0.1 or number not in talk.live:
                break
        await self._use_lease(talk, _granted(bytes(talk.heard.get(number, b""))))
        if self._rng.random() < 0.8 and number in talk.live:
            talk.session.reset(number, 1, "enough")

    async def _use_lease(self, talk: Talk, lease: bytes) -> None:
        """RPC and pushes to it, or to one that is not there."""
        for _ in range(VOLLEY // 8):
            service = self._rng.choice(("rpc", "push"))
            metadata: Metadata = {"lease": lease if self._rng.random() < 0.8 else bytes(16)}
            if self._rng.random() < 0.2:
                metadata["compressed"] = self._rng.choice((0, 1, 2, 1 << 40))
            if self._rng.random() < 0.2:
                metadata["ask"] = 1
            if service == "push" and self._rng.random() < 0.2:
                metadata[LOCAL] = self._rng.randbytes(
                    self._rng.choice((0, OFFERED_BYTES - 1, OFFERED_BYTES, 500))
                )
            opened = talk.open(service, metadata)
            if opened is not None:
                await self._say(talk, opened, [(f"open.{service}", self._rng.randbytes(100))], eof=True)

    async def _open_circuits(self) -> None:
        """Through one victim to the other, and as if from others."""
        victim = self._target()
        ids = [one.peer.raw for one in self._targets]
        asked: list[Metadata] = []
        for _ in range(self._volley()):
            name = self._rng.choice((TO, FROM))
            asked.append({name: self._rng.choice((*ids, bytes(32), b"x"))})
        # a TLS record, or none
        head = self._rng.choice((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"", b"MESHD"))
        words = head + self._rng.randbytes(self._rng.choice((0, 30, 600)))
        await self._open_all(victim, MEMBER_SERVICE, asked, words)

    async def _open_tunnels(self) -> None:
        asked: list[Metadata] = []
        for _ in range(self._volley()):
            asked.append({"name": self._rng.choice((EXPOSED, EXPOSED, EXPOSED, "", "web", "a" * 64))})
            if self._rng.random() < 0.2:
                asked[-1]["ask"] = 1
        await self._open_all(self._target(), TUNNEL_SERVICE, asked, self._rng.randbytes(100))

    # Beside a session.

    async def _post_mail(self) -> None:
        """Send by the mailbox of a relay, from whomever it likes to be."""
        for _ in range(VOLLEY // 4):
            post = self._target().post
            kind, blob = ("signal", self._pen.some("signal"))
            if self._rng.random() < 0.3:
                kind, blob = self._pen.any()
            if post is not None and post(blob):
                self._count(f"mail.{kind}")
                self._heard["mail"] += 1

    async def _greet_badly(self) -> None:
        """A proven link on which the greeting goes wrong."""
        victim = self._target()
        try:
            link = await victim.dial()
        except MeshdError as error:
            raise NotHeard from error
        try:
            for _ in range(self._rng.randint(1, 6)):
                name = self._rng.choice(("hello.Hello", self.speech.of("hello")))
                name, said = self._word(name)
                if self._rng.random() < 0.1:
                    name, said = "hello.Go", framed(Go().encode())
                await link.send([said])
                self._count(name)
            async with asyncio.timeout(0.2):
                await link.receive()
            self._heard["greeting"] += 1
        except TimeoutError:
            pass
        except OVER:  # it has had enough
            self._heard["greeting"] += 1
        finally:
            await link.aclose()

    async def _break_frames(self) -> None:
        """Raw frames in the middle of a good session: most end it."""
        victim = self._target()
        talk = await self._talk(victim)
        words = [name for name in self.speech.words if name.startswith("frame.")]
        count = self._rng.choice((1, 3, VOLLEY))
        names = self._rng.choices(words, k=count)
        said = [self.speech.say(name) for name in names]
        if self._rng.random() < 0.1:
            said.append(self._rng.randbytes(self._rng.choice((1, 5, 5000))))
        if await talk.shout(b"".join(said)):
            self.sent.update(names)
        self._shouted.add(victim.name)

    async def _be_away(self) -> None:
        """Be gone for a while: whom its records name is dialled meanwhile."""
        for talk in self._talks.values():
            talk.over = talk.over or "away"
            await talk.link.aclose()
        await asyncio.sleep(self._pace.away)

    async def _hold_links(self) -> None:
        """Proven, and then silent: so many at once."""
        victim = self._target()
        links, loop = [], asyncio.get_running_loop()
        try:
            for _ in range(3 * MOST_LINKS):
                with contextlib.suppress(MeshdError):
                    links.append(await victim.dial())
            await asyncio.sleep(0.5)
            until = loop.time() + self._pace.patience
            held = sum([await _is_open(link) for link in links])
            while held > MOST_LINKS and loop.time() < until:
                held = sum([await _is_open(link) for link in links])
        finally:
            for link in links:
                await link.aclose()
        self._heard["links"] += held
        if held > MOST_LINKS:
            raise Damage(f"{victim.name} holds {held} silent links of one member")


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
    """Return True until the other side has ended it; what it says meanwhile is dropped."""
    try:
        async with asyncio.timeout(0.01):
            while True:
                await link.receive()
    except TimeoutError:
        return True
    except MeshdError:
        return False
