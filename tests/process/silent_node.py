"""A control socket whose node ends each connection at once."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def hanging_up(path: Path) -> Iterator[None]:
    """Listen there while the block runs."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen(8)

    def hang_up() -> None:
        with suppress(OSError):
            while True:
                server.accept()[0].close()

    thread = threading.Thread(target=hang_up, name="hanging up")
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)
