"""The socket under QUIC: runs of datagrams, answers from the address asked, nothing kept without bound."""

import errno
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.link.net.one_port import PortTaken
from meshd.link.net.udp_sockets import (
    BACKLOG_BYTES,
    ETHERNET_MTU,
    MOST_SEGMENTS,
    BatchSocket,
    Origin,
    bind_udp,
    mtu_towards,
)

from tests.conformance.links import has_ipv6
from tests.conformance.run import until

LOOPBACK = "127.0.0.1"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells, and lets choose, addresses")


class Post:
    """A socket, and what came to it."""

    def __init__(self, sock: socket.socket, *, answers: bool = False) -> None:
        self.came: list[tuple[bytes, Origin]] = []
        self.batches = 0
        self.drained = 0
        self.errors: list[OSError] = []
        self.socket = BatchSocket(
            sock,
            on_datagrams=self._take,
            on_batch=self._batch,
            on_drained=self._drain,
            on_error=self.errors.append,
            answers=answers,
        )

    def _take(self, datagrams: Sequence[bytes], origin: Origin) -> None:
        self.came += [(data, origin) for data in datagrams]

    def _batch(self) -> None:
        self.batches += 1

    def _drain(self) -> None:
        self.drained += 1

    @property
    def origin(self) -> Origin:
        return Origin((LOOPBACK, self.socket.port))


def bound(host: str = LOOPBACK) -> socket.socket:
    return bind_udp(host, 0)[0]


@pytest.mark.parametrize(
    "sizes",
    [[1200] * 5, [1200] * 100, [1200, 1200, 700, 1200], [50, 60, 70], [1, 1200, 1200, 1201], [65_000]],
    ids=str,
)
async def test_datagrams_arrive_one_by_one_and_in_order(sizes: list[int]) -> None:
    """However many went out or came in by one call."""
    near, far = Post(bound()), Post(bound())
    sent = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    near.socket.send(sent, far.origin)
    await until(lambda: len(far.came) == len(sent))
    assert [data for data, _ in far.came] == sent
    assert {origin.address for _, origin in far.came} == {near.origin.address}
    assert far.batches <= 1 + len(sent) // 4
    near.socket.close()
    far.socket.close()


async def test_a_kernel_that_cannot_send_many_is_sent_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = Post(bound()), Post(bound())
    runs: list[int] = []
    send = near.socket._sendmsg

    def refuse(run: Sequence[bytes], ancillary: object, address: object) -> None:
        runs.append(len(run))
        if len(run) > 1:
            raise OSError(errno.EIO, "no offload")
        send(run, [], far.origin.address)

    monkeypatch.setattr(near.socket, "_sendmsg", refuse)
    near.socket.send([b"a" * 100] * 3, far.origin)
    near.socket.send([b"b" * 100] * 3, far.origin)
    await until(lambda: len(far.came) == 6)
    if sys.platform == "linux":
        assert runs == [3, 1, 1, 1, 1, 1, 1]
    near.socket.close()
    far.socket.close()


async def test_what_the_kernel_does_not_take_waits_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = Post(bound()), Post(bound())
    send = near.socket._sendmsg

    def full(run: Sequence[bytes], ancillary: object, address: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(near.socket, "_sendmsg", full)
    near.socket.send([b"first"], far.origin)
    assert near.socket.full
    block = [bytes(1000)] * MOST_SEGMENTS
    for _ in range(3 * BACKLOG_BYTES // (1000 * MOST_SEGMENTS)):
        near.socket.send(block, far.origin)
    assert near.socket._backlog_bytes <= BACKLOG_BYTES
    assert near.socket.dropped > 0
    monkeypatch.setattr(near.socket, "_sendmsg", send)
    await until(lambda: near.drained == 1 and not near.socket.full)
    await until(lambda: bool(far.came))
    assert far.came[0][0] == b"first"
    near.socket.close()
    far.socket.close()


@on_linux
@pytest.mark.parametrize("asked", ["127.0.0.1", "127.0.0.9"])
async def test_an_answer_leaves_from_the_address_that_was_asked(asked: str) -> None:
    near, far = Post(bound()), Post(bound("0.0.0.0"), answers=True)
    near.socket.send([b"question"], Origin((asked, far.socket.port)))
    await until(lambda: bool(far.came))
    origin = far.came[0][1]
    assert far.socket.local_host(origin) == asked
    far.socket.send([b"answer", b"answer"], origin)
    await until(lambda: len(near.came) == 2)
    assert near.came[0][1].address == (asked, far.socket.port)
    near.socket.close()
    far.socket.close()


@on_linux
async def test_that_nobody_listens_is_told_while_it_is_asked_for() -> None:
    near, gone = Post(bound()), Post(bound())
    where = gone.origin
    gone.socket.close()
    near.socket.report_errors(True)
    near.socket.send([b"anybody?"], where)
    await until(lambda: bool(near.errors))
    assert isinstance(near.errors[0], ConnectionRefusedError)
    near.socket.report_errors(False)
    near.errors.clear()
    near.socket.send([b"anybody?"], where)
    near.socket.send([b"me"], near.origin)
    await until(lambda: bool(near.came))
    assert not near.errors
    near.socket.close()


def test_the_kernel_tells_what_the_first_hop_takes() -> None:
    if sys.platform == "linux":
        loopback = min(int(Path("/sys/class/net/lo/mtu").read_text()), 65535)
        assert mtu_towards(socket.AF_INET, ("127.0.0.1", 9)) == loopback
    else:
        assert mtu_towards(socket.AF_INET, ("127.0.0.1", 9)) == ETHERNET_MTU
    assert mtu_towards(socket.AF_INET6, ("100::1%nowhere", 9)) == ETHERNET_MTU, "no route"


async def test_nothing_happens_after_close() -> None:
    near = Post(bound())
    near.socket.close()
    near.socket.close()
    near.socket.send([b"late"], Origin((LOOPBACK, 9)))
    near.socket.report_errors(True)
    assert not near.socket.full


@on_linux
async def test_its_buffers_hold_more_than_a_burst() -> None:
    sock = bound()
    near = Post(sock)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 208 << 10
    near.socket.close()


def test_both_families_get_one_port() -> None:
    sockets = bind_udp("", 0)
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        assert len(sockets) == (2 if has_ipv6() else 1)
    finally:
        for sock in sockets:
            sock.close()


def test_a_taken_port_and_a_wrong_address_are_said() -> None:
    with bound() as taken:
        with pytest.raises(PortTaken):
            bind_udp(LOOPBACK, taken.getsockname()[1])
    with pytest.raises(UserError, match=r"192\.0\.2\.77"):
        bind_udp("192.0.2.77", 0)
    with pytest.raises(UserError, match="no address has that name"):
        bind_udp("no such host", 0)


def test_whom_we_talk_to_does_not_depend_on_our_own_address() -> None:
    assert Origin(("192.0.2.1", 1), b"here") == Origin(("192.0.2.1", 1), b"there")
