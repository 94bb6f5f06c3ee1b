"""An inviter aims a node at a host outside the mesh: what arrives there is bounded, and the node lives on."""

import json
import secrets
import time
from pathlib import Path

from meshd.admin.authority import Authority
from meshd.base.peer_limits import DIALS_TO_HOST_OF_ISSUER
from meshd.identity.keystore import Home
from meshd.wire.address import Candidate

from tests.netns.agent import Settings, agent
from tests.netns.programs import running
from tests.netns.space import Namespace
from tests.netns.world import World

SECONDS = 14.0
PORT = 17430
BYTES_OF_DIAL = 4 * 1280  # QUIC Initials of one attempt before it is given up; a SYN is far less

RULES = """
table inet seen {{
    counter syns {{ }}
    counter total {{ }}
    chain input {{
        type filter hook input priority 0;
        ip saddr {victim} counter name total
        ip saddr {victim} tcp flags & (syn | ack) == syn counter name syns
        ip saddr {victim} udp dport 1-65535 drop
    }}
}}
"""


def token_of_inviter(home: Path, host: str) -> str:
    """Found a mesh in `home`; return a token with which a member may invite others."""
    folder = Home(home)
    folder.found_mesh(now=int(time.time()))
    reply = Authority.load(folder).invite(
        now=int(time.time()),
        expires_s=3600,
        uses=1,
        roles=["use", "work", "invite"],
        secret=secrets.token_bytes(16),
        candidates=[Candidate(host, PORT)],
    )
    return reply.token


def counted(space: Namespace, name: str) -> tuple[int, int]:
    """Return packets and bytes that this counter has seen."""
    listed = json.loads(space.nft_listing("counter", "inet", "seen", name))
    [counter] = [item["counter"] for item in listed["nftables"] if "counter" in item]
    return counter["packets"], counter["bytes"]


def test_a_host_outside_gets_few_dials_of_made_up_members(world: World, tmp_path: Path) -> None:
    """With a rate for each made-up member alone, 165 SYNs and 629 kB arrived in twice as long."""
    here, there, outside = world.public("victim"), world.public("inviter"), world.public("outside")
    outside.space.nft(RULES.format(victim="{" + ", ".join(here.v4) + "}"))
    home = tmp_path / "victim"
    token = token_of_inviter(home, here.v4[0])
    with agent(here.space, home, Settings(name="victim", port=PORT)) as victim:
        words = ("-m", "tests.netns.aiming", str(tmp_path / "inviter"), token, outside.v4[0])
        with running(there.space, *words, home=tmp_path / "logs"):
            victim.connected()
            victim.ask("idle", for_seconds=SECONDS)
            syns, data = counted(outside.space, "syns")[0], counted(outside.space, "total")[1]
            victim.connected()
    dials = DIALS_TO_HOST_OF_ISSUER.burst + DIALS_TO_HOST_OF_ISSUER.per_second * SECONDS
    assert 0 < syns <= dials, f"{syns} SYNs, {data} bytes"
    assert data <= dials * BYTES_OF_DIAL, f"{syns} SYNs, {data} bytes"
