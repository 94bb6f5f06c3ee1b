"""A disk that takes nothing: the node lives on, nothing is half written, and all is written in the end."""

import asyncio
import errno
import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pytest
from meshd.base.errors import MeshdError, UserError
from meshd.config.forms import HostPort
from meshd.config.tree import LinksConfig
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home
from meshd.peer.local_member import BLOCK, Numbering
from meshd.relay import run as relay
from meshd.relay.run import RelaySettings
from meshd.wire.address import Candidate

from tests.conformance.run import until
from tests.e2e.bare_node import bare_node, connected
from tests.process import cache_files
from tests.process.cache_files import CACHE, RELAY
from tests.process.failing_disk import ERRNOS, STAGES, below, failing
from tests.process.state_files import CASES, Case, Scene, listing, result

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "disk.md"
LINKS = LinksConfig(listen=HostPort("127.0.0.1", 0), kinds=("tcp",), stun=(), no_mdns=True)
PLACE = (Candidate("192.0.2.1", 17430),)

by_errno = pytest.mark.parametrize("number", ERRNOS, ids=lambda number: errno.errorcode[number])


def _in_turn(all_of_them: Sequence[object]) -> list[tuple[object, int]]:
    """Give each one errno: what writes a state file tells none apart; state_files.py tries all with each."""
    return list(zip(all_of_them, cycle(ERRNOS), strict=False))


def errno_or_name(value: object) -> str:
    return errno.errorcode[value] if isinstance(value, int) else str(getattr(value, "name", value))


@pytest.mark.parametrize(("case", "number"), _in_turn(CASES), ids=errno_or_name)
async def test_each_file_with_one_errno(case: Case, number: int, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    async with bare_node(home, name="node", links=LINKS) as member:
        assert await result(case, Scene.made(member, home), number) == case.result


def test_the_list_in_the_docs_is_what_was_found() -> None:
    """Test the list of `python -m tests.process.state_files` against the results of the test above."""
    assert listing(CASES, [[case.result] * len(ERRNOS) for case in CASES]) in PAGE.read_text(encoding="utf-8")


# a full disk is a case of its own where models are fetched (library/disk.py)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno_or_name)
@pytest.mark.parametrize("case", [*CACHE, *RELAY], ids=errno_or_name)
def test_each_file_of_a_cache_and_of_a_relay(case: cache_files.Case, number: int, tmp_path: Path) -> None:
    assert cache_files.result(case, tmp_path, number) == case.result


@pytest.mark.parametrize("cases", [CACHE, RELAY], ids=["cache", "relay"])
def test_their_lists_in_the_docs_are_what_was_found(cases: Sequence[cache_files.Case]) -> None:
    """Test the lists of `python -m tests.process.cache_files` against the results of the test above."""
    assert listing(cases, [[case.result] * len(ERRNOS) for case in cases]) in PAGE.read_text(encoding="utf-8")


def test_everything_below_a_cache_is_in_the_table() -> None:
    """A new one needs a case in cache_files.py."""
    folders = (ROOT / "meshd", ROOT / "tests/bench")
    sources = "".join(one.read_text(encoding="utf-8") for place in folders for one in place.rglob("*.py"))
    named = set(re.findall(r'\bcache / "([a-z-]+)"', sources))
    assert named == {case.name.partition("/")[0] for case in CACHE}


@by_errno
@pytest.mark.parametrize("folder", ["state", "state/relay"])
def test_a_relay_whose_folder_cannot_be_made_says_so(folder: str, number: int, tmp_path: Path) -> None:
    settings = RelaySettings(home=tmp_path / "state" / "relay", host="127.0.0.1", log_level="error")
    with failing(lambda path: path == tmp_path / folder, number, "open") as disk:
        with pytest.raises(UserError, match="state") as raised:
            relay.run(settings, print)
    assert disk.hits and raised.value.hint


async def test_every_file_that_a_node_writes_is_in_the_table(tmp_path: Path) -> None:
    """A new one needs a case in state_files.py."""
    home = tmp_path / "home"
    place = Home(home)
    async with bare_node(place, name="node", links=LINKS) as member:
        Scene.made(member, place)
        member.book.hint(KeyPair.from_seed(bytes(32)).peer, PLACE)
        member.local.network_changed()
    written = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert written <= {case.name for case in CASES}
    assert len(written) > 8


@pytest.mark.parametrize(("stage", "number"), _in_turn(STAGES), ids=errno_or_name)
async def test_a_node_whose_disk_takes_nothing_serves_on(number: int, stage: str, tmp_path: Path) -> None:
    stranger = KeyPair.from_seed(bytes(32)).peer
    banned = KeyPair.from_seed(bytes([1]) * 32).peer

    home = tmp_path / "home"
    place = Home(home)
    async with bare_node(place, name="node", links=LINKS) as node:
        token = node.printed_token()
        assert token
        async with bare_node(tmp_path / "other", name="other", token=token, links=LINKS) as other:
            await connected(other, "node")
            with failing(below(home), number, stage) as disk:
                node.book.hint(stranger, PLACE)
                node.authority.revoke_node(banned, now=1)
                node.mesh.bans_changed()
                node.local.network_changed()
                with pytest.raises(MeshdError, match="the inviter cannot save"):
                    async with bare_node(tmp_path / "late", name="late", token=token, links=LINKS):
                        pass
                await until(lambda: {"book.blob", "revocations"} <= set(place.keeping.waiting))
                await other.mesh.ping(await connected(other, "node"), 5.0)
                await until(lambda: other.bans.why_node_banned(banned) is not None)
                assert disk.hits
            await until(lambda: not place.keeping.waiting, seconds=20.0)
            async with bare_node(tmp_path / "late", name="late", token=token, links=LINKS) as late:
                await connected(late, "node")
    assert not list(home.glob(".*.tmp"))
    async with bare_node(home, name="node", links=LINKS) as node:
        assert stranger in node.book.peers()
        assert node.bans.why_node_banned(banned) is not None


async def test_a_restart_on_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    """Its record is newer all the same: what others know of it is not believed any more."""

    home = tmp_path / "home"
    async with bare_node(home, name="node", links=LINKS) as node:
        before = node.local.record.sequence
    await asyncio.sleep(1.1)  # the clock has to move on: it is what the numbers come from then
    with failing(below(home), errno.ENOSPC, "write"):
        place = Home(home)
        async with bare_node(place, name="node", links=LINKS) as node:
            assert node.local.record.sequence > before
            assert "counters" in place.keeping.waiting


def test_a_number_is_never_given_out_twice_whatever_the_disk_does() -> None:
    noted = [0]
    takes = True

    def reserve(number: int) -> bool:
        if takes:
            noted[0] = max(noted[0], number)
        return takes

    given: list[int] = []
    for start in range(4):
        takes = True
        numbering = Numbering(reserve, last=noted[0], now=1000)  # a clock that stands still
        takes = start % 2 == 0
        for _ in range(3 * BLOCK):
            number = numbering.take()
            if number is None:
                assert not takes
                break
            given.append(number)
    assert len(given) == len(set(given)) > 6 * BLOCK
    assert given == sorted(given)
