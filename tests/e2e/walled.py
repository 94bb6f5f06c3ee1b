"""A worker's port behind the firewall, reached through meshd's own tunnel without a mesh between."""

import asyncio
import socket
from types import TracebackType
from typing import Self

from meshd.base.errors import MeshdError, RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.rpc.firewall import Firewall
from meshd.tunnel.expose import connect_through
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.pump import Counter, pump

from tests.e2e.loop_thread import LoopThread
from tests.unit.tunnel.far import streams


class Walled:
    """Context manager; `endpoint` is what a head connects to, `refused` what it was refused for."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"
        self.refused: list[str] = []
        self.counter = Counter()
        self._loop = LoopThread(self._accept)

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.__exit__(kind, error, trace)
        self._listener.close()

    async def _accept(self, owner: Owner) -> None:
        loop = asyncio.get_running_loop()
        while True:
            taken, _ = await loop.sock_accept(self._listener)
            _, local = await loop.connect_accepted_socket(LocalSocket, taken)
            near, far, _, _ = streams()
            owner.start(pump(local, near, counter=Counter()), name="head's side")
            owner.start(
                connect_through(
                    far,
                    ("127.0.0.1", self._target_port),
                    counter=self.counter,
                    inspector=Firewall(),
                    on_broken=self._note,
                ),
                name="worker's side",
            )

    def _note(self, error: MeshdError) -> None:
        if isinstance(error, RemoteProtocolError):
            self.refused.append(error.what)
