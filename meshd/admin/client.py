"""The control socket from the caller's side: plain and blocking, so that a verb answers at once.

Without a daemon, a NotRunning error with a hint is raised; refusals of the daemon are raised as Refused.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from meshd import __version__
from meshd.admin.request import Request, decode_line, encode_request, from_json
from meshd.admin.socket_path import MAX_REPLY_BYTES, find_socket, is_short_enough
from meshd.base.errors import Broken, Refused, RemoteProtocolError, UserError
from meshd.base.processes import allowed, is_stopped_by_ps, peer_of

_CONNECT_SECONDS = 5.0
_MISUNDERSTOOD = "message"  # the code of a request or a reply that the other side cannot read
_VERSION_CHARS = 32
FULL_SECONDS = 0.02
REPLY_SECONDS = 15.0  # a daemon that computes hashes answers late, not never
R = TypeVar("R")


class NotRunning(UserError):
    """No daemon listens for this home."""

    def __init__(self, home: Path) -> None:
        super().__init__(
            f"no daemon is running for `{home}`",
            hint="start one with `meshd worker`, `meshd serve` or `meshd client`, or set MESHD_HOME to your "
            "node's directory",
        )


class NotAnswering(UserError):
    """A daemon of this home runs (process `pid`), but has no control socket: it is starting or stopping."""

    def __init__(self, home: Path, pid: int) -> None:
        super().__init__(
            f"the daemon of `{home}` (process {pid}) is starting or stopping, and does not answer yet",
            hint="try again in a moment; run `meshd logs` to see what it does, or `meshd stop` to end it",
        )
        self.pid = pid


class Silent(UserError):
    """A daemon runs, but does not answer; its process is `pid` (0: unknown)."""

    def __init__(self, home: Path, pid: int, *, after: str = "") -> None:
        process = f" (process {pid})" if pid else ""
        ends = f"`kill -9 {pid}` ends it and its children" if pid else ""
        if pid and is_stopped_by_ps(pid):
            what = f"the daemon of `{home}`{process} is suspended (SIGSTOP), and cannot answer"
            hint = f"run `kill -CONT {pid}` to resume it; {ends}"
        else:
            what = f"the daemon of `{home}`{process} does not answer{after}"
            hint = "run `meshd logs` to see what it does" + (f"; {ends}" if ends else "")
        super().__init__(what, hint=hint)


class OtherVersion(UserError):
    """The daemon runs another version of meshd, in which this request or its reply is different."""

    def __init__(self, home: Path, version: str, what: str) -> None:
        super().__init__(
            f"the daemon of `{home}` runs meshd {version[:_VERSION_CHARS]}, this command is {__version__}, "
            f"and they do not understand each other here: {what}",
            hint="run `meshd stop`, then start the node again: it runs the installed version then",
        )
        self.version = version[:_VERSION_CHARS]


class Client:
    """One connection to the daemon of `home`; a context manager.

    Raises NotRunning when there is none, NotAnswering when it has not come so far, UserError when it cannot
    be reached, Refused with the daemon's own reason, Broken when it goes away before it has answered.
    """

    def __init__(self, home: Path, *, user: int | None = None) -> None:
        """Connect. `user`: the id of the user whose daemon it is, for root; None: the present one."""
        self._home = home
        path = find_socket(home)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(path)
            uid, self.daemon_pid = peer_of(self._socket)
            if not allowed(uid) and uid != user:
                raise UserError(
                    f"the control socket `{path}` belongs to user {uid}",
                    hint="set MESHD_HOME to your own directory",
                )
        except BaseException:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("rb")

    def _connect(self, path: Path) -> None:
        if not is_short_enough(path.parent):  # a daemon would have left a pointer to a shorter one
            raise _absent(self._home)
        self._socket.settimeout(_CONNECT_SECONDS)
        try:
            _connect_patiently(self._socket, path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise _absent(self._home) from None
        except PermissionError:
            raise UserError(
                f"not allowed to use the control socket `{path}`",
                hint="run this as the user who runs the daemon",
            ) from None
        except (TimeoutError, BlockingIOError):
            raise Silent(self._home, _holder(self._home) or 0) from None
        except OSError as error:
            raise UserError(
                f"cannot use the control socket `{path}`: {error.strerror or error}",
                hint="check MESHD_HOME",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._lines.close()
        self._socket.close()

    def ask(self, request: Request[R], *, seconds: float = REPLY_SECONDS) -> R:
        """Send a request, wait at most `seconds` for its reply."""
        if self.daemon_pid and is_stopped_by_ps(self.daemon_pid):
            raise Silent(self._home, self.daemon_pid)
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(encode_request(request))
            line = self._lines.readline(MAX_REPLY_BYTES + 1)
        except TimeoutError:
            raise Silent(self._home, self.daemon_pid, after=f" within {seconds:.0f} s") from None
        except OSError as error:
            raise self._gone() from error
        if not line.endswith(b"\n"):
            raise self._gone()
        body = decode_line(line)
        try:
            refusal = body.get("error")
            if isinstance(refusal, Mapping):
                raise _refused(refusal)
            return from_json(request.reply_type(), body.get("reply"))
        except (Refused, RemoteProtocolError) as error:
            version = body.get("meshd")
            if error.code == _MISUNDERSTOOD and isinstance(version, str) and version != __version__:
                raise OtherVersion(self._home, version, error.what) from None
            raise

    def _gone(self) -> Broken:
        return Broken(
            f"the daemon of `{self._home}` ended before it answered", hint="run `meshd logs` to see why"
        )


def _absent(home: Path) -> UserError:
    pid = _holder(home)
    return NotRunning(home) if pid is None else NotAnswering(home, pid)


def _holder(home: Path) -> int | None:
    """Return the process that uses `home`, if there is one."""
    from meshd.identity.folder import DAEMON, lock_holder

    return lock_holder(home, purpose=DAEMON)


def _connect_patiently(connection: socket.socket, path: Path) -> None:
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return connection.connect(os.fspath(path))
        except BlockingIOError:  # Linux, at once, when more wait than the daemon has room for
            if time.monotonic() >= deadline:
                raise
            time.sleep(FULL_SECONDS)


def _refused(refusal: Mapping[object, object]) -> Refused:
    what, hint, code = (refusal.get(name) for name in ("what", "hint", "code"))
    if not isinstance(what, str) or not isinstance(hint, str) or not isinstance(code, str):
        raise RemoteProtocolError("an error without text", code="message")
    return Refused(what, code=code, hint=hint)


def ask(home: Path, request: Request[R], *, seconds: float = REPLY_SECONDS) -> R:
    """Send one request on a new connection; return its reply."""
    with Client(home) as client:
        return client.ask(request, seconds=seconds)
