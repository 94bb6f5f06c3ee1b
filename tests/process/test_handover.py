"""Descriptors to and from a real child: secrets in, reports out, none left open."""

import asyncio
import contextlib
import io
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.base.errors import Broken, Busy, Closed, EndOfStream, UserError
from meshd.process.handover import DescriptorSender, ReportPipe, file_with, pipe_with, socket_pair
from meshd.process.interface import ChildSpec

from tests.process.scenes import Maker, argv, owned

SIZES = (0, 1, 4096, 65536, 65537, 1 << 20)


def read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


@pytest.mark.parametrize("size", SIZES)
def test_pipe_with_gives_all_of_it_and_the_end(size: int) -> None:
    data = os.urandom(size)
    descriptor = pipe_with(data)
    assert not os.get_inheritable(descriptor)
    assert read_all(descriptor) == data


@pytest.mark.parametrize("size", SIZES)
def test_file_with_gives_all_of_it(size: int) -> None:
    data = os.urandom(size)
    descriptor = file_with(data)
    assert not os.get_inheritable(descriptor)
    assert read_all(descriptor) == data


def test_a_pipe_with_less_room_than_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    # pipe(7): beyond a user's limit a new pipe has one page, and only a part would be written
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:4096]))
    assert read_all(pipe_with(b"x" * 9000)) == b"x" * 9000


async def test_a_child_reads_what_it_was_handed_at_each_start(tmp_path: Path) -> None:
    starts: list[Maker] = []

    def make() -> ChildSpec:
        descriptor = pipe_with(b"k" * 1234)
        maker = Maker(tmp_path, "--read-fd", str(descriptor), hand_over=(descriptor,))
        starts.append(maker)
        return maker()

    for _ in range(2):
        async with owned(make) as child:
            await child.ensure_ready()
    assert len(starts) == 2
    assert all("read 1234 bytes" in maker.lines for maker in starts)


async def test_what_was_handed_over_is_closed_when_it_cannot_start(tmp_path: Path) -> None:
    """A test that leaves a descriptor open fails."""

    def make() -> ChildSpec:
        fd = pipe_with(b"secret")
        return ChildSpec(name="x", argv=("/no/such/program",), log=tmp_path / "x.log", hand_over=(fd,))

    async with owned(make) as child:
        with pytest.raises(UserError):
            await child.ensure_ready()


async def test_reports_arrive_and_end_with_the_child(tmp_path: Path) -> None:
    with ReportPipe() as reports:
        flags = ("--report-fd", str(reports.child_end))
        spec = ChildSpec(name="x", argv=argv(*flags), log=tmp_path / "x.log", hand_over=(reports.child_end,))
        async with owned(spec) as child:
            await child.ensure_ready()
            assert [line async for line in reports] == ["listening", "loaded 3 tensors"]


@contextlib.contextmanager
def pipe_of_ours(limit: int = 100) -> Iterator[tuple[ReportPipe, io.FileIO]]:
    """A report pipe both ends of which are here."""
    with ReportPipe(limit=limit) as pipe:
        with io.FileIO(pipe.child_end, "wb") as writer:
            yield pipe, writer


async def test_lines_in_pieces_and_a_last_one_without_end() -> None:
    with pipe_of_ours() as (pipe, writer):
        reading = asyncio.ensure_future(pipe.line())
        for piece in (b"on", b"e\ntw"):
            await asyncio.sleep(0)
            writer.write(piece)
        assert await reading == "one"
        writer.write(b"o\n\nlast")
        assert await pipe.line() == "two"
        assert await pipe.line() == ""
        writer.close()
        assert await pipe.line() == "last"
        with pytest.raises(EndOfStream):
            await pipe.line()


@pytest.mark.parametrize("data", [b"x" * 101, b"x" * 101 + b"\n", b"x" * 20000])
async def test_a_line_over_the_limit_is_refused(data: bytes) -> None:
    with pipe_of_ours() as (pipe, writer):
        writer.write(data)
        with pytest.raises(Broken, match="longer than 100 bytes"):
            await pipe.line()


async def test_a_writer_that_is_not_read_waits() -> None:
    with pipe_of_ours() as (pipe, writer):
        os.set_blocking(writer.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            while writer.write(b"line\n" * 100) is not None:
                pass
        assert await pipe.line() == "line"
        assert len(pipe._held) <= 16 << 10


async def test_close_wakes_who_reads() -> None:
    with pipe_of_ours() as (pipe, _writer):
        reading = asyncio.ensure_future(pipe.line())
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await pipe.line()
        pipe.close()
        with pytest.raises(Closed):
            await reading
        with pytest.raises(Closed):
            await pipe.line()


async def test_a_cancelled_reader_loses_nothing() -> None:
    with pipe_of_ours() as (pipe, writer):
        reading = asyncio.ensure_future(pipe.line())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        writer.write(b"kept\n")
        assert await pipe.line() == "kept"


@asynccontextmanager
async def told(script: str, child_end: int, folder: Path) -> AsyncIterator[ReportPipe]:
    """A child that runs `script` with both descriptors, that end and the one of its reports."""
    with ReportPipe() as reports:
        ends = (child_end, reports.child_end)
        command = (sys.executable, "-S", "-c", script, *map(str, ends))
        spec = ChildSpec(name="told", argv=command, log=folder / "told.log", hand_over=ends)
        async with owned(spec) as child:
            await child.ensure_ready()
            yield reports


TAKE = """import os, socket, sys
with socket.socket(fileno=int(sys.argv[1])) as come, open(int(sys.argv[2]), "w") as reports:
    while True:
        data, descriptors, _, _ = socket.recv_fds(come, 8, 4)
        if not data:
            break
        told = "".join(os.read(one, 100).decode() for one in descriptors)
        print(data.hex(), told or "alone", file=reports, flush=True)
    print("the end", file=reports)
"""


async def test_descriptors_reach_the_child_with_their_numbers_and_end(tmp_path: Path) -> None:
    sender = DescriptorSender()
    async with told(TAKE, sender.child_end, tmp_path) as reports:
        descriptor = pipe_with(b"hello")
        sender.send(1, 3, descriptor)
        assert await reports.line() == "0100000003000000 hello"
        os.close(descriptor)  # it is still ours
        sender.send(2, 0)
        assert await reports.line() == "0200000000000000 alone"
        sender.close()
        sender.close()
        assert await reports.line() == "the end"
        with pytest.raises(Closed):
            sender.send(2, 0)


def test_descriptors_for_a_child_that_is_gone_are_an_error() -> None:
    sender = DescriptorSender()
    os.close(sender.child_end)
    with pytest.raises(Broken, match="takes no descriptors"):
        sender.send(2, 0)
    sender.close()


def test_a_socket_pair_is_ours_and_a_childs() -> None:
    ours, theirs = socket_pair()
    with ours, os.fdopen(theirs, "rb", buffering=0) as end:
        assert not os.get_inheritable(theirs)
        ours.send(b"x")
        assert end.read(1) == b"x"
