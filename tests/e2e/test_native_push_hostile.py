"""Peers and clients that lie: they end at most what they are part of, and cost little memory.

Real processes without meshd between them.
"""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from meshd.rpc import protocol as rpc

from tests.e2e.models import small
from tests.e2e.native_rig import Head, wait_until
from tests.e2e.push_rig import (
    PEERS,
    SESSION,
    TENSOR_BYTES,
    Chain,
    PushWorker,
    SessionClient,
    data,
    hello,
    is_closed,
    peer_of,
    pushing,
    served_peer,
)

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

FOREIGN = bytes(16)
MIB = 1 << 20
HELD = 64 * MIB  # the most that a worker has of what nobody takes
SOCKETS = 64 * MIB  # more than the kernel has of it
TOKENS = 150


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Head, Chain, str]]:
    """A head with its workers, and what they answer while nobody else comes; all who come meet these."""
    with pushing(tmp_path_factory.mktemp("chain"), small(), 2) as (head, chain):
        yield head, chain, head.complete(tokens=TOKENS)


@pytest.mark.parametrize(
    "message",
    [
        bytes(32),
        PEERS + struct.pack("<BQ", 14, 24) + bytes(24),
        PEERS + struct.pack("<BQ", rpc.PEER_HELLO, 1 << 60) + bytes(16),
        PEERS + data(1, b"0123456789"),
        PEERS[:31],
        PEERS,
        hello(FOREIGN),
    ],
    ids=["wrong secret", "client's hello", "size", "no hello", "cut secret", "silence", "foreign session"],
)
def test_a_connection_of_no_peer_is_closed_and_disturbs_nobody(
    undisturbed: tuple[Head, Chain, str], message: bytes
) -> None:
    head, chain, expected = undisturbed
    with ExitStack() as stack:
        came: list[socket.socket] = []

        def come(text: str) -> None:
            if not came and text:
                came.extend(stack.enter_context(peer_of(worker, message)) for worker in chain.workers)

        assert head.stream(tokens=TOKENS, on_piece=come) == (expected, "")
        assert len(came) == 2
        for sock in came:
            if message == hello(FOREIGN):
                assert sock.recv(9) == struct.pack("<QB", 1, 0)
            assert is_closed(sock)
        assert head.complete(tokens=TOKENS) == expected


def test_what_peers_send_is_taken_by_its_token(tmp_path: Path) -> None:
    first, second = os.urandom(TENSOR_BYTES), os.urandom(TENSOR_BYTES)
    with (
        PushWorker(tmp_path) as worker,
        SessionClient(worker) as client,
        served_peer(worker) as peer,
        served_peer(worker) as other,
    ):
        client.take(7)  # before it comes
        peer.sendall(data(7, first))
        assert client.read(client.tensor) == first
        peer.sendall(data(8, second) + data(10, first))
        other.sendall(data(9, first))
        for token, content in ((9, first), (8, second), (10, first)):
            client.take(token)
            assert client.read(client.tensor) == content


@pytest.mark.parametrize(
    "message",
    [
        struct.pack("<BQ", 6, 296) + bytes(296),
        struct.pack("<BQ", rpc.PEER_HELLO, 16) + SESSION,
        data(1, b"", 7) + bytes(7),
        data(1, b"", (64 << 20) + 1),
        data(1, b"", 1 << 63),
        data(1, bytes(TENSOR_BYTES + 1)),
        data(2, b"twice") * 2,
        data(1, bytes(100), 8 + TENSOR_BYTES),
    ],
    ids=["command", "hello again", "short", "large", "huge", "other size", "twice", "cut"],
)
def test_a_peer_that_lies_ends_its_session_and_the_next_client_is_served(
    tmp_path: Path, message: bytes
) -> None:
    with PushWorker(tmp_path) as worker:
        worker.tell("no 1")
        with SessionClient(worker) as client, served_peer(worker) as peer:
            client.take(1)
            peer.sendall(message)
            if message == data(1, bytes(100), 8 + TENSOR_BYTES):
                peer.shutdown(socket.SHUT_WR)
            assert is_closed(client.socket)
            assert is_closed(peer)
        assert worker.report is not None
        worker.report.wait("failed ")
        with SessionClient(worker) as client, served_peer(worker):
            assert not client.check(1)


