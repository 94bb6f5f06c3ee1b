"""The patched rpc-server by itself: its socket, its secret, its memory limit, its report."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.model.weights_index import encode_index
from meshd.role.native.devices import parse_listed

from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.models import patched, small, smollm2, text_alone
from tests.e2e.native_rig import Head, Worker, index_of, wait_until
from tests.e2e.rpc_client import ALWAYS, RpcClient

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

SECRET = bytes(range(1, 33))
CHECKED_AT_ONCE = 64  # MAX_CHECKING: connections that have not shown the secret yet
MIB = 1 << 20


def server() -> Path:
    return patched().binaries[RPC_SERVER]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts segments by connection")
def test_the_requests_of_a_token_leave_in_one_segment(tmp_path: Path) -> None:
    few, many = 8, 72
    with (
        Worker(server(), tmp_path) as worker,
        CountingProxy(worker.port) as proxy,
        Head(patched().binaries[LLAMA_SERVER], tmp_path, smollm2(), [proxy.endpoint]) as head,
    ):
        head.complete(tokens=few)
        counts = []
        for tokens in (few, many):
            before, calls = proxy.segments(), proxy.counts.calls.total()
            head.complete(tokens=tokens)
            counts.append((proxy.segments() - before, proxy.counts.calls.total() - calls))
        (few_segments, few_calls), (many_segments, many_calls) = counts
        assert many_calls - few_calls >= 5 * (many - few), "a token is that many requests"
        assert many_segments - few_segments <= 1.25 * (many - few)  # a new graph now and then takes more


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_threads_of_a_worker_stay_over_the_tokens(tmp_path: Path) -> None:
    """Thread ids count up, so a thread that is ended and made again for each token would have another one."""
    with (
        Worker(server(), tmp_path, threads=2) as worker,
        Head(patched().binaries[LLAMA_SERVER], tmp_path, small(), [worker.endpoint]) as head,
    ):
        tasks = Path(f"/proc/{worker.process.pid}/task")
        head.complete(tokens=2)
        seen = [{path.name for path in tasks.iterdir()}]
        text, error = head.stream(
            tokens=24, on_piece=lambda _: seen.append({path.name for path in tasks.iterdir()})
        )
        assert (text, error) == (text_alone(small()), "")
    assert len(seen) > 20
    stayed, came = set.intersection(*seen), set.union(*seen)
    assert len(stayed) >= 2, seen
    # one may come once, after the others' work: it lays weights into large pages
    assert len(came - stayed) <= 1, seen


def test_listen_a_client_that_comes_before_the_server_is_served(tmp_path: Path) -> None:
    with Worker(server(), tmp_path) as worker, RpcClient(worker.port) as client:
        assert client.hello() == ALWAYS
        assert client.memory()[0] > 0


def test_listen_on_what_is_no_listening_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket() as plain, (tmp_path / "file").open("wb") as file:
        for number, why in ((plain.fileno(), "does not listen"), (file.fileno(), "not a stream socket")):
            argv = [str(server()), "--listen-fd", str(number)]
            done = subprocess.run(
                argv, pass_fds=[number], capture_output=True, text=True, timeout=30, check=False
            )
            assert done.returncode == 1
            assert why in done.stderr


def test_listen_on_a_taken_port_ends_with_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        argv = [str(server()), "-p", str(taken.getsockname()[1])]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "Failed to create server socket" in done.stderr


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "none"])
def test_unix_socket_serves_as_a_port_does_and_wants_the_secret_too(
    tmp_path: Path, secret: bytes | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        sockets = Path(name)
        with Worker(server(), tmp_path, secret=SECRET, sockets=sockets) as worker:
            with Head(
                patched().binaries[LLAMA_SERVER],
                tmp_path,
                smollm2(),
                [worker.endpoint],
                secrets={worker.endpoint: secret} if secret else None,
                sockets=sockets,
                ready=False,
            ) as head:
                if secret is None:
                    assert head.wait_ready_or_end() not in (None, 0)
                else:
                    assert head.wait_ready_or_end() is None
                    assert head.complete() == text_alone(smollm2())


@pytest.mark.parametrize("endpoint", ["unix:none", f"unix:{'long' * 40}"])
def test_unix_socket_that_is_none_ends_the_head_with_an_error(tmp_path: Path, endpoint: str) -> None:
    with Head(
        patched().binaries[LLAMA_SERVER], tmp_path, smollm2(), [endpoint], sockets=tmp_path, ready=False
    ) as head:
        assert head.wait_end() == 1
        assert endpoint in head.output


def test_an_unknown_argument_is_an_error() -> None:
    done = subprocess.run([str(server()), "--what"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "unknown argument: --what" in done.stderr


def test_the_devices_are_listed_with_what_they_are() -> None:
    done = subprocess.run(
        [str(patched().binaries[RPC_SERVER]), "--list-devices"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [device] = parse_listed(done.stdout.splitlines(), "here")
    assert (device.name, device.kind, device.card) == ("CPU", "cpu", "")
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.description


def test_secret_lets_in_who_knows_it(tmp_path: Path) -> None:
    with Worker(server(), tmp_path, secret=SECRET) as worker:
        for _ in range(3):
            with RpcClient(worker.port, secret=SECRET) as client:
                assert client.hello() == ALWAYS


@pytest.mark.parametrize(
    "shown", [bytes(32), SECRET[:-1] + b"\0", b"\0" + SECRET[1:]], ids=["zeroes", "last", "first"]
)
def test_secret_wrong_is_closed_without_a_word(tmp_path: Path, shown: bytes) -> None:
    with Worker(server(), tmp_path, secret=SECRET) as worker:
        with RpcClient(worker.port, secret=shown) as client, pytest.raises(EOFError):
            client.hello()
        wait_until(lambda: "wrong secret" in worker.output, "the refusal is logged")
        assert "client open" not in worker.lines


def test_secret_left_out_the_hello_itself_is_no_secret(tmp_path: Path) -> None:
    with Worker(server(), tmp_path, secret=SECRET) as worker:
        with RpcClient(worker.port) as client, pytest.raises(EOFError):
            client.hello()  # 33 bytes: the first 32 are taken for the secret
        with RpcClient(worker.port, secret=SECRET) as client:
            assert client.hello() == ALWAYS


def test_secret_silent_and_slow_ones_keep_nobody_waiting_and_are_closed(tmp_path: Path) -> None:
    with Worker(server(), tmp_path, secret=SECRET) as worker:
        silent = [RpcClient(worker.port, secret=part) for part in (b"", SECRET[:31], b"") for _ in range(10)]
        try:
            start = time.monotonic()
            with RpcClient(worker.port, secret=SECRET) as client:
                assert client.hello() == ALWAYS
            assert time.monotonic() - start < 4  # their deadline is 5 s
            for client in silent:
                with pytest.raises(EOFError):
                    client.receive(1)
            assert "no secret" in worker.output
        finally:
            for client in silent:
                client.socket.close()


def test_secret_more_connections_than_are_checked_at_once(tmp_path: Path) -> None:
    with Worker(server(), tmp_path, secret=SECRET) as worker:
        flood = [RpcClient(worker.port) for _ in range(CHECKED_AT_ONCE + 30)]
        for client in flood[CHECKED_AT_ONCE:]:
            with pytest.raises(EOFError):
                client.receive(1)
        assert "too many connections without the secret" in worker.output
        assert worker.lines == []
        for client in flood:
            client.socket.close()
        wait_until(lambda: _served(worker.port), "the right one gets in")


def _served(port: int) -> bool:
    try:
        with RpcClient(port, secret=SECRET) as client:
            return client.hello() == ALWAYS
    except EOFError:
        return False


def test_secret_that_is_cut_short_stops_the_start(tmp_path: Path) -> None:
    with Worker(server(), tmp_path, secret=b"only this") as worker:
        assert worker.process.wait(30) == 1
        assert "only 9 of 32 bytes" in worker.output


def test_memory_limit_is_reported_and_enforced(tmp_path: Path) -> None:
    with Worker(server(), tmp_path, memory=str(64 * MIB)) as worker, RpcClient(worker.port) as client:
        client.hello()
        assert client.memory() == (64 * MIB, 64 * MIB)
        first = client.alloc(40 * MIB)
        assert first
        assert client.memory() == (24 * MIB, 64 * MIB)
        assert client.alloc(25 * MIB) == 0
        assert client.alloc(1 << 62) == 0
        second = client.alloc(24 * MIB)
        assert second
        assert client.memory()[0] == 0
        client.free(first)
        assert client.memory()[0] == 40 * MIB
        assert client.alloc(40 * MIB)


def test_memory_comes_back_when_the_client_goes(tmp_path: Path) -> None:
    with Worker(server(), tmp_path, memory=str(64 * MIB)) as worker:
        for _ in range(3):
            with RpcClient(worker.port) as client:
                client.hello()
                assert client.alloc(60 * MIB)


@pytest.mark.parametrize("text", ["", "1,2", "x", "-1", "1,", "99999999999999999999"])
def test_memory_that_makes_no_sense_stops_the_start(tmp_path: Path, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        argv = [str(server()), "--listen-fd", str(listener.fileno()), "--memory", text]
        done = subprocess.run(
            argv, pass_fds=[listener.fileno()], capture_output=True, text=True, timeout=30, check=False
        )
    assert done.returncode == 1


def test_memory_too_small_for_the_model_fails_the_head_cleanly(tmp_path: Path) -> None:
    with Worker(server(), tmp_path, memory=str(8 * MIB)) as worker:
        binary = patched().binaries[LLAMA_SERVER]
        with Head(binary, tmp_path, smollm2(), [worker.endpoint], ready=False) as head:
            assert head.wait_end() == 1  # not a signal
            assert "it has no memory for a buffer of" in head.output
        with RpcClient(worker.port) as client:  # and the worker goes on
            client.hello()
            assert client.memory() == (8 * MIB, 8 * MIB)


def test_a_refusal_is_told_although_the_connection_ends_at_once(tmp_path: Path, one_processor: None) -> None:
    """The weights fit and the cache does not: the head has gone on when the answer and the end come together.

    On one processor it was told as a worker that was lost in 16 of 40 loads.
    """
    del one_processor
    index = encode_index(index_of([smollm2()]))
    for _ in range(8):
        with (
            Worker(server(), tmp_path, weights=[smollm2()], memory=str(100 * MIB)) as worker,
            Head(
                patched().binaries[LLAMA_SERVER],
                tmp_path,
                smollm2(),
                [worker.endpoint],
                index=index,
                extra=("-c", "1024"),
                ready=False,
            ) as head,
        ):
            assert head.wait_end() == 1
            assert "was lost: it has no memory for a buffer of" in head.output


@pytest.fixture
def one_processor() -> Iterator[None]:
    """For all that is started meanwhile."""
    if sys.platform == "linux":
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        yield
        os.sched_setaffinity(0, before)
    else:
        pytest.skip("only Linux keeps programs to one processor")


def test_report_says_who_comes_and_goes(tmp_path: Path) -> None:
    with Worker(server(), tmp_path) as worker:
        with RpcClient(worker.port) as client:
            client.hello()
            wait_until(lambda: bool(worker.lines), "the client is reported")
            assert worker.lines == ["client open"]
        wait_until(lambda: len(worker.lines) > 1, "its end is reported")
    assert worker.lines == ["client open", "client close"]


def test_report_nobody_reads_it(tmp_path: Path) -> None:
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        argv = [str(server()), "--listen-fd", str(listener.fileno()), "--report-fd", str(write)]
        process = subprocess.Popen(
            argv, pass_fds=[listener.fileno(), write], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    try:
        os.set_blocking(write, False)
        with pytest.raises(BlockingIOError):
            while True:  # fill the pipe
                os.write(write, b"x" * 4096)
        for _ in range(5):
            with RpcClient(port) as client:
                assert client.hello() == ALWAYS
        os.close(read)  # from now on nobody can
        for _ in range(5):
            with RpcClient(port) as client:
                assert client.hello() == ALWAYS
    finally:
        os.close(write)
        process.kill()
        process.wait(30)
