"""A mesh outlives its founder's home, and nodes outlive old backups of theirs (docs/security.md, Backup).

By real daemons and the real command line.
"""

import shutil
import time
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode
from meshd.identity.keystore import Home

from tests.e2e.nodes import Fleet, cli, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

THREE_YEARS = 3 * 365 * 86_400


async def _done(node: LocalNode | Path, *words: str) -> str:
    """Return what this call of the command line printed; it must succeed."""
    home = node if isinstance(node, Path) else node.spec.home
    done = await cli(home, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def _connected(node: LocalNode, *names: str) -> Status:
    """Wait until `node` is connected with exactly these peers."""

    def ready(status: Status) -> bool:
        return {peer.name for peer in status.peers if peer.state == "connected"} == set(names)

    return await node.until(ready)


async def _end(fleet: Fleet, node: LocalNode) -> None:
    await node.stop()
    fleet.forget(node)


async def _lose(fleet: Fleet, node: LocalNode) -> None:
    """The machine is gone, with everything on it."""
    await _end(fleet, node)
    shutil.rmtree(node.spec.home)


def _mesh(status: Status) -> str:
    assert status.mesh is not None
    return status.mesh.id


def test_the_root_key_moves_to_another_home_and_the_mesh_goes_on(tmp_path: Path) -> None:
    backup = tmp_path / "root.key"

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            founder = await fleet.worker("founder")
            first = await founder.token()
            member = await fleet.worker("member", token=first)
            outcast = await fleet.worker("outcast", token=first)
            old = await _connected(member, "founder", "outcast")
            assert "no_backup" in {warning.code for warning in (await founder.status()).warnings}
            await _done(founder, "mesh", "export", str(backup))
            assert "no_backup" not in {warning.code for warning in (await founder.status()).warnings}
            await _done(founder, "revoke", "outcast", "--yes")
            lost = await _connected(member, "founder")
            await _lose(fleet, founder)

            # A node that its user has started too early, and so has founded a mesh that nobody is in.
            home = tmp_path / "restored"
            early = await fleet.worker("restored")
            await early.token()
            await _end(fleet, early)
            await _done(home, "mesh", "import", str(backup))
            restored = await fleet.worker("restored")
            await restored.token()
            token = await _done(restored, "invite", "--uses", "2")
            await _end(fleet, member)
            member = await fleet.worker("member", token=token)
            now = await _connected(member, "restored")
            assert now.node.id == old.node.id, "it keeps its identity"
            assert _mesh(now) == _mesh(old)

            assert (await _done(member, "forget", "founder")).startswith("forgot founder")
            assert {peer.name for peer in (await _connected(member, "restored")).peers} == {"restored"}

            alone = await fleet.worker("newcomer")
            await alone.token()
            await _end(fleet, alone)
            newcomer = await fleet.worker("newcomer", token=token)
            joined = await _connected(newcomer, "restored", "member")
            assert _mesh(joined) == _mesh(old)
            await _connected(member, "restored", "newcomer")

            # The restored founder knows the bans of the lost one from the member, and lifts them.
            banned = await _done(restored, "unban")
            [of_outcast] = [peer.id for peer in old.peers if peer.name == "outcast"]
            assert of_outcast[:16] in banned
            await _done(restored, "unban", of_outcast)
            await _end(fleet, outcast)
            await fleet.worker("outcast", token=token)
            await _connected(member, "restored", "newcomer", "outcast")

            # It bans as the old one did, also the old one itself.
            await _done(restored, "revoke", "newcomer", "--yes")
            await _connected(member, "restored", "outcast")
            [of_founder] = [peer.id for peer in lost.peers if peer.name == "founder"]
            await _done(restored, "revoke", of_founder, "--yes")
            await member.until(lambda status: all(peer.name != "founder" for peer in status.peers))

    play(check())


def test_of_two_founders_either_may_be_lost(tmp_path: Path) -> None:
    """The second one is a member that imports the key: when the first is gone, nobody has to do anything."""
    backup = tmp_path / "root.key"

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            first = await fleet.worker("first")
            token = await first.token()
            second = await fleet.worker("second", token=token)
            member = await fleet.worker("member", token=token)
            guest = await fleet.worker("guest", token=token)
            before = await _connected(second, "first", "member", "guest")

            await _done(first, "mesh", "export", str(backup))
            refused = await cli(second.spec.home, "mesh", "import", str(backup))
            assert refused.returncode == 1 and "meshd stop" in refused.stderr
            await _end(fleet, second)
            await _done(second, "mesh", "import", str(backup))
            second = await fleet.worker("second")
            after = await _connected(second, "first", "member", "guest")
            assert (after.node.id, _mesh(after)) == (before.node.id, _mesh(before))

            # Each undoes what the other one has said.
            guest_id = next(peer.id for peer in before.peers if peer.name == "guest")
            await _done(first, "revoke", "guest", "--yes")
            await _connected(member, "first", "second")
            await _connected(second, "first", "member")
            await _done(second, "unban", guest_id)
            await _end(fleet, guest)
            guest = await fleet.worker("guest")
            await _connected(member, "first", "second", "guest")

            await _lose(fleet, first)
            await _connected(member, "second", "guest")
            await _done(second, "revoke", "guest", "--yes")
            await _connected(member, "second")
            await fleet.worker("newcomer", token=await _done(second, "invite"))
            await _connected(member, "second", "newcomer")

    play(check())


@pytest.mark.parametrize("clock_was_ahead", [False, True])
def test_a_home_from_an_old_backup_is_the_same_node(tmp_path: Path, clock_was_ahead: bool) -> None:
    """Its counters, bans and addresses are of before. Members take its new records, and tell it of bans.

    Each start reserves numbers for an hour: a node that was restarted often is ahead of its clock, too.
    """

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            founder = await fleet.worker("founder")
            token = await founder.token()
            member = await fleet.worker("member", token=token)
            await fleet.worker("guest", token=token)
            before = await _connected(member, "founder", "guest")
            await _end(fleet, member)
            backup = tmp_path / "backup"
            shutil.copytree(member.spec.home, backup, ignore=shutil.ignore_patterns("*.sock"))

            # Its life after the backup.
            if clock_was_ahead:
                Home(member.spec.home).counters.reserve_sequences(int(time.time()) + THREE_YEARS)
            for _ in range(2):
                member = await fleet.worker("member")
                await _connected(member, "founder", "guest")
                await _end(fleet, member)
            await _done(founder, "revoke", "guest", "--yes")

            shutil.rmtree(member.spec.home)
            backup.rename(member.spec.home)
            member = await fleet.worker("member")
            now = await _connected(member, "founder")
            assert now.node.id == before.node.id
            guest_id = next(peer.id for peer in before.peers if peer.name == "guest")
            assert guest_id[:16] in await _done(founder, "unban")

            # Its record of today counts.
            await _done(member, "pause")
            await founder.until(
                lambda status: any(peer.name == "member" and peer.paused for peer in status.peers)
            )
            assert (await member.status()).warnings == (), "it is no copy"
            log = (member.spec.home / "logs" / "meshd.log").read_text()
            assert "the state was put back" in log

    play(check())


def test_a_member_that_reaches_nobody_says_what_to_do_and_that_helps(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            founder = await fleet.worker("founder")
            member = await fleet.worker("member", token=await founder.token())
            before = await _connected(member, "founder")
            for node in (member, founder):
                await _end(fleet, node)
            member = await fleet.worker("member")
            alone = await member.until(lambda status: bool(status.warnings))
            [told] = alone.warnings
            assert told.code == "nobody_reached" and "restart this node, which stays a member" in told.hint
            await _end(fleet, member)
            founder = await fleet.worker("founder")  # listens on another port than before
            await founder.token()
            member = await fleet.worker("member", token=await _done(founder, "invite"))
            now = await _connected(member, "founder")
            assert (now.node.id, _mesh(now), now.warnings) == (before.node.id, _mesh(before), ())

    play(check())
