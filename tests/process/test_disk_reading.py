"""A disk that does not give what was written: a start says so, and a node that runs goes on."""

import errno
from itertools import cycle
from pathlib import Path

import pytest
from meshd.admin.authority import load_addresses
from meshd.base.errors import UserError
from meshd.base.tasks import first_error
from meshd.daemon.control import make_tunnels
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home

from tests.conformance.run import until
from tests.e2e.bare_node import bare_node, connected
from tests.process.failing_disk import OPEN_TO_READ, below, failing, one_file
from tests.process.state_files import CASES, Case, Scene
from tests.process.test_disk import LINKS, PLACE, errno_or_name

# the log of answers is read where a key has a limit per day: tests/unit/gateway/test_turns.py
WRITTEN_ONLY = {"lock", "logs/meshd.log", "logs/child.log", "logs/child.pid", "logs/answers.jsonl"}
WRITTEN_ONLY |= {"kept-answers/*.answer"}  # no start reads them: a client asks for one
READ = [case for case in CASES if case.name not in WRITTEN_ONLY]

BOTH = (errno.EMFILE, errno.EIO)


async def start(home: Path) -> None:
    """Until all has been read; a token that is made while no daemon runs reads the addresses."""
    place = Home(home)
    async with bare_node(place, name="node", links=LINKS) as member:
        make_tunnels(member.mesh, place)
        load_addresses(place)


@pytest.mark.parametrize(("case", "number"), list(zip(READ, cycle(BOTH), strict=False)), ids=errno_or_name)
async def test_a_start_that_cannot_read_a_file_names_it_and_takes_nothing_for_new(
    case: Case, number: int, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    place = Home(home)
    async with bare_node(place, name="node", links=LINKS) as member:
        scene = Scene.made(member, place)
        member.book.hint(KeyPair.from_seed(bytes(32)).peer, PLACE)
        if case.change is not None:
            case.change(scene)
    before = (home / case.name).read_bytes()
    with failing(one_file(case.name), number, OPEN_TO_READ) as disk:
        with pytest.raises((UserError, ExceptionGroup)) as raised:
            await start(home)
    error = first_error(raised.value)
    assert disk.hits
    assert isinstance(error, UserError)
    assert case.name in error.what and error.hint
    # the start itself makes the addresses anew, and does not read them
    assert (home / case.name).read_bytes() == before or case.name == "addresses.blob"
    await start(home)


@pytest.mark.parametrize("number", BOTH, ids=errno_or_name)
async def test_a_node_whose_disk_gives_nothing_serves_on(number: int, tmp_path: Path) -> None:
    """Numbers of records are read before they are written, and the folder is opened to be synced."""
    stranger = KeyPair.from_seed(bytes(32)).peer
    banned = KeyPair.from_seed(bytes([1]) * 32).peer

    home = tmp_path / "home"
    place = Home(home)
    async with bare_node(place, name="node", links=LINKS) as node:
        token = node.printed_token()
        assert token
        async with bare_node(tmp_path / "other", name="other", token=token, links=LINKS) as other:
            await connected(other, "node")
            inside = below(home)
            with failing(lambda path: path == home or inside(path), number, OPEN_TO_READ) as disk:
                node.book.hint(stranger, PLACE)
                node.authority.revoke_node(banned, now=1)
                node.mesh.bans_changed()
                node.local.network_changed()
                assert not place.counters.reserve_sequences(1 << 40)
                await until(lambda: {"book.blob", "revocations", "counters"} <= set(place.keeping.waiting))
                await other.mesh.ping(await connected(other, "node"), 5.0)
                await until(lambda: other.bans.why_node_banned(banned) is not None)
                assert disk.hits
            await until(lambda: not place.keeping.waiting, seconds=20.0)
    place = Home(home)
    async with bare_node(place, name="node", links=LINKS) as node:
        assert stranger in node.book.peers()
        assert node.bans.why_node_banned(banned) is not None
        assert place.counters.last_sequence() >= 1 << 40
