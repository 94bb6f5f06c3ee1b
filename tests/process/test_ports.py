"""Ports handed to a child as a socket that listens."""

import errno
import socket
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.base.socket_owners import port_holder
from meshd.fleet import proxy
from meshd.fleet.proxy import listening_socket

from tests.process.scenes import Maker, owned, pid_of


def test_a_socket_listens_and_is_not_inherited_by_accident() -> None:
    with listening_socket() as listener:
        assert not listener.get_inheritable()
        assert listener.getblocking()  # as a program that is handed one expects
        with socket.create_connection(listener.getsockname(), timeout=5):
            pass


def test_no_descriptor_left_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(proxy, "listen_at", refuse)
    with pytest.raises(UserError, match="Too many open files"):
        listening_socket()


async def test_a_child_serves_on_the_socket_it_was_handed(tmp_path: Path) -> None:
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
