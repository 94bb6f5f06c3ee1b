"""The states of a connection to a relay, and how its socket is set up."""

import socket
from enum import Enum, Flag, auto
from typing import Protocol, TypeVar

C = TypeVar("C", contravariant=True)

_NOT_SENT_BYTES = 128 << 10  # what the kernel takes before it has sent what it has


class RelayStage(Enum):
    """The other side's progress on a connection."""

    FIRST = auto()  # nothing has come
    STUN = auto()
    SHAKING = auto()
    PREFACE = auto()  # TLS stands, neither proof nor ticket has begun
    CONTROL = auto()
    WAITING = auto()  # for the other end of its circuit
    JOINED = auto()
    OVER = auto()


class Hold(Flag):
    """The reason why a connection is not read."""

    NOTHING = 0
    WAITING = auto()
    FULL = auto()  # the other end takes no more
    OWED = auto()  # its node has used more than its rate
    UNREAD = auto()  # control messages wait


class RelayExchange(Protocol[C]):
    """The relay as its connections see it. No method raises."""

    def arrived(self, connection: C) -> bool:
        """Admit a connection; False if there is no room for it."""
        ...

    def control(self, connection: C) -> None:
        """Begin the proof of a control connection."""
        ...

    def ticket(self, connection: C, ticket: bytes) -> None:
        """Redeem a ticket."""
        ...

    def carried(self, connection: C, size: int) -> None:
        """Count `size` bytes of a circuit that came on it and were passed on."""
        ...

    def lost(self, connection: C) -> None:
        """Forget a connection whose socket is closed."""
        ...


def tune(sock: socket.socket) -> None:
    """Tune the socket: quick to send, quick to notice a dead peer, little buffered in the kernel."""
    for name, value in (
        ("TCP_NODELAY", 1),
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),  # ms; also for a node that takes nothing any more
        ("TCP_NOTSENT_LOWAT", _NOT_SENT_BYTES),
    ):
        number = getattr(socket, name, None)
        if number is not None:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, number, value)
            except OSError:
                continue  # the other side has disconnected already
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except OSError:
        return
