"""The control socket under friendly and hostile use, both ends real."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshd import __version__
from meshd.admin import client, server, socket_path
from meshd.admin.api import (
    ExposeListRequest,
    PingRequest,
    RevokeRequest,
    StatusRequest,
    StopRequest,
)
from meshd.admin.client import Client, NotRunning, OtherVersion, ask
from meshd.admin.server import AdminServer
from meshd.admin.socket_path import MAX_CONNECTIONS, MAX_LINE_BYTES, SOCKET_NAME
from meshd.base import processes
from meshd.base.errors import Broken, LocalProtocolError, Refused, UserError

from .fake import FakeControl, full_status
from .fake_server import DEADLINE, running


@dataclass(frozen=True, slots=True)
class Unknown:
    """A reply with a field that this daemon does not send."""

    later: str


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def control(home: Path) -> Iterator[FakeControl]:
    fake = FakeControl()
    with running(home, fake):
        yield fake


def raw(home: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(DEADLINE)
    try:
        connection.connect(os.fspath(socket_path.find_socket(home)))
    except BaseException:
        connection.close()
        raise
    return connection


def read_all(connection: socket.socket) -> bytes:
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def test_the_time_of_a_ping_is_bounded(home: Path, control: FakeControl) -> None:
    for asked in (1e9, -1.0):
        ask(home, PingRequest(peer="garage", timeout_s=asked))
    assert control.asked == [("ping", "garage", 60.0), ("ping", "garage", 0.01)]


def test_a_refusal_arrives_with_reason_code_and_hint(home: Path, control: FakeControl) -> None:
    with Client(home) as client:
        with pytest.raises(Refused, match="no node is called `nobody`") as caught:
            client.ask(PingRequest(peer="nobody"))
        assert (caught.value.code, caught.value.hint) == ("user", "`meshd peers` lists them")
        with pytest.raises(Refused, match="cannot ban itself") as caught:
            client.ask(RevokeRequest(peer="me"))
        assert caught.value.code == "user"
        with pytest.raises(Refused, match="no answer within") as caught:
            client.ask(PingRequest(peer="silent"))
        assert caught.value.code == "timeout"
        assert client.ask(StatusRequest()).node.name == "desk"  # the connection goes on


@pytest.mark.parametrize("error", [ZeroDivisionError("of zero"), LocalProtocolError("a bug")])
def test_an_unexpected_failure_is_told_and_the_connection_goes_on(
    home: Path, control: FakeControl, error: Exception
) -> None:
    control.error = error
    with Client(home) as client:
        with pytest.raises(Refused, match=f"request: {type(error).__name__}: {error}"):
            client.ask(StatusRequest())
        control.error = None
        assert client.ask(StatusRequest()) == full_status()


def test_socket_and_folder_are_private(home: Path, control: FakeControl) -> None:
    assert stat.S_IMODE((home / "control.sock").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_the_socket_goes_with_the_server(home: Path) -> None:
    with running(home, FakeControl()):
        assert (home / "control.sock").exists()
    assert not (home / "control.sock").exists()
    with pytest.raises(NotRunning, match="no daemon is running for"):
        Client(home)


def test_a_home_open_to_others_is_refused(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir(mode=0o755)
    loose.chmod(0o755)
    with pytest.raises(UserError, match="only this user can enter"):
        AdminServer(home=loose, control=FakeControl()).open()


def test_a_second_daemon_is_told_who_holds_it(home: Path, control: FakeControl) -> None:
    with pytest.raises(UserError, match=rf"already running for .* \(process {os.getpid()}\)") as caught:
        AdminServer(home=home, control=FakeControl()).open()
    assert "meshd stop" in caught.value.hint
    assert ask(home, StatusRequest()).node.name == "desk"  # and the first one goes on


def test_the_socket_of_a_dead_daemon_is_replaced(home: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(os.fspath(home / "control.sock"))
    dead.close()
    with pytest.raises(NotRunning):
        Client(home)
    with running(home, FakeControl()):
        assert ask(home, StatusRequest()).node.name == "desk"


def test_another_file_in_the_way_is_not_removed(home: Path) -> None:
    (home / "control.sock").write_text("mine")
    with pytest.raises(UserError):
        AdminServer(home=home, control=FakeControl()).open()
    assert (home / "control.sock").read_text() == "mine"


def test_closing_leaves_a_successors_socket_alone(home: Path) -> None:
    first = AdminServer(home=home, control=FakeControl())
    first.open()
    (home / "control.sock").unlink()
    second = AdminServer(home=home, control=FakeControl())
    second.open()
    first.close()
    assert (home / "control.sock").exists()
    second.close()
    second.close()
    assert not (home / "control.sock").exists()


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A runtime folder with a short path, which tmp_path need not have."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_a_long_path_gets_a_short_socket_and_a_pointer(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    home = tmp_path / ("long" * 30)
    with running(home, FakeControl()) as admin:
        assert len(os.fsencode(admin.path)) <= 100 and admin.path.parent.parent == runtime
        assert socket_path.socket_folder(home, {"XDG_RUNTIME_DIR": str(runtime)}) == admin.path.parent
        monkeypatch.delenv("XDG_RUNTIME_DIR")  # a client of another session finds it all the same
        assert ask(home, StatusRequest()).node.name == "desk"
    assert list(runtime.iterdir()) == []


def test_a_trap_in_the_runtime_folder_is_refused(tmp_path: Path, runtime: Path) -> None:
    home, environ = tmp_path / ("long" * 30), {"XDG_RUNTIME_DIR": str(runtime)}
    socket_path.socket_folder(home, environ).chmod(0o777)
    admin = AdminServer(home=home, control=FakeControl(), environ=environ)
    with pytest.raises(UserError, match="only this user can enter"):
        admin.open()


def test_two_homes_have_two_folders(tmp_path: Path, runtime: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(runtime)}
    one, two = (socket_path.socket_folder(tmp_path / (name * 120), environ) for name in "ab")
    assert one != two
    (two / "llama.sock").touch()
    for folder in (one, two, one):
        socket_path.remove_socket_folder(folder, tmp_path)
    assert list(runtime.iterdir()) == [two], "what is in use stays"


def test_a_home_is_never_removed(runtime: Path) -> None:
    home = runtime / "h"
    home.mkdir()
    assert socket_path.socket_folder(home, {}) == home
    socket_path.remove_socket_folder(home, home)
    assert home.exists()


def test_no_short_path_at_all_is_said(tmp_path: Path) -> None:
    runtime = tmp_path / ("run" * 40)
    runtime.mkdir()
    with pytest.raises(UserError, match="no path for the control socket is short enough"):
        socket_path.socket_folder(tmp_path / ("long" * 30), {"XDG_RUNTIME_DIR": str(runtime)})


def test_a_strange_user_is_sent_away(
    home: Path, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "allowed", lambda uid: False)
    with raw(home) as connection:
        assert read_all(connection) == b""
    with pytest.raises(Broken):
        ask(home, StopRequest())
    assert control.asked == []


def test_the_kernel_tells_who_connects(home: Path, control: FakeControl) -> None:
    with raw(home) as connection:
        assert processes.peer_of(connection) == (os.geteuid(), os.getpid())
    assert (
        processes.allowed(os.geteuid()) and processes.allowed(0) and not processes.allowed(os.geteuid() + 1)
    )


def test_a_client_does_not_trust_a_strangers_socket(
    home: Path, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.admin.client.allowed", lambda uid: False)
    with pytest.raises(UserError, match="belongs to user"):
        Client(home)


def test_a_request_that_is_too_long_is_refused(home: Path, control: FakeControl) -> None:
    with raw(home) as connection:
        try:
            connection.sendall(b'{"request":"ping","peer":"' + b"a" * (4 * MAX_LINE_BYTES))
        except (BrokenPipeError, ConnectionResetError):
            pass  # it hung up while we were still talking
        reply = read_all(connection)
    assert json.loads(reply)["error"]["what"] == f"a request is at most {MAX_LINE_BYTES} bytes"


def test_what_is_no_request_is_answered_and_the_connection_ends(home: Path, control: FakeControl) -> None:
    with raw(home) as connection:
        connection.sendall(b'{"request":"explode"}\n{"request":"stop"}\n')
        reply = read_all(connection)
    assert json.loads(reply)["error"]["code"] == "message"
    assert control.asked == []


def test_half_a_line_is_no_request(home: Path, control: FakeControl) -> None:
    with raw(home) as connection:
        connection.sendall(b'{"request":"stop"}')
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""
    assert control.asked == []


def test_several_requests_in_one_packet_are_answered_in_turn(home: Path, control: FakeControl) -> None:
    with raw(home) as connection:
        connection.sendall(b'{"request":"stop"}\n{"request":"invite_list"}\n')
        connection.shutdown(socket.SHUT_WR)
        first, second = read_all(connection).splitlines()
    assert json.loads(first) == {"reply": {}, "meshd": __version__}
    assert json.loads(second)["reply"]["invites"][0]["id"] == "00ff"


def test_a_daemon_of_another_version_that_does_not_understand_is_to_be_restarted(
    home: Path, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "__version__", "9.9.9")
    assert ask(home, ExposeListRequest()) is not None  # what both know is answered
    monkeypatch.setattr(ExposeListRequest, "request_name", "later")
    with pytest.raises(OtherVersion) as caught:
        ask(home, ExposeListRequest())
    assert f"runs meshd {__version__}, this command is 9.9.9" in caught.value.what
    assert "unknown request `later`" in caught.value.what and "meshd stop" in caught.value.hint
    monkeypatch.undo()
    monkeypatch.setattr(StopRequest, "request_name", "later")
    with pytest.raises(Refused, match="unknown request"):  # of one version: something else is wrong
        ask(home, StopRequest())


def test_a_reply_of_another_version_that_lacks_something_is_explained(
    home: Path, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "__version__", "9.9.9")
    monkeypatch.setattr(ExposeListRequest, "reply_type", classmethod(lambda _: Unknown))
    with pytest.raises(OtherVersion, match="`later`"):
        ask(home, ExposeListRequest())


def test_connections_are_counted_and_given_back(home: Path, control: FakeControl) -> None:
    idle = [raw(home) for _ in range(MAX_CONNECTIONS)]
    for connection in idle:  # each is known to be served before the next step
        connection.sendall(b'{"request":"stop"}\n')
        assert connection.recv(100)
    with raw(home) as one_more:
        assert read_all(one_more) == b""
    for connection in idle:
        connection.close()
    control.asked.clear()
    for _ in range(100):  # the server hears of the closing in its own time
        try:
            ask(home, StopRequest())
            break
        except Broken:
            continue
    assert control.asked == ["stop"]


def test_a_silent_connection_is_ended(
    home: Path, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_IDLE_SECONDS", 0.05)
    with raw(home) as connection:
        assert read_all(connection) == b""


def test_a_client_that_goes_at_once_costs_nothing(home: Path, control: FakeControl) -> None:
    for _ in range(2 * MAX_CONNECTIONS):
        raw(home).close()
        with raw(home) as connection:
            connection.sendall(b'{"request":"status"}\n')  # and does not wait for the answer
    for _ in range(100):
        try:
            assert ask(home, StatusRequest()).node.name == "desk"
            break
        except Broken:
            continue
    else:
        pytest.fail("no place was given back")


def test_a_daemon_that_ends_in_between_is_said(home: Path) -> None:
    with running(home, FakeControl()):
        client = Client(home)
        client.ask(StatusRequest())
    with client, pytest.raises(Broken, match="ended before it answered"):
        client.ask(StatusRequest())


_DEAF = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
connection, _ = listener.accept()
sys.stdin.read()
"""


