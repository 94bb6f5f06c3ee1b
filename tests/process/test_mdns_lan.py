"""Multicast DNS between machines: several networks, one that comes and goes, a node that is killed."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue

import pytest

from tests.process.lan import Lan, skip_reason

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "-")]

SECONDS = 20.0
NODE = "tests.process.mdns_node"


class Running:
    """A node, and the lines that it has written."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: Queue[str] = Queue(10_000)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())

    def until(self, pattern: str) -> str:
        """The next line that fits. Raises AssertionError."""
        deadline = time.monotonic() + SECONDS
        seen: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"no `{pattern}`: {seen}") from None
            if re.fullmatch(pattern, line):
                return line
            seen.append(line)

    def end(self, *, kill: bool = False, ends_itself: bool = False) -> str:
        """End it; returns what it wrote to stderr, which is nothing when all went well."""
        if not ends_itself:
            self._process.kill() if kill else self._process.terminate()
        assert self._process.stderr is not None
        errors = self._process.stderr.read()
        code = self._process.wait(SECONDS)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.stderr.close()
        assert kill or code == 0, errors
        return "\n".join(line for line in errors.splitlines() if "network_" not in line)


@contextmanager
def node(lan: Lan, machine: str, *words: str) -> Iterator[Running]:
    command = lan.program(machine, NODE, *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        running = Running(process)
        try:
            yield running
        finally:
            if process.poll() is None:
                assert running.end(ends_itself="find" in words) == ""


@pytest.fixture
def lan() -> Iterator[Lan]:
    with Lan() as made:
        yield made


def test_two_find_each_other_and_say_goodbye(lan: Lan) -> None:
    lan.plug("a", 1)
    lan.plug("b", 1)
    with node(lan, "a", "announce", "m", "anna", "7001", "bert", "carl") as anna:
        anna.until("up eth0")
        with node(lan, "b", "announce", "m", "bert", "7002", "anna") as bert:
            assert bert.until("found anna.*").split()[2:] == ["10.1.0.1:7001/tcp", "[fd01::1]:7001/tcp"]
            assert anna.until("found bert.*").split()[2:] == ["10.1.0.2:7002/tcp", "[fd01::2]:7002/tcp"]
        anna.until("found bert")  # it has gone


def test_networks_that_come_and_go_are_told_their_own_addresses(lan: Lan) -> None:
    lan.plug("a", 1)
    lan.plug("b", 1)
    with (
        node(lan, "a", "announce", "m", "anna", "7001", "bert") as anna,
        node(lan, "b", "announce", "m", "bert", "7002", "anna") as bert,
    ):
        bert.until("found anna 10.1.0.1.*")
        lan.plug("a", 2, interface="eth1")
        lan.plug("a", 3, interface="docker0")
        anna.until("status eth0 eth1 .*")
        with node(lan, "a", "find", "m", "bert", "10") as again:
            assert again.until("found .*").split()[1:] == ["10.1.0.2:7002/tcp", "[fd01::2]:7002/tcp"]
        lan.plug("c", 2)
        with node(lan, "c", "announce", "m", "carl", "7009", "anna") as carl:
            found = carl.until("found anna.*").split()[2:]
            assert found == ["10.2.0.1:7001/tcp", "[fd02::1]:7001/tcp"]  # and nothing of network 1
        lan.unplug("a", "eth0")
        anna.until("status eth1 .*")
        anna.until("found bert")
        lan.plug("a", 1, host=77)
        bert.until("found anna .*10.1.0.77:7001/tcp.*")


POISON = """
import socket, struct
def name(*labels): return b"".join(bytes([len(one)]) + one for one in labels) + bytes(1)
service = (b"_meshd", b"_tcp", b"local")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for label in (b"\\x01", b"\\xff" * 63, b".."):
        target = name(label, *service)
        answer = name(*service) + struct.pack(">HHIH", 12, 1, 4500, len(target)) + target
        sock.sendto(struct.pack(">6H", 0, 0x8400, 0, 1, 0, 0) + answer, ("224.0.0.251", 5353))
"""


def test_a_node_hears_others_after_packets_with_hostile_names(lan: Lan) -> None:
    for machine in ("a", "b", "c"):
        lan.plug(machine, 1)
    with node(lan, "a", "announce", "m", "anna", "7001", "bert") as anna:
        anna.until("up eth0")
        lan.run("c", "ip", "route", "add", "default", "dev", "eth0")
        lan.run("c", sys.executable, "-c", POISON)
        with node(lan, "b", "announce", "m", "bert", "7002", "anna") as bert:
            anna.until("found bert.*7002.*")
            bert.until("found anna.*7001.*")
