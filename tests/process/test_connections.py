"""Whose connection it is, asked of the real kernel."""

import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshd.daemon import tunnels
from meshd.process.connections import find_inode, find_user, owns_connection, user_has_connection

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a connection is")


def test_our_own_connection_is_ours_and_nobody_elses() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert owns_connection(os.getpid(), client.getsockname(), server.getsockname()) is True
        assert owns_connection(1, client.getsockname(), server.getsockname()) is False


def test_the_connection_of_another_process_is_not_ours() -> None:
    program = (
        "import socket,sys\n"
        "c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "print(c.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-c", program, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout is not None
            theirs = ("127.0.0.1", int(other.stdout.readline()))
            assert owns_connection(os.getpid(), theirs, ("127.0.0.1", port)) is False
            assert owns_connection(other.pid, theirs, ("127.0.0.1", port)) is True
            other.communicate()


@pytest.mark.parametrize("table", ["", "header only\n", "h\n 0: A B\n", "h\n 0: L R 06 0 0 0 0 0 77\n"])
def test_a_table_without_the_connection_names_no_inode(table: str) -> None:
    assert find_inode(table, "L", "R") is None


def test_the_inode_stands_in_the_tenth_column() -> None:
    assert find_inode("h\n 0: L R 01 0 0 0 0 0 77 x\n", "L", "R") == 77


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_user_of_a_connection_is_told(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        here, there = client.getsockname()[:2], server.getsockname()[:2]
        assert user_has_connection(os.getuid(), here, there) is True
        assert user_has_connection(os.getuid() + 1, here, there) is (os.getuid() == 0)  # root may anything
        assert user_has_connection(os.getuid(), (host, 1), there) is False


def test_a_connection_that_nobody_holds_any_more_is_nobodys() -> None:
    row = "h\n 0: L R 04 0 0 0 {} 0 {} x\n"
    assert find_user(row.format(1000, 77), "L", "R") == 1000
    assert find_user(row.format(0, 77), "L", "R") == 0
    assert find_user(row.format(0, 0), "L", "R") is None  # the kernel shows it as root's
    assert find_user(row.format(1000, 77), "R", "L") is None


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """As when somebody else's links have used them up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open("/", os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_free_descriptor_nobody_is_taken_for_ours() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        here, there = client.getsockname(), server.getsockname()
        with no_free_descriptor():
            assert owns_connection(os.getpid(), here, there) is False
            assert user_has_connection(os.getuid(), here, there) is False
            assert tunnels._of_this_user(here, there) is False
        assert tunnels._of_this_user(here, there) is True


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ENOENT, errno.EIO])
def test_what_linux_does_not_show_now_counts_as_no(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Path, **_how: object) -> str:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "read_text", read)
    assert owns_connection(os.getpid(), ("127.0.0.1", 1), ("127.0.0.1", 2)) is False
    assert user_has_connection(os.getuid(), ("127.0.0.1", 1), ("127.0.0.1", 2)) is False
    assert tunnels._of_this_user(("127.0.0.1", 1), ("127.0.0.1", 2)) is False


def test_a_system_that_does_not_tell_at_all_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert owns_connection(os.getpid(), ("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    assert user_has_connection(os.getuid(), ("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    assert tunnels._of_this_user(("127.0.0.1", 1), ("127.0.0.1", 2)) is True
