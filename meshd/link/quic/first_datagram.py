"""The reception of a stranger's first datagram at a QUIC listener; and the dialler's first step."""

import os
from typing import cast

from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from meshd.link.quic.engine import QuicEngine
from meshd.link.quic.sockets import ID_BYTES
from meshd.link.quic.window import SAFE_DATAGRAM_BYTES
from meshd.link.udp.batch_socket import Origin


class Reception:
    """The reply of a listener to the first datagram of a stranger; it keeps no state of it.

    While it is `busy`, strangers must first show that they are where they say (a Retry, RFC 9000 section
    8.1.2), which costs them a round trip and us nothing. Answers are never larger than what they answer.
    """

    def __init__(self, settings: QuicConfiguration) -> None:
        self._settings = settings
        self._tokens = QuicRetryTokenHandler()

    def first(
        self, data: bytes, origin: Origin, now: float, *, busy: bool
    ) -> tuple[QuicEngine, bytes] | bytes | None:
        """Return a new connection and the id that its dialler gave it, a datagram to reply with, or None."""
        # Ignore whatever is too short or too damaged for a QUIC Initial.
        if len(data) < SAFE_DATAGRAM_BYTES:
            return None
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=ID_BYTES)
        except ValueError:
            return None
        if header.packet_type is QuicPacketType.VERSION_NEGOTIATION or header.version is None:
            return None
        # Tell a dialler of another version which versions we speak.
        if header.version not in self._settings.supported_versions:
            return encode_quic_version_negotiation(
                source_cid=header.destination_cid,
                destination_cid=header.source_cid,
                supported_versions=self._settings.supported_versions,
            )
        if header.packet_type is not QuicPacketType.INITIAL:
            return None
        # Validate the address if it brings a token; ask it for one while we are busy.
        original, retry = header.destination_cid, None
        if header.token:
            try:
                original = self._tokens.validate_token(
                    address=origin.address, destination_cid=original, token=header.token, now=now
                )
            except ValueError:
                return None
            retry = header.destination_cid
        elif busy:
            return self._retry(header, origin, now)
        # Create state only now, and drop it if the packet is not a dialler's.
        engine = QuicEngine(self._settings, original_id=original, retry_id=retry)
        engine.receive_datagram(data, origin, now)
        return (engine, header.destination_cid) if engine.begun else None

    def _retry(self, header: QuicHeader, origin: Origin, now: float) -> bytes:
        source = os.urandom(ID_BYTES)
        return encode_quic_retry(
            version=cast(int, header.version),
            source_cid=source,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=self._tokens.create_token(
                address=origin.address,
                original_destination_connection_id=header.destination_cid,
                retry_source_connection_id=source,
                now=now,
            ),
        )


def start_dialling(settings: QuicConfiguration, origin: Origin, now: float) -> QuicEngine:
    """Return the dialler's end of a new connection."""
    engine = QuicEngine(settings)
    engine.connect(origin, now=now)
    return engine
