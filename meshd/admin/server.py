"""The control socket from the daemon's side: one JSON object a line, request and reply in turn.

The socket is 0600 in a directory of 0700; the kernel reports who connects, and only this user and root
are accepted. Bounded: the length of a line, the number of connections, the time a request may take to arrive.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from meshd import __version__
from meshd.admin.request import Answers, Json, Request, UnknownRequest, decode_request, encode_line, to_json
from meshd.admin.socket_path import (
    MAX_CONNECTIONS,
    MAX_LINE_BYTES,
    check_private,
    choose_socket,
    remove_socket_folder,
)
from meshd.base.errors import MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.fault_boundary import Contained
from meshd.base.processes import allowed, peer_of
from meshd.base.tasks import Owner

_IDLE_SECONDS = 60.0  # for the next request; a connection that asks nothing must not hold one of few places
_WRITE_SECONDS = 10.0
RETRY_SECONDS = 0.2
_OTHER_VERSION = (
    f"the node runs meshd {__version__}: if `meshd --version` differs, `meshd stop` and start it again"
)
_BACKLOG = 64  # so that a burst of verbs waits rather than fails


class AdminServer:
    """Answers for `control` on the socket of `home` while `serve` runs.

    `open` binds (and raises UserError, naming the process, when another daemon answers there already);
    `serve` runs until cancelled, then closes every connection and removes the socket.
    """

    def __init__(self, *, home: Path, control: Answers, environ: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._control = control
        self._environ = os.environ if environ is None else environ
        self._socket: socket.socket | None = None
        self._inode = 0
        self._path = home
        self._open: set[socket.socket] = set()

    @property
    def path(self) -> Path:
        """The path where it listens, once open."""
        return self._path

    def open(self) -> None:
        """Bind and listen; a client that comes before `serve` runs waits in the kernel's queue."""
        try:
            self._open_listener()
        except OSError as error:
            raise UserError(
                f"cannot create the control socket in `{self._home}`: "
                f"{(error.strerror or str(error)).lower()}",
                hint="free space on that disk, and check that this user can write there",
            ) from error

    def _open_listener(self) -> None:
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(self._home)
        self._path = choose_socket(self._home, self._environ)
        _clear_stale(self._path, self._home)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(os.fspath(self._path))
            self._path.chmod(0o600)  # the folder is private already, so there is no moment in between
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._socket = listener
        self._inode = self._path.stat().st_ino

    def close(self) -> None:
        """Stop listening and remove the socket file, unless another daemon's is there by now. Idempotent."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        try:
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()
        except FileNotFoundError:
            pass
        remove_socket_folder(self._path.parent, self._home)

    async def serve(self) -> None:
        """Answer until cancelled."""
        if self._socket is None:
            self.open()
        try:
            async with Owner() as owner:
                try:
                    await self._accept(owner)
                finally:
                    owner.cancel()
        finally:
            for connection in self._open:  # of tasks that were cancelled before they began
                connection.close()
            self._open.clear()
            self.close()

    async def _accept(self, owner: Owner) -> None:
        # not start_unix_server, which makes tasks of its own; nor sock_accept, whose connection is lost when
        # the cancellation comes just after it
        assert self._socket is not None
        while True:
            await _readable(self._socket)
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:  # the client has gone again
                continue
            except OSError:  # no descriptor is free: what is waiting can wait
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if len(self._open) >= MAX_CONNECTIONS or not _is_allowed(connection):
                connection.close()
                continue
            connection.setblocking(False)
            self._open.add(connection)
            owner.start_for("local client", self._talk(connection), name="admin connection")

    async def _talk(self, connection: socket.socket) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE_BYTES)
            writer.transport.set_write_buffer_limits(0)  # drain returns when the kernel has all of it
            while await self._serve_request(reader, writer):
                pass
        except (OSError, TimeoutError):
            pass  # the client has gone, asks nothing or reads nothing: nothing to tell anybody
        finally:
            self._open.discard(connection)
            if writer is None:
                connection.close()
            else:
                writer.transport.abort()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; False when the connection is at its end."""
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                line = await reader.readline()
        except ValueError:  # how StreamReader says that the line is too long
            await _send(writer, _error("message", f"a request is at most {MAX_LINE_BYTES} bytes", ""))
            return False
        if not line.endswith(b"\n"):
            return False
        try:
            request = decoded(line)
        except RemoteProtocolError as error:
            await _send(writer, _error(error.code, error.what, _OTHER_VERSION))
            return False
        try:
            with Contained("local client", "request"):  # whoever asked hears of a failure, expected or not
                reply = await self._control.answer(request)
        except MeshdError as error:
            await _send(writer, _error(_code(error), error.what, error.hint))
            return True
        await _send(writer, {"reply": to_json(reply)})
        return True


async def _readable(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(listener, tell)
    try:
        await ready
    finally:
        loop.remove_reader(listener)


def _is_allowed(connection: socket.socket) -> bool:
    try:
        return allowed(peer_of(connection)[0])
    except OSError:  # macOS no longer knows who it was once they have gone
        return False


def _code(error: MeshdError) -> str:
    if isinstance(error, Refused | RemoteProtocolError):
        return error.code
    return "user" if isinstance(error, UserError) else "failed"


def _error(code: str, what: str, hint: str) -> Mapping[str, Json]:
    return {"error": {"code": code, "what": what, "hint": hint}}


def decoded(line: bytes) -> Request[object]:
    """Read the request of one line. Raises RemoteProtocolError."""
    try:
        return decode_request(line)
    except UnknownRequest:
        import meshd.admin.plan_api  # noqa: F401 - defines more, of which most workers get none

        return decode_request(line)


async def _send(writer: asyncio.StreamWriter, body: Mapping[str, Json]) -> None:
    writer.write(encode_line({**body, "meshd": __version__}))
    async with asyncio.timeout(_WRITE_SECONDS):
        await writer.drain()


def _clear_stale(path: Path, home: Path) -> None:
    """Remove the socket of a daemon that died; raise UserError when one answers there."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UserError(f"`{path}` is in the way of the control socket", hint="move that file away")
    except FileNotFoundError:
        return
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.settimeout(2.0)
    try:
        probe.connect(os.fspath(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except (TimeoutError, BlockingIOError):
        raise _in_use(home, 0) from None  # its queue is full, so it lives
    else:
        raise _in_use(home, peer_of(probe)[1])
    finally:
        probe.close()


def _in_use(home: Path, pid: int) -> UserError:
    who = f" (process {pid})" if pid else ""
    return UserError(
        f"a daemon is already running for `{home}`{who}",
        hint="run `meshd stop`, or set MESHD_HOME to another directory for a second node",
    )
