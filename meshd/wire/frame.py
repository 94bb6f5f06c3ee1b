"""Frames of a link: encoders and an incremental parser, without I/O.

A frame is a type (1 byte, the high bit says that a receiver which does not know it must give up), a length
(4 bytes, big-endian) and that many bytes of body. docs/protocol.md has the tables.
"""


def encode_hello(payload: bytes) -> bytes:
    """The first frame on every link, each way; `payload` is a packed message of at most 64 KiB."""
    raise NotImplementedError


class HelloReader:
    """Takes the peer's Hello off the front of a link's bytes, before a session gets the rest."""

    def __init__(self) -> None:
        self.rest = b""  # what followed the Hello: the first bytes for Session.receive

    def feed(self, data: bytes) -> bytes | None:
        """The Hello's payload once it is complete. Raises RemoteProtocolError (any other frame, too long)."""
        raise NotImplementedError
