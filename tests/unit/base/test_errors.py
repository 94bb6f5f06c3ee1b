"""Errors that are kept and raised again: as they were, and without a hold on those who met them."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest
from meshd.base.errors import Broken, Closed, MeshdError, Refused, RemoteProtocolError
from meshd.identity.keys import PeerId
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.link.relayed.through_member import StreamPipe
from meshd.link.secure.tls import dialer_context
from meshd.peer.streams import MeshStream
from meshd.relay.connection import Connection
from meshd.tunnel.compressed import CompressedStream

from tests.unit.tunnel.far import PEER

Maker = Callable[[], tuple[object, Callable[[], Awaitable[object]]]]


@pytest.mark.parametrize(
    "error",
    [
        Broken("gone", hint="wait"),
        Refused("no", code="busy", hint="later"),
        RemoteProtocolError("nonsense", code="lease"),
        DialError("silent", kind=LinkKind.TCP, failure=DialFailure.TIMEOUT, place="there"),
    ],
)
def test_an_error_afresh_says_the_same(error: MeshdError) -> None:
    try:
        raise error from OSError("below")
    except MeshdError:
        afresh = error.afresh()
    assert type(afresh) is type(error)
    assert (vars(afresh), afresh.args, str(afresh)) == (vars(error), error.args, str(error))
    assert afresh.__traceback__ is None
    assert afresh.__cause__ is None


class Lost:
    """A stream that breaks at the first touch."""

    peer: PeerId = PEER
    metadata: Mapping[str, str | int | bytes] = {}

    async def read(self) -> bytes:
        raise Broken("lost")

    async def write(self, data: bytes | memoryview) -> None:
        raise Broken("lost")

    def consumed(self, count: int) -> None: ...
    def write_eof(self) -> None: ...
    def reset(self, code: int, reason: str) -> None: ...


class Nowhere:
    """The port of a stream whose session is over."""

    def write(self, stream_id: int, data: bytes | memoryview) -> int:
        raise Closed("the session is over")

    def write_eof(self, stream_id: int) -> None: ...
    def reset(self, stream_id: int, code: int, reason: str) -> None: ...
    def consumed(self, stream_id: int, count: int) -> bool:
        return False


def _mesh_stream() -> MeshStream:
    return MeshStream(
        port=Nowhere(),
        wake=lambda: None,
        pass_on=lambda _id, _data: False,
        on_done=lambda _id: None,
        stream_id=1,
        peer=PEER,
        service="x",
        metadata={},
    )


def _reading() -> tuple[object, Callable[[], Awaitable[object]]]:
    stream = _mesh_stream()
    stream.break_with(Broken("lost"))
    return stream, stream.read


def _writing() -> tuple[object, Callable[[], Awaitable[object]]]:
    stream = _mesh_stream()
    return stream, lambda: stream.write(b"x")


def _opening() -> tuple[object, Callable[[], Awaitable[object]]]:
    stream = _mesh_stream()
    stream.break_with(Refused("no", code="refused"))
    return stream, stream.accepted


def _unpacking() -> tuple[object, Callable[[], Awaitable[object]]]:
    plain = _mesh_stream()
    plain.feed(b"\xff" * 20)
    stream = CompressedStream(plain)
    return stream, stream.read


def _piping() -> tuple[object, Callable[[], Awaitable[object]]]:
    pipe = StreamPipe(Lost(), dialer_context(), server_side=False)

    async def secured() -> None:
        running = asyncio.ensure_future(pipe.run())
        try:
            await pipe.secure()
        finally:
            await running

    return pipe, secured


def _relaying() -> tuple[object, Callable[[], Awaitable[object]]]:
    connection = Connection(None, None, number=1)  # type: ignore[arg-type]
    connection.cut()
    return connection, connection.receive


@pytest.fixture
def no_search() -> Iterator[None]:
    """Nothing that is in a cycle is found."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize("make", [_reading, _writing, _opening, _unpacking, _piping, _relaying])
@pytest.mark.virtual
async def test_who_keeps_an_error_goes_with_its_last_user(make: Maker) -> None:
    keeper, act = make()
    kept = weakref.ref(keeper)
    met = 0
    for _ in range(2):
        try:
            await act()
        except MeshdError:
            met += 1
    assert met == 2
    del keeper, act
    await asyncio.sleep(0)  # the loop lets go of what it has called
    assert kept() is None, "only a search for cycles would find it"
