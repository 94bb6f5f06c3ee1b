"""An event loop that looks up names in threads which nothing waits for at the end.

Where no name server answers, a lookup takes 10 to 30 s, and no call ends it sooner. The threads of asyncio
are joined when a program ends, so such a program would not stop before.
"""

import asyncio
import contextlib
import socket
import threading
from functools import partial
from selectors import BaseSelector
from socket import AddressFamily
from typing import Literal

MOST_LOOKUPS = 32  # at a time, for which there is a thread each; one question has one thread
_Question = tuple[bytes | str | None, bytes | str | int | None, int, int, int, int]
_OfV4 = tuple[Literal[AddressFamily.AF_INET], socket.SocketKind, int, str, tuple[str, int]]
_V6Address = tuple[str, int, int, int] | tuple[int, bytes]
_OfV6 = tuple[Literal[AddressFamily.AF_INET6], socket.SocketKind, int, str, _V6Address]
_Found = list[_OfV4 | _OfV6]


class LookupLoop(asyncio.SelectorEventLoop):
    """An event loop for asyncio.Runner(loop_factory=...)."""

    def __init__(self, selector: BaseSelector | None = None) -> None:
        super().__init__(selector)
        self._lookups: dict[_Question, asyncio.Future[_Found]] = {}

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> _Found:
        """Look up a name as `socket.getaddrinfo` does. Raises OSError or UnicodeError."""
        question = host, port, family, type, proto, flags
        answer = self._lookups.get(question)
        if answer is None:
            if len(self._lookups) >= MOST_LOOKUPS:
                raise socket.gaierror(socket.EAI_AGAIN, "too many names are being looked up")
            answer = self._lookups[question] = self.create_future()
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen in any case
            look_up = partial(self._look_up, question, answer)
            threading.Thread(target=look_up, name="look-up", daemon=True).start()
        return await asyncio.shield(answer)

    def _look_up(self, question: _Question, answer: "asyncio.Future[_Found]") -> None:
        found: _Found | Exception
        try:
            found = socket.getaddrinfo(*question)
        except (OSError, UnicodeError) as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.call_soon_threadsafe(self._answered, question, answer, found)

    def _answered(
        self, question: _Question, answer: "asyncio.Future[_Found]", found: _Found | Exception
    ) -> None:
        del self._lookups[question]
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)
