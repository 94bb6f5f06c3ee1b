"""Many proven links of one member that say nothing, over real TCP."""

import asyncio
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.identity.proof import Credentials
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.tcp.links import TcpDialer
from meshd.wire.dialable import trusted

from tests.conformance.run import open_files, run, until
from tests.unit.daemon.test_joining import Machine, token_of

MANY = 48


def test_silent_links_of_one_member_hold_few_descriptors(tmp_path: Path) -> None:
    async def work() -> None:
        founder, guest = Machine(tmp_path, "founder"), Machine(tmp_path, "guest")
        async with founder.live() as victim:
            member = await guest.enter(token_of(victim))
            member.mesh_port.close()
            credentials = Credentials(guest.key, member.membership.chain)
            handshake = HandshakeContext(credentials=credentials, mesh=member.membership.mesh)
            places = trusted(victim.mesh_port.listener.candidates())
            before = open_files()
            async with Owner() as owner:

                async def silent() -> None:
                    link = await TcpDialer(lambda: handshake).dial(founder.key.peer, places)
                    try:
                        await asyncio.Event().wait()
                    finally:
                        await link.aclose()

                for _ in range(MANY):
                    owner.start(silent(), name="silent")
                    await asyncio.sleep(0.02)  # fewer at the door than it has places for strangers
                # our ends stay open; of theirs there are few
                await until(lambda: open_files() <= before + MANY + 8, seconds=5.0)
                assert victim.mesh.peers()
                owner.cancel()

    run(work())
