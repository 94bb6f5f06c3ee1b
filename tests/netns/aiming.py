"""An inviter that aims others at a host outside the mesh: `python -m tests.netns.aiming HOME TOKEN HOST`.

It makes up 80 members of its own, and says again and again that all of them are at HOST, at other ports each
time. Prints a line when the first records are out; ends with its standard input.
"""

import asyncio
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from meshd.config.forms import HostPort
from meshd.config.tree import LinksConfig
from meshd.daemon.member_node import MemberNode
from meshd.identity.keys import KeyPair
from meshd.identity.membership import Chain, Role, issue
from meshd.identity.record import PeerRecord
from meshd.wire.address import Candidate

from tests.e2e.bare_node import bare_node, connected

KEYS = 80
PLACES = 16  # that each names, half of them for QUIC
ROUND_SECONDS = 1.0
FIRST_PORT = 1024
PORTS = 60_000


def made_up(member: MemberNode) -> tuple[KeyPair, Chain]:
    """A key that this inviter has admitted, and that belongs to nobody."""
    key = KeyPair.from_seed(secrets.token_bytes(32))
    mine = member.membership.chain
    leaf = issue(
        signer=member.handshake().credentials.key,
        mesh=member.membership.mesh,
        node=key.peer,
        roles={Role.USE, Role.WORK},
        serial=secrets.token_bytes(16),
        invite=b"",
        issued_at=0,
    )
    return key, Chain((leaf, mine.leaf), mine.root)


def records(peers: Sequence[tuple[KeyPair, Chain]], host: str, turn: int) -> list[PeerRecord]:
    """Records of all `peers` that name ports of `host` which no turn before has named."""
    made = []
    for number, (key, chain) in enumerate(peers):
        first = (turn * len(peers) + number) * PLACES
        ports = [FIRST_PORT + (first + place) % PORTS for place in range(PLACES)]
        candidates = [
            Candidate(host, port, "udp" if place % 2 else "tcp") for place, port in enumerate(ports)
        ]
        made.append(
            PeerRecord.sign(
                key,
                chain=chain,
                name=f"made-up-{number}",
                role="worker",
                sequence=turn + 1,
                candidates=tuple(candidates),
            )
        )
    return made


async def aim(home: Path, token: str, host: str) -> None:
    """Join, and tell of made-up members until standard input ends."""
    links = LinksConfig(listen=HostPort("", 17430), stun=(), no_mdns=True, no_portmap=True)
    async with bare_node(home, token=token, name="inviter", links=links) as member:
        await connected(member, "victim")
        peers = [made_up(member) for _ in range(KEYS)]
        ends = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, ends.set)
        turn = 0
        while not ends.is_set():
            for record in records(peers, host, turn):
                member.book.add(record)
            member.mesh.record_changed()
            if not turn:
                sys.stdout.write("aimed\n")
                sys.stdout.flush()
            turn += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(ROUND_SECONDS):
                    await ends.wait()


if __name__ == "__main__":
    asyncio.run(aim(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
