"""Join two ends by a wire under a test's control; and a TCP proxy that is such a wire."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Protocol

from meshd.base.tasks import Owner


class Wire(Protocol):
    """Between the dialling and the accepting end."""

    def cut(self) -> None:
        """Break it at once, for both ends."""
        ...

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """Nothing passes any more (`up` is from the dialler), and nobody is told."""
        ...

    def flow(self) -> None:
        """End of `stall`."""
        ...


class TcpProxy:
    """Forwards bytes between connections to `port` and `target`."""

    def __init__(self, owner: Owner, host: str, target: int) -> None:
        self._owner = owner
        self._host = host
        self._target = target
        self._flowing = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._sockets: list[socket.socket] = []
        self._pumps: list[asyncio.Task[None]] = []
        self.port = 0
        self.flow()

    async def serve(self, ready: asyncio.Event) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.create_server((self._host, 0), family=family) as server:
            server.setblocking(False)
            self.port = server.getsockname()[1]
            loop.add_reader(server, self._accept, server, family)
            ready.set()
            try:
                await asyncio.Event().wait()
            finally:
                loop.remove_reader(server)
                self.cut()

    def _accept(self, server: socket.socket, family: socket.AddressFamily) -> None:
        # by hand: loop.sock_accept loses the socket when it is cancelled at the wrong moment
        with contextlib.suppress(OSError):
            near, _ = server.accept()
            far = socket.socket(family)
            self._sockets += [near, far]
            near.setblocking(False)
            far.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                far.connect((self._host, self._target))
            for name, (source, sink) in {"up": (near, far), "down": (far, near)}.items():
                self._pumps.append(self._owner.start(self._pump(name, source, sink), name=f"proxy-{name}"))

    async def _pump(self, name: str, source: socket.socket, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                await self._flowing[name].wait()
                data = await loop.sock_recv(source, 64 << 10)
                await self._flowing[name].wait()
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                await loop.sock_sendall(sink, data)

    def cut(self) -> None:
        """Reset every connection."""
        for pump in self._pumps:
            pump.cancel()
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            if sock.fileno() >= 0:
                # a pump that waits for the socket must not find its number taken by another one
                loop.remove_reader(sock)
                loop.remove_writer(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close by RST
                sock.close()
        self._sockets.clear()
        self._pumps.clear()

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """Stop forwarding; what the kernel has taken stays where it is."""
        if up:
            self._flowing["up"].clear()
        if down:
            self._flowing["down"].clear()

    def flow(self) -> None:
        """Forward again."""
        for event in self._flowing.values():
            event.set()


@contextlib.asynccontextmanager
async def tcp_proxy(target: int, *, host: str = "127.0.0.1") -> AsyncIterator[TcpProxy]:
    """A running proxy in front of `target`."""
    async with Owner() as owner:
        proxy = TcpProxy(owner, host, target)
        ready = asyncio.Event()
        serving = owner.start(proxy.serve(ready), name="proxy")
        await ready.wait()
        try:
            yield proxy
        finally:
            serving.cancel()
            proxy.cut()
