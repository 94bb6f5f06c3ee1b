"""Sockets that listen: had again at once, and one family each."""

import socket
import stat
import tempfile
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.base.listening_socket import listen_at, listen_in, remove_stale

V4, V6 = socket.AF_INET, socket.AF_INET6


def test_a_port_whose_last_connections_linger_can_be_had_at_once() -> None:
    with listen_at(V4, "127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            accepted, _ = listener.accept()
            accepted.close()  # who closes first keeps TIME_WAIT
            assert client.recv(1) == b""
    listen_at(V4, "127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_what_cannot_be_had_leaves_nothing_open(host: str) -> None:
    with listen_at(V4, "127.0.0.1", 0) as listener, pytest.raises(OSError, match=r"[Aa]ddress"):
        listen_at(V4, host, listener.getsockname()[1])


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_each_family_has_the_port_to_itself() -> None:
    with listen_at(V6, "::", 0) as six:
        listen_at(V4, "0.0.0.0", six.getsockname()[1]).close()


def test_unix_sockets_have_a_path_each_for_their_user_alone_and_stale_ones_are_removed() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = folder / "rpcnote.sock"
        kept.touch()
        made = [listen_in(folder) for _ in range(2)]
        for sock, path in made:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert len(path.name) <= len("control.sock")  # for which a folder of sockets has room
            assert not sock.get_inheritable()
            sock.close()
        assert len({path for _, path in made}) == 2
        remove_stale(folder)
        assert list(folder.iterdir()) == [kept]


def test_a_name_that_is_taken_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("meshd.base.listening_socket.secrets.token_hex", lambda _size: next(names, "aaaa"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with listen_in(folder)[0], listen_in(folder)[0]:
            assert sorted(path.name for path in folder.iterdir()) == ["rpcaaaa.sock", "rpcbbbb.sock"]
            with pytest.raises(UserError, match="in use"):
                listen_in(folder)
