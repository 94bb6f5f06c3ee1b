"""What a node knows of its mesh outlives it, whenever it is ended."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from meshd.base.tasks import Owner
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home
from meshd.identity.naming import NAME_BLOB
from meshd.wire.address import Candidate

from tests.conformance.run import run
from tests.unit.daemon.test_joining import Machine

PLACE = (Candidate("192.0.2.1", 17430),)
SECONDS = 20.0


def peer(number: int) -> PeerId:
    return KeyPair.from_seed(bytes([number]) * 32).peer


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


async def known(machine: Machine) -> set[PeerId]:
    """By a daemon that starts anew."""
    again = await machine.enter()
    again.doorway.close()
    return set(again.book.peers())


def test_what_is_being_written_when_the_node_ends_does_not_overtake_what_is_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        machine = Machine(tmp_path, "node")
        estate = await machine.enter()
        disk = SlowDisk(machine.home, monkeypatch)
        async with Owner() as owner:
            owner.start(estate._keep_book(), name="book")
            estate.book.hint(peer(1), PLACE)
            await asyncio.to_thread(disk.begun.wait, SECONDS)
            estate.book.hint(peer(2), PLACE)
            owner.cancel()
            await asyncio.sleep(0)  # it is cancelled now, and the disk still busy
            disk.go_on.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        estate.doorway.close()
        assert await known(machine) == {peer(1), peer(2)}

    run(main())


def test_the_name_of_a_node_is_kept_in_its_home(tmp_path: Path) -> None:
    async def main() -> None:
        machine = Machine(tmp_path, "garage")
        estate = await machine.enter()
        assert machine.home.read_blob(NAME_BLOB) == b"garage"
        estate.doorway.close()

    run(main())


def test_what_waits_for_a_thread_when_the_node_ends_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        machine = Machine(tmp_path, "node")
        estate = await machine.enter()
        go_on = threading.Event()
        busy = loop.run_in_executor(None, go_on.wait, SECONDS)
        async with Owner() as owner:
            owner.start(estate._keep_book(), name="book")
            estate.book.hint(peer(1), PLACE)
            for _ in range(3):
                await asyncio.sleep(0)  # it has asked for a thread
            owner.cancel()
            await asyncio.sleep(0)
            go_on.set()
        await busy
        estate.doorway.close()
        assert await known(machine) == {peer(1)}

    run(main())
