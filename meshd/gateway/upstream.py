"""Speaks HTTP with what is behind the gateway, over connections that somebody else makes."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_proto import ResponseHandler

from meshd.base.errors import MeshdError
from meshd.base.peer_limits import INTERIM_ANSWERS

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.http import RawResponseMessage
    from aiohttp.streams import StreamReader
    from aiohttp.tracing import Trace

HELD_ANSWER_BYTES = 8 << 20  # a whole answer up to this is held, so that a loss is a clean 502
_READ_BYTES = 64 << 10  # aiohttp stops reading at twice this

_CONTENT_TYPES = frozenset({"application/json", "text/event-stream", "text/plain"})  # of llama-server

Connect = Callable[[], Awaitable[socket.socket]]


class UpstreamLost(MeshdError):
    """llama-server went away, or cannot answer; `taken` tells whether it had the request by then."""

    def __init__(self, what: str, *, taken: bool) -> None:
        super().__init__(what)
        self.taken = taken


class _CountedAnswers(ResponseHandler):
    """aiohttp's, which reads answers that are none yet for as long as they come. Who answers may be another
    node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._interim = 0

    def feed_data(self, data: "tuple[RawResponseMessage, StreamReader]", size: int = 0) -> None:
        """See aiohttp.streams.DataQueue: the head of an answer has come."""
        self._interim += data[0].code < 200
        if self._interim <= INTERIM_ANSWERS.most:
            super().feed_data(data, size)
        elif isinstance(self.transport, asyncio.Transport):
            self.transport.abort()


class _GivenConnector(aiohttp.UnixConnector):
    """aiohttp's connector for unix sockets, with connections that somebody else makes."""

    def __init__(self, connect: Connect) -> None:
        super().__init__("/", limit=0, force_close=True)
        self._connect_one = connect

    async def _create_connection(
        self, req: "ClientRequest", traces: "list[Trace]", timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        try:
            connection = await self._connect_one()
            try:
                _, protocol = await loop.create_unix_connection(
                    lambda: _CountedAnswers(loop), sock=connection
                )
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return protocol


def open_session(connect: Connect) -> aiohttp.ClientSession:
    """A client session over connections that `connect` makes, without timeouts; close it when done."""
    return aiohttp.ClientSession(
        connector=_GivenConnector(connect),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_BYTES,
    )


async def send_call(
    session: aiohttp.ClientSession, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> aiohttp.ClientResponse:
    """Returns when the answer has begun. Raises UpstreamLost."""
    try:
        return await session.request(
            method, f"http://localhost{path}", data=body, headers=headers, allow_redirects=False
        )
    except aiohttp.ClientConnectorError as error:
        raise UpstreamLost(f"llama-server cannot be reached: {error.os_error}", taken=False) from error
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamLost("llama-server exited before it answered", taken=True) from error
    except MeshdError as error:
        raise UpstreamLost(error.what, taken=False) from error


async def read_some(answer: aiohttp.ClientResponse) -> bytes:
    """The next bytes, empty at the end. Raises UpstreamLost."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamLost("llama-server exited during the answer", taken=True) from error


def is_event_stream(answer: aiohttp.ClientResponse) -> bool:
    """Whether it comes piece by piece."""
    return answer.content_type == "text/event-stream"


def answer_headers(answer: aiohttp.ClientResponse, more: Mapping[str, str]) -> dict[str, str]:
    """For the client of an answer that is passed on."""
    kind = answer.headers.get("Content-Type", "application/json")
    if answer.content_type not in _CONTENT_TYPES:
        kind = "application/octet-stream"  # who answers may be another node: no page of its own runs here
    headers = {"Content-Type": kind, **more}
    if answer.status == 503:
        headers["Retry-After"] = "1"  # llama-server is loading, or busy
    return headers
