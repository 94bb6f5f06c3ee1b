"""Real ports: handed to a child as a listening socket, free, and taken by somebody with a name."""

import os
import shutil
import socket
from pathlib import Path

import pytest
from meshd.base import port_holder as asked
from meshd.base.errors import UserError
from meshd.base.port_holder import port_holder
from meshd.process.ports import listening_socket

from tests.process.scenes import Maker, owned, pid_of, play

has_ipv6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists()


IPV6_ONLY = pytest.mark.skipif(not has_ipv6, reason="no IPv6")


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=IPV6_ONLY)])
def test_a_socket_listens_and_is_not_inherited_by_accident(host: str) -> None:
    with listening_socket(host) as listener:
        assert not listener.get_inheritable()
        with socket.create_connection(listener.getsockname()[:2], timeout=5):
            pass


def test_a_child_serves_on_the_socket_it_was_handed(tmp_path: Path) -> None:
    async def scene() -> None:
        with listening_socket() as listener:
            port = listener.getsockname()[1]
            fd = listener.fileno()
            async with owned(Maker(tmp_path, "--listen-fd", str(fd), pass_fds=(fd,))) as child:
                await child.ensure_ready()
                listener.close()  # now the child alone holds it
                with socket.create_connection(("127.0.0.1", port), timeout=5):
                    pass
                holder = port_holder("127.0.0.1", port)
                assert holder is not None
                assert f"(pid {pid_of(child)})" in holder
            assert port_holder("127.0.0.1", port) is None
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=5)

    play(scene)


def test_a_taken_port_names_its_holder() -> None:
    with listening_socket() as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError) as caught:
            listening_socket(port=port)
        assert f"`127.0.0.1:{port}` is already in use by `" in caught.value.what
        assert f"(pid {os.getpid()})" in caught.value.what
        assert caught.value.hint


def test_a_port_whose_last_connections_linger_can_be_had_at_once() -> None:
    with listening_socket() as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            accepted, _ = listener.accept()
            accepted.close()  # who closes first keeps TIME_WAIT
            assert client.recv(1) == b""
    listening_socket(port=port).close()


def test_an_address_that_is_not_ours_is_said() -> None:
    with pytest.raises(UserError, match="does not have that address"):
        listening_socket("192.0.2.1")


@pytest.mark.skipif(shutil.which("lsof") is None, reason="no lsof")
def test_lsof_tells_the_same_where_it_is() -> None:
    with listening_socket() as listener:
        holder = asked._holder_by_lsof(listener.getsockname()[1])
    assert holder is not None
    assert f"(pid {os.getpid()})" in holder


def test_without_lsof_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_more: None)
    assert asked._holder_by_lsof(1) is None
