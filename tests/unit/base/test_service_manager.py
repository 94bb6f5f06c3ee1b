"""The messages to systemd, over real datagram sockets."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshd.base.service_manager import ServiceManager
from meshd.base.tasks import Owner


@contextmanager
def heard(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        listener.setblocking(False)
        yield listener


def messages(listener: socket.socket) -> list[str]:
    found = []
    try:
        while True:
            found.append(listener.recv(4096).decode())
    except BlockingIOError:
        return found


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_it_says_that_it_is_ready_and_why_it_failed(tmp_path: Path, kind: str) -> None:
    address = str(tmp_path / "notify") if kind == "path" else f"@meshd-test-{tmp_path.name}"
    with heard(address) as listener:
        manager = ServiceManager(address)
        manager.ready()
        manager.failed("the disk\nREADY=0 is full")
        assert messages(listener) == ["READY=1", "STATUS=the disk READY=0 is full"]


def test_the_variables_are_taken_away(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "9000000", "HOME": "/"}
    assert ServiceManager.take(environ).is_there
    assert environ == {"HOME": "/"}
    assert not ServiceManager.take(environ).is_there


def test_without_a_manager_or_its_socket_nothing_happens(tmp_path: Path) -> None:
    ServiceManager().ready()
    for address in (str(tmp_path / "gone"), str(tmp_path / ("n" * 300)), "@"):
        ServiceManager(address).ready()


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("watchdog", "pid", "reports"),
    [("", "", 2), ("6000000", "", 8), ("6000000", "1", 2), ("soon", "", 2)],
)
async def test_it_reports_often_enough(tmp_path: Path, watchdog: str, pid: str, reports: int) -> None:
    """A third of the watchdog's period, unless that is another process's."""
    address = str(tmp_path / "notify")
    with heard(address) as listener:
        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": watchdog, "WATCHDOG_PID": pid}
        manager = ServiceManager.take(environ)
        async with Owner() as owner:
            owner.start(manager.keep_informed(), name="reports")
            await asyncio.sleep(15.0)
            starting = messages(listener)
            manager.ready()
            await asyncio.sleep(15.0)
            running = messages(listener)
            owner.cancel()
        assert starting == ["EXTEND_TIMEOUT_USEC=60000000"] * reports
        assert running[0] == "READY=1" and set(running[1:]) == {"WATCHDOG=1"}
        assert abs(len(running) - 1 - reports) <= 1


async def test_a_daemon_without_a_manager_does_not_wait_for_anything() -> None:
    await ServiceManager().keep_informed()
