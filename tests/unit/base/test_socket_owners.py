"""The holder of a port, from the texts of /proc/net/tcp and lsof."""

import os
import shutil
import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base import socket_owners
from meshd.base.socket_owners import parse_listeners, parse_lsof, proc_address

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 x 100 0
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 4243 1 x 20 4
   2: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4244 1 x 100 0
   3: damaged
   4: 0100007F:ZZZZ 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4245 1 x 100 0
"""


def test_listeners_of_a_port() -> None:
    assert list(parse_listeners(TABLE, 8080)) == [("0100007F", 1000, 4242)]
    assert list(parse_listeners(TABLE, 8081)) == [("00000000", 0, 4244)]
    assert list(parse_listeners(TABLE, 1)) == []


@given(st.text(max_size=300), st.integers(0, 65535))
def test_any_table_is_read_without_error(text: str, port: int) -> None:
    list(parse_listeners(text, port))


@pytest.mark.skipif(sys.byteorder != "little", reason="written for this byte order")
@pytest.mark.parametrize(
    ("host", "words"),
    [("127.0.0.1", "0100007F"), ("::1", "00000000000000000000000001000000"), ("localhost", None)],
)
def test_proc_address(host: str, words: str | None) -> None:
    assert proc_address(host) == words


@pytest.mark.parametrize(
    ("text", "holder"),
    [
        ("p123\ncpython3\nf4\n", "`python3` (pid 123)"),
        ("p12\np13\ncsh\n", "`sh` (pid 13)"),
        ("cname\n", None),
        ("", None),
        ("pxx\ncname\n", None),
        ("p1\nca\x1bb\n", "`a?b` (pid 1)"),
    ],
)
def test_lsof(text: str, holder: str | None) -> None:
    assert parse_lsof(text) == holder


@given(st.text(max_size=300))
def test_any_lsof_is_read_without_error(text: str) -> None:
    parse_lsof(text)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "name"])
def test_this_program_is_found_until_it_lets_go(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = socket_owners.port_holder(host, port)
        assert found is not None
        assert f"(pid {os.getpid()})" in found
    assert socket_owners.port_holder(host, port) is None


@pytest.mark.skipif(shutil.which("lsof") is None, reason="no lsof")
def test_lsof_tells_the_same_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        holder = socket_owners.port_holder(*listener.getsockname())
    assert holder is not None
    assert f"(pid {os.getpid()})" in holder


def test_without_lsof_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(shutil, "which", lambda *_args, **_more: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert socket_owners.port_holder(*listener.getsockname()) is None
