"""Whose connection it is, asked of the real kernel."""

import asyncio
import errno
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from meshd.base import socket_owners
from meshd.base.socket_owners import (
    Address,
    ConnectionOwners,
    connection_user,
    find_user,
    user_has_connection,
)
from meshd.daemon import control

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a connection is")


def asked(client: Address, server: Address) -> bool:
    """Return what the tunnels of users make of it."""

    async def ask() -> bool:
        return await control.of_this_user()(client, server)

    return asyncio.run(ask())


@pytest.mark.parametrize("table", ["", "header only\n", "h\n 0: A B\n", "h\n 0: L R 06 0 0 0 0 0 0\n"])
def test_a_table_without_the_connection_names_no_user(table: str) -> None:
    assert find_user(table.splitlines(), "L", "R") is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_user_of_a_connection_is_told(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        here, there = client.getsockname()[:2], server.getsockname()[:2]
        assert user_has_connection(os.getuid(), here, there) is True
        assert connection_user(here, there) == os.getuid()
        assert user_has_connection(os.getuid() + 1, here, there) is (os.getuid() == 0)  # root may anything
        assert user_has_connection(os.getuid(), (host, 1), there) is False
        assert connection_user((host, 1), there) is None


def test_a_program_that_uses_ipv6_for_an_address_of_ipv4_is_told_as_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET6) as client:
        client.connect((f"::ffff:{server.getsockname()[0]}", server.getsockname()[1]))
        accepted, here = server.accept()
        with accepted:
            assert here[0] == "127.0.0.1"
            assert connection_user(here, server.getsockname()) == os.getuid()


def test_a_connection_that_nobody_holds_any_more_is_nobodys() -> None:
    def rows(user: int, inode: int) -> list[str]:
        return ["h", " 0: R L 01 0 0 0 7 0 7 x", f" 1: L R 04 0 0 0 {user} 0 {inode} x"]

    assert find_user(rows(1000, 77), "L", "R") == 1000
    assert find_user(rows(0, 77), "L", "R") == 0
    assert find_user(rows(0, 0), "L", "R") is None  # the kernel shows it as root's
    assert find_user(rows(1000, 77)[:2], "L", "R") is None


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
            assert user_has_connection(os.getuid(), here, there) is False
        assert user_has_connection(os.getuid(), here, there) is True


async def test_a_tunnel_of_a_daemon_without_a_free_descriptor_is_closed_to_all() -> None:
    owned_by_user = control.of_this_user()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        here, there = client.getsockname(), server.getsockname()
        assert await owned_by_user(here, there) is True  # a daemon has used its threads before
        with no_free_descriptor():
            assert await owned_by_user(here, there) is False
        assert await owned_by_user(here, there) is True


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ENOENT, errno.EIO])
def test_what_linux_does_not_show_now_counts_as_no(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **_how: object) -> NoReturn:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "open", refuse)
    assert user_has_connection(os.getuid(), ("127.0.0.1", 1), ("127.0.0.1", 2)) is False
    assert asked(("127.0.0.1", 1), ("127.0.0.1", 2)) is False


def test_a_system_that_does_not_tell_at_all_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    async def ask() -> bool | None:
        return await ConnectionOwners().user_has(1, ("127.0.0.1", 1), ("127.0.0.1", 2))

    assert asyncio.run(ask()) is None
    assert asked(("127.0.0.1", 1), ("127.0.0.1", 2)) is True


async def test_the_loop_runs_on_while_a_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ran_on = threading.Event()
    heard: list[bool] = []

    def find(*_of: object) -> None:
        heard.append(ran_on.wait(5))

    monkeypatch.setattr(socket_owners, "find_user", find)
    owners, here, there = ConnectionOwners(), ("127.0.0.1", 1), ("127.0.0.1", 2)
    asyncio.get_running_loop().call_soon(ran_on.set)
    assert await owners.user_has(1, here, there) is False
    assert heard and all(heard)  # one or two tables


async def test_of_many_askers_one_looks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they came; one that goes away leaves its turn to the next."""
    begun, gate = asyncio.Event(), asyncio.Event()
    now = most = 0

    async def look(_look: Callable[..., bool], *_asked: object) -> bool:
        nonlocal now, most
        now += 1
        most = max(most, now)
        begun.set()
        try:
            await gate.wait()
            return False
        finally:
            now -= 1

    monkeypatch.setattr(socket_owners, "in_thread", look)
    owners, here, there = ConnectionOwners(), ("127.0.0.1", 1), ("127.0.0.1", 2)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        asking = [group.create_task(owners.user_has(1, here, there)) for _ in range(100)]
        await begun.wait()
        for one in asking[:2]:
            one.cancel()
        gate.set()
    assert [one.result() for one in asking[2:]] == [False] * 98
    assert most == 1
