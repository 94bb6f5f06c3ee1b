"""A UDP proxy that is a Wire: stalled or cut datagrams are lost, and nobody is told."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator


class UdpProxy:
    """Forwards datagrams between senders to `port` and `target`, one socket for each sender."""

    def __init__(self, host: str, target: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._target = (host, target)
        self._passing = {"up": True, "down": True}
        self._backs: dict[tuple[str, int], socket.socket] = {}
        self._dead: set[tuple[str, int]] = set()
        self.most_bytes = 65536  # of one datagram; longer ones vanish
        self._front = socket.socket(self._family, socket.SOCK_DGRAM)
        self._front.setblocking(False)
        self._front.bind((host, 0))
        self.port: int = self._front.getsockname()[1]
        self._loop.add_reader(self._front, self._up)

    def _up(self) -> None:
        while True:
            try:
                data, sender = self._front.recvfrom(65536)
            except OSError:
                return
            sender = sender[:2]
            if sender in self._dead or not self._passing["up"] or len(data) > self.most_bytes:
                continue
            with contextlib.suppress(OSError):
                self._back_of(sender).send(data)

    def _back_of(self, sender: tuple[str, int]) -> socket.socket:
        back = self._backs.get(sender)
        if back is None:
            back = self._backs[sender] = socket.socket(self._family, socket.SOCK_DGRAM)
            back.setblocking(False)
            back.connect(self._target)
            self._loop.add_reader(back, self._down, back, sender)
        return back

    def _down(self, back: socket.socket, sender: tuple[str, int]) -> None:
        while True:
            try:
                data = back.recv(65536)
            except OSError:
                return
            if self._passing["down"] and len(data) <= self.most_bytes:
                with contextlib.suppress(OSError):
                    self._front.sendto(data, sender)

    def move(self) -> None:
        """Forget as some routers do: each sender is seen from a new port from here on."""
        for sender in list(self._backs):
            self._drop(sender)

    def _drop(self, sender: tuple[str, int]) -> None:
        back = self._backs.pop(sender)
        self._loop.remove_reader(back)
        back.close()

    def cut(self) -> None:
        """Nothing of the connections there are passes any more, for ever."""
        for sender in list(self._backs):
            self._dead.add(sender)
            self._drop(sender)

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """Lose everything."""
        if up:
            self._passing["up"] = False
        if down:
            self._passing["down"] = False

    def flow(self) -> None:
        """Forward again."""
        self._passing = {"up": True, "down": True}

    def close(self) -> None:
        self.cut()
        self._loop.remove_reader(self._front)
        self._front.close()


@contextlib.asynccontextmanager
async def udp_proxy(target: int, *, host: str = "127.0.0.1") -> AsyncIterator[UdpProxy]:
    """A running proxy in front of `target`."""
    proxy = UdpProxy(host, target)
    try:
        yield proxy
    finally:
        proxy.close()
