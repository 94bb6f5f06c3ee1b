"""The hostile member as a process: `python -m tests.hostile.attack HOME SEED SECONDS NODE...`.

It joins with the ordinary token in MESHD_JOIN, waits until it knows the nodes of these names, and then says
whatever it can (doors.py) over real links. Prints `ready`, waits for a line, prints `begun` when the seconds
begin, and in the end how many messages that were.
"""

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from meshd.base import log
from meshd.base.tasks import Owner
from meshd.config.forms import HostPort
from meshd.config.tree import LinksConfig
from meshd.identity.keys import PeerId
from meshd.link.interface import Link
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.tcp.links import TcpDialer
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.e2e.bare_node import bare_node, connected
from tests.hostile.approach import Pace
from tests.hostile.damage import Damage
from tests.hostile.doors import ANSWERING, Visit
from tests.hostile.honest import say
from tests.hostile.member import Mallory, Target

SERVICES = ("news", "signal", "onward", "tunnel", "lease", "rpc", "push")
PACE = Pace(rest=0.0, away=1.0, patience=3.0)


def _dialling(handshake: HandshakeContext, peer: PeerId, place: Candidate) -> Callable[[], Awaitable[Link]]:
    async def dial() -> Link:
        return await TcpDialer(lambda: handshake).dial(peer, trusted([place]))

    return dial


async def _attack(home: Path, seed: int, seconds: float, names: list[str]) -> None:
    links = LinksConfig(
        listen=HostPort("127.0.0.1", 0), stun=(), no_mdns=True, no_portmap=True, kinds=("tcp",)
    )
    async with bare_node(home, token=os.environ["MESHD_JOIN"], name="mallory", links=links) as member:
        targets, handshake = [], member.handshake()
        for name in names:
            peer = await connected(member, name)
            record = member.book.record(peer)
            assert record is not None
            place = next(one for one in record.candidates if one.proto == "tcp")
            targets.append(Target(name, peer, lambda: SERVICES, _dialling(handshake, peer, place)))
        mallory = Mallory(
            member.handshake().credentials.key,
            member.membership.chain,
            member.membership.mesh,
            member.local.record.encode(),
            random.Random(seed),
        )
        rng = mallory.rng
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    loop = asyncio.get_running_loop()
    async with Owner() as owner:
        visit = Visit(mallory, targets, owner, pace=PACE)
        for name in visit.speech.words:  # no search while its sessions are open, which would stand still
            visit.speech.good(name)
        until = loop.time() + seconds
        say("begun")
        try:
            for closed in ("mail", "leases", *ANSWERING):  # there is no relay, and the nodes have no role
                visit.doors.pop(closed)
            while loop.time() < until:
                unheard = visit.unheard()
                door = rng.choice(unheard) if unheard and rng.random() < 0.5 else ""
                await visit.once(door)
            say(f"said {visit.said}, unheard {visit.unheard()}")
        except Damage as damage:
            say(str(damage))
        owner.cancel()


if __name__ == "__main__":
    log.set_up(level="error")
    asyncio.run(_attack(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
