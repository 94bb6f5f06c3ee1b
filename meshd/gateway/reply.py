"""The client's side of a stream: whole events, and a comment line after a period of silence."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from meshd.base.counting_text import without_numbers
from meshd.base.errors import Broken

COMMENT = b": keep-alive\n\n"  # clients drop it (WHATWG HTML, 9.2.6)
_LOOK_SECONDS = 1.0  # between two looks at whether there is something to tell


class ClientGone(Broken):
    """The client hung up while it was being written to."""


class StreamReply:
    """A server-sent events answer to `request`, begun by the first byte or by the first comment.

    Writes wait until the client has taken what came before: about 128 KiB are held at most.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        *,
        silence: float,
        headers: dict[str, str],
        notice: Callable[[], str] = lambda: "",
    ) -> None:
        """`notice`: what a comment tells instead, as soon as there is something."""
        self._request = request
        self._silence = silence
        self._notice = notice
        self._lock = asyncio.Lock()
        self._last = asyncio.get_running_loop().time()
        self._quiet = False
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # a proxy before us shall not collect the stream either
                **headers,
            }
        )

    @property
    def begun(self) -> bool:
        """True when status and headers are out: from then on errors are events."""
        return self.response.prepared

    async def begin(self) -> None:
        """Send status and headers now. Raises ClientGone."""
        await self.send(b"")

    async def send(self, data: bytes) -> None:
        """Write bytes and wait until the client has room again. Raises ClientGone."""
        async with self._lock:
            await self._write(data)

    async def say(self, text: str) -> None:
        """A comment between events, if the answer has begun. Raises ClientGone."""
        if self.begun:
            await self.send(_comment(text))

    async def cut(self, why: str) -> None:
        """Say why in a comment, and end the connection without the end of the answer. Raises ClientGone."""
        await self.send(_comment(why))
        if self._request.transport is not None:
            self._request.transport.close()  # what was written still goes

    async def stop_comments(self) -> None:
        """No comment is under way when this returns, and none is sent until `allow_comments`."""
        self._quiet = True
        async with self._lock:
            pass

    def allow_comments(self, allowed: bool) -> None:
        """Comments may be sent between events, never within one."""
        self._quiet = not allowed

    async def keep_alive(self) -> None:
        """Write a comment after each `silence` seconds without a byte, and as soon as there is something else
        to tell; ends when the client is gone."""
        loop = asyncio.get_running_loop()
        pause = min(_LOOK_SECONDS, self._silence)
        looked, told = loop.time(), ""
        while True:
            due = min(self._last + self._silence, max(self._last, looked) + pause)
            await asyncio.sleep(max(0.0, due - loop.time()))
            looked = loop.time()
            if looked < self._last + pause:
                continue  # an answer that comes waits for nothing
            async with self._lock:
                notice, is_due = self._notice(), loop.time() >= self._last + self._silence
                subject = without_numbers(notice)
                if not is_due and (not notice or subject == told):
                    told = subject
                    continue
                if self._quiet:
                    self._last = loop.time() if is_due else self._last
                    continue
                try:
                    await self._write(_comment(notice) if notice else COMMENT)
                except ClientGone:
                    return  # sending the answer will fail as well
                told = subject

    async def _write(self, data: bytes) -> None:
        try:
            if not self.response.prepared:
                await self.response.prepare(self._request)
            if data:
                await self.response.write(data)
        except ConnectionError as error:
            raise ClientGone("the client disconnected") from error
        finally:
            self._last = asyncio.get_running_loop().time()


def _comment(text: str) -> bytes:
    """One line, whatever a name in it is made of."""
    return f": {' '.join(text.split())}\n\n".encode("utf-8", "replace")
