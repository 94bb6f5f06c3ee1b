"""What a node knows of its mesh outlives it, whenever it is ended."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet, ban
from meshd.rendezvous.book import BOOK_BLOB, WRITE_SECONDS, KeptBook
from meshd.wire.address import Candidate

from tests.unit.identity.cast import FOUNDER, MESH, ROOT, WORKER, WORKER_CHAIN

PLACE = (Candidate("192.0.2.1", 17430),)
SECONDS = 20.0


def peer(number: int) -> PeerId:
    return KeyPair.from_seed(bytes([number]) * 32).peer


def kept_in(home: Home, bans: RevocationSet | None = None) -> KeptBook:
    return KeptBook(home, me=FOUNDER.peer, mesh=MESH, bans=bans or RevocationSet(MESH))


def known(home: Home) -> set[PeerId]:
    """By a node that starts anew."""
    return set(kept_in(home).book.peers())


class SlowDisk:
    """A home's `write_blob`: the first write, in a thread, waits until `go_on` is set."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._write = home.write_blob
        monkeypatch.setattr(home, "write_blob", self.write)

    def write(self, name: str, data: bytes) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.go_on.wait(SECONDS)
        self._write(name, data)


async def test_what_is_being_written_when_the_node_ends_does_not_overtake_what_is_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "node")
    kept = kept_in(home)
    disk = SlowDisk(home, monkeypatch)
    async with Owner() as owner:
        owner.start(kept.serve(), name="book")
        kept.book.hint(peer(1), PLACE)
        await asyncio.to_thread(disk.begun.wait, SECONDS)
        kept.book.hint(peer(2), PLACE)
        owner.cancel()
        await asyncio.sleep(0)  # it is cancelled now, and the disk still busy
        disk.go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert known(home) == {peer(1), peer(2)}


async def test_what_waits_for_a_thread_when_the_node_ends_is_written(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    home = Home(tmp_path / "node")
    kept = kept_in(home)
    go_on = threading.Event()
    busy = loop.run_in_executor(None, go_on.wait, SECONDS)
    async with Owner() as owner:
        owner.start(kept.serve(), name="book")
        kept.book.hint(peer(1), PLACE)
        for _ in range(3):
            await asyncio.sleep(0)  # it has asked for a thread
        owner.cancel()
        await asyncio.sleep(0)
        go_on.set()
    await busy
    assert known(home) == {peer(1)}


@pytest.mark.virtual
async def test_of_many_changes_in_a_second_the_first_and_the_last_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "node")
    written: list[float] = []

    async def at_once(work: object) -> None:
        written.append(asyncio.get_running_loop().time())
        assert callable(work)
        work()

    monkeypatch.setattr("meshd.rendezvous.book.in_thread", at_once)

    kept = kept_in(home)
    async with Owner() as owner:
        owner.start(kept.serve(), name="book")
        for number in range(1, 11):
            kept.book.hint(peer(number), PLACE)
            await asyncio.sleep(0.05)
        await asyncio.sleep(5)
        owner.cancel()
    assert len(written) == 2 and written[1] - written[0] == pytest.approx(WRITE_SECONDS)
    assert len(known(home)) == 10


async def test_nothing_new_is_not_written(tmp_path: Path) -> None:
    home = Home(tmp_path / "node")
    kept = kept_in(home)
    kept.write()
    assert home.read_blob(BOOK_BLOB) is None
    kept.book.hint(peer(1), PLACE)
    kept.write()
    assert known(home) == {peer(1)}


async def test_records_of_banned_members_are_not_taken(tmp_path: Path) -> None:
    record = PeerRecord.sign(WORKER, chain=WORKER_CHAIN, name="w", role="worker", sequence=1)

    bans = RevocationSet(MESH)
    kept = kept_in(Home(tmp_path / "node"), bans)
    assert kept.book.add(record)
    bans.add(ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=WORKER.peer.raw, issued_at=1))
    with pytest.raises(RemoteProtocolError, match="banned member"):
        kept_in(Home(tmp_path / "other"), bans).book.add(record)
