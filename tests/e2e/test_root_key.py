"""A mesh outlives its founder's home, as docs/cli.md says: the root key goes to another machine.

By real daemons and the real command line, with members that the new founder has never met.
"""

import shutil
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode

from tests.e2e.nodes import Fleet, cli, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]


async def _done(home: Path, *words: str) -> str:
    """What this call of the command line printed; it must succeed."""
    done = await cli(home, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def _connected(node: LocalNode, *names: str) -> Status:
    """Wait until `node` is connected with exactly these peers."""

    def ready(status: Status) -> bool:
        return {peer.name for peer in status.peers if peer.state == "connected"} == set(names)

    return await node.until(ready)


def test_the_root_key_moves_to_another_home_and_the_mesh_goes_on(tmp_path: Path) -> None:
    backup = tmp_path / "root.key"

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            founder = await fleet.worker("founder")
            member = await fleet.worker("member", token=await founder.token())
            old = await _connected(member, "founder")
            await _done(founder.spec.home, "mesh", "export", str(backup))
            await founder.stop()
            fleet.forget(founder)
            shutil.rmtree(founder.spec.home)

            home = tmp_path / "restored"
            await _done(home, "mesh", "import", str(backup))
            restored = await fleet.worker("restored")
            await restored.token()
            token = await _done(home, "invite", "--uses", "2")
            await member.stop()
            fleet.forget(member)
            member = await fleet.worker("member", token=token)
            now = await _connected(member, "restored")
            assert now.node.id == old.node.id, "it keeps its identity"
            assert old.mesh is not None and now.mesh is not None and now.mesh.id == old.mesh.id

            assert (await _done(member.spec.home, "forget", "founder")).startswith("forgot founder")
            assert {peer.name for peer in (await _connected(member, "restored")).peers} == {"restored"}

            # one that was first started by itself, and so has founded a mesh that nobody is in
            alone = await fleet.worker("newcomer")
            await alone.token()
            await alone.stop()
            fleet.forget(alone)
            newcomer = await fleet.worker("newcomer", token=token)
            joined = await _connected(newcomer, "restored", "member")
            assert joined.mesh is not None and joined.mesh.id == old.mesh.id
            await _connected(member, "restored", "newcomer")

            # the restored key bans as the old one did
            await _done(home, "revoke", "newcomer", "--yes")
            await _connected(member, "restored")

    play(check())
