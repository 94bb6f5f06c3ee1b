"""Bring the hostile member to a victim: a session where it gets one, streams, a count of all it said."""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.wire.message import framed

from tests.hostile.draw import Draw, Pool
from tests.hostile.member import Mallory, Talk, Target
from tests.hostile.signed import Pen
from tests.hostile.words import Speech

VOLLEY = 40
FLOOD = 400
TOPICS = ("webrtc", "quic", "punch", "birthday")
EXPOSED = "db"  # a service that the hostile member may use
Metadata = dict[str, str | int | bytes]
Said = tuple[str, bytes]  # which kind of message, and its bytes


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds after a volley, and until it comes again where it is not wanted.

    `patience`: for a victim to do what it must, in real time.
    """

    rest: float
    away: float
    patience: float = 0.0


VIRTUAL = Pace(rest=0.5, away=20.0)


class NotHeard(Exception):
    """A victim takes no link of the hostile member now."""


class Approach:
    """The hostile member's dealings with both victims.

    `sent` counts by kind what was given to an honest node: not what there was no stream for, nor what a
    victim did not take.
    """

    def __init__(
        self, mallory: Mallory, targets: Sequence[Target], owner: Owner, *, pace: Pace = VIRTUAL
    ) -> None:
        self._mallory = mallory
        self._targets = targets
        self._rng = rng = mallory.rng
        self._owner = owner
        self._pace = pace
        ids = tuple(target.peer for target in targets)
        blobs = (*(one.raw for one in ids), mallory.key.peer.raw, mallory.chain.encode(), mallory.record)
        names = (*(target.name for target in targets), EXPOSED, *TOPICS, "record", "lease")
        self._draw = Draw(rng, Pool(blobs=blobs, texts=names))
        self.speech = Speech(rng, self._draw)
        self._pen = Pen(
            rng,
            self._draw,
            self.speech,
            key=mallory.key,
            chain=mallory.chain,
            mesh=mallory.mesh,
            victims=ids,
        )
        self._talks: dict[str, Talk] = {}
        self._news: dict[str, int] = {}
        self.sent: Counter[str] = Counter()
        self._heard: Counter[str] = Counter()
        self._shouted: set[str] = set()  # at whom the frames of the session that there is were broken
        self.closed: deque[str] = deque(maxlen=20)  # why victims ended a session

    # Getting in.

    def _target(self) -> Target:
        return self._rng.choice(self._targets)

    async def _talk(self, victim: Target) -> Talk:
        """The session that there is, or a new one. Raises what the victim's no looks like."""
        talk = self._talks.get(victim.name)
        if talk is not None and not talk.over:
            return talk
        if talk is not None:
            self.closed.append(talk.over)
            self._heard.update(talk.answered)
            self._heard["frames"] += victim.name in self._shouted
            self._shouted.discard(victim.name)
            self._news.pop(victim.name, None)
        try:
            talk = await self._mallory.greeted(victim)
        except (MeshdError, TimeoutError) as error:
            self.closed.append(str(error))
            await asyncio.sleep(self._pace.away)
            raise NotHeard from error
        self._talks[victim.name] = talk
        # one that breaks a rule is soon not listened to any more: now and then it keeps them for a while
        self._pen.broken = self.speech.broken = self._rng.choice((0.0, 0.02, 0.6))
        self._owner.start(talk.run(), name=f"hostile talk with {victim.name}")
        await asyncio.sleep(0.05)
        return talk

    @property
    def heard(self) -> Counter[str]:
        """Return what victims took or refused, by service; elsewhere what shows that they listened."""
        return sum((talk.answered for talk in self._talks.values() if not talk.over), +self._heard)

    def _count(self, name: str) -> None:
        self.sent[name] += 1

    def _word(self, name: str) -> Said:
        return name, self._framed(self.speech.say(name))

    async def _say(self, talk: Talk, number: int, words: Sequence[Said], *, eof: bool = False) -> None:
        """In one piece, on a stream that there is."""
        taken = await talk.write(number, b"".join(data for _, data in words), eof=eof)
        for name, data in words:
            taken -= len(data)
            if taken < 0 or talk.over:
                break
            self._count(name)

    def _framed(self, message: bytes) -> bytes:
        """Behind its length, which is nearly always true."""
        if self._rng.random() < 0.995:
            return framed(message)
        return self._rng.choice((0, 1, len(message) + 1, 1 << 17, 0xFFFFFFFF)).to_bytes(4, "big") + message

    def _volley(self) -> int:
        return VOLLEY // 4 if self._rng.random() < 0.95 else FLOOD

    async def _open_all(self, victim: Target, service: str, asked: list[Metadata], words: bytes) -> None:
        """So many streams in one breath, and a word on each; most are reset after a while."""
        talk = await self._talk(victim)
        opened = [number for one in asked if (number := talk.open(service, one)) is not None]
        for number in opened:
            await self._say(talk, number, [(f"open.{service}", words)])
        await asyncio.sleep(self._rng.choice((0.0, 0.1)))
        for number in opened:
            if number in talk.live and self._rng.random() < 0.9:
                talk.session.reset(number, 1, "enough")
