"""A TCP pipe for tests of who ends it, and when."""

from meshd.link.secure.tls import dialer_context
from meshd.link.tcp.pipe import TcpPipe


class Watched(TcpPipe):
    """A pipe that is never connected and notes how it ends."""

    def __init__(self) -> None:
        super().__init__(dialer_context(), server_side=False)
        self.remote = "test"
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1
        super().abort()