def test_what_nobody_takes_fills_no_memory_and_keeps_no_other_peer_waiting(tmp_path: Path) -> None:
    content = os.urandom(TENSOR_BYTES)
    with (
        PushWorker(tmp_path) as worker,
        SessionClient(worker) as client,
        served_peer(worker) as flood,
        served_peer(worker) as honest,
    ):
        assert (
            HELD <= _sent_until_full(flood, lambda number: data(1000 + number, bytes(MIB))) < HELD + SOCKETS
        )
        honest.sendall(data(1, content))
        client.take(1)
        assert client.read(client.tensor) == content
        status = Path(f"/proc/{worker.process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        assert peak << 10 < 3 * HELD


def test_messages_that_nobody_takes_are_counted_whatever_their_size(tmp_path: Path) -> None:
    batch = 1000
    with PushWorker(tmp_path) as worker, SessionClient(worker), served_peer(worker) as flood:
        sent = _sent_until_full(
            flood, lambda number: b"".join(data(batch * number + n, b"") for n in range(batch))
        )
        assert sent < SOCKETS  # of 17 bytes each; 4096 of them are read


def _sent_until_full(sock: socket.socket, message: Callable[[int], bytes]) -> int:
    """Bytes that went into a connection until nothing more did for a second."""
    sent, number, rest = 0, 0, b""
    sock.settimeout(1.0)
    try:
        while sent < 10 * HELD:
            rest = rest or message(number)
            went = sock.send(rest)
            rest = rest[went:]
            number += not rest
            sent += went
    except TimeoutError:
        return sent
    raise AssertionError("it takes anything")


def test_a_client_that_goes_while_it_waits_makes_room_for_the_next(tmp_path: Path) -> None:
    with PushWorker(tmp_path) as worker:
        with SessionClient(worker) as gone, served_peer(worker) as peer:
            gone.take(1)
            gone.socket.close()
            assert is_closed(peer)
        with SessionClient(worker), served_peer(worker):
            assert not any(line.startswith("failed ") for line in worker.lines)


def _push(client: SessionClient) -> None:
    client.push(1, 3)


def _take_too_much(client: SessionClient) -> None:
    client.take(1, TENSOR_BYTES + 1)


def _push_too_much(client: SessionClient) -> None:
    client.push(1, 3, TENSOR_BYTES + 1)


def _name_again(client: SessionClient) -> None:
    client.send(rpc.PEER_SESSION, SESSION)


def _check_short(client: SessionClient) -> None:
    client.send(rpc.PEER_CHECK, bytes(23))


def _take_short(client: SessionClient) -> None:
    client.send(rpc.TAKE_TENSOR, bytes(10))


@pytest.mark.parametrize(
    "ask", [_push, _take_too_much, _push_too_much, _name_again, _check_short, _take_short]
)
def test_a_client_that_asks_for_what_was_not_agreed_on_is_closed(
    tmp_path: Path, ask: Callable[[SessionClient], None]
) -> None:
    with PushWorker(tmp_path) as worker:
        worker.tell("no 3")
        with SessionClient(worker) as client:
            assert not client.check(3)
            ask(client)
            assert is_closed(client.socket)
        with SessionClient(worker, name=False) as client:
            client.take(1)
            assert is_closed(client.socket)


@pytest.mark.parametrize(
    "line", ["what 1", "peer 1 127.0.0.1 00", "no 65536", "no 1 2", "no x", "", "x" * 600]
)
def test_a_line_that_names_no_neighbour_ends_the_reading(tmp_path: Path, line: str) -> None:
    with PushWorker(tmp_path) as worker, SessionClient(worker) as client:
        worker.tell(line)
        wait_until(lambda: "a line of the neighbours is none" in worker.output, "it is logged")
        assert not client.check(1)