@pytest.mark.parametrize("stopped", [True, False])
def test_a_daemon_that_hangs_is_named_with_what_ends_it(home: Path, stopped: bool) -> None:
    words = [sys.executable, "-c", _DEAF, str(home / SOCKET_NAME)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            if stopped:
                child.send_signal(signal.SIGSTOP)
                os.waitpid(child.pid, os.WUNTRACED)
            with pytest.raises(UserError, match=f"process {child.pid}") as caught:
                ask(home, StatusRequest(), seconds=0.1)
            assert ("suspended (SIGSTOP)" in caught.value.what) is stopped
            assert (f"`kill -CONT {child.pid}`" in caught.value.hint) is stopped
            assert f"`kill -9 {child.pid}`" in caught.value.hint
        finally:
            child.kill()


_LINES = st.lists(
    st.binary(max_size=60)
    | st.sampled_from(
        [b'{"request":"status"}', b'{"request":"ping"}', b"{", b"[]", b'{"request":"invite_list"}']
    ),
    max_size=5,
)


@given(lines=_LINES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_leave_the_server_alive(home: Path, control: FakeControl, lines: list[bytes]) -> None:
    with raw(home) as connection:
        try:
            connection.sendall(b"\n".join(lines))
            connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass  # it hung up first
        for line in read_all(connection).splitlines():
            assert set(json.loads(line)) <= {"reply", "error", "meshd"}
    with raw(home) as connection:
        connection.sendall(b'{"request":"invite_list"}\n')
        assert b'"00ff"' in connection.recv(1000)


_LATER = """
import sys
import meshd.daemon.run
from meshd.admin.server import decoded
assert "meshd.admin.plan_api" not in sys.modules, "most workers get none of its requests"
print(decoded(b'{"request": "why"}'))
"""


def test_a_request_for_a_plan_is_read_by_a_module_that_comes_with_the_first_one() -> None:
    done = subprocess.run([sys.executable, "-c", _LATER], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("WhyRequest()\n", "")
