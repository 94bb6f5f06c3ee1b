"""QUIC by aioquic, sans-IO, with what it leaves open closed: credit, path MTU, limits. Imported on demand.

The only module that knows aioquic (1.7). An engine is one connection
with one bidirectional stream. Its differences from the library's own:

- Credit (MAX_DATA, MAX_STREAM_DATA; RFC 9000 section 4) follows what was read. The library doubles its
  windows by what has *arrived*, so a reader that does not read slows nobody down, and a peer that sends one
  byte far ahead has it allocate all that lies before.
- Datagrams have 1200 bytes until a larger one has arrived (RFC 8899), and again when larger ones get lost.
- The congestion window (`Window`) and the pacer follow a model of the path (bbr.py).
- A peer may open one stream, as dialler, and nothing else.
- The dialler moves only once the handshake is done (RFC 9000 section 9), and then gets no probe of the path
  MTU before the new address has answered. The library follows every datagram of the handshake, and takes the
  last one's address for validated, which anybody can forge who began from his own.
"""

import os
from collections.abc import Iterable, Sequence
from typing import cast

from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.base import QuicCongestionControl, register_congestion_control
from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    END_STATES,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    QuicConnection,
    QuicConnectionState,
)
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    HandshakeCompleted,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet import (
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder, QuicSentPacket
from aioquic.quic.recovery import QuicPacketPacer, QuicPacketSpace
from aioquic.quic.retry import QuicRetryTokenHandler
from aioquic.quic.stream import QuicStream
from aioquic.tls import Epoch

from meshd.identity.tls_certificate import LinkCertificate, certificate_hash, unpack_link_certificate
from meshd.link.bbr import ModelWindow
from meshd.link.net.udp_sockets import ETHERNET_MTU, HEADER_BYTES, Origin
from meshd.link.quic import ID_BYTES

PROBED_DATAGRAM_BYTES = (1452, 1400)  # IPv6 over Ethernet; through most tunnels
JUMBO_DATAGRAM_BYTES = 8952  # IPv6 over jumbo frames, and within this machine: packets cost by number
# for the proof, of which 4 KiB are read at most, and for what follows it before we have said that it is good:
# without that the other side would lose a round trip
FIRST_CREDIT_BYTES = 64 << 10
RECEIVE_WINDOW_BYTES = 4 << 20  # unread, or arrived with gaps: 20 MB/s at 200 ms
BLACK_HOLE_LOSSES = 8  # large datagrams, and none arrived …
BLACK_HOLE_SECONDS = 0.5  # … for so long: a full queue lets some through
PROBE_AGAIN_SECONDS = 60.0
ALPN = "meshd"
_STREAM = 0  # the first one that the dialler opens
SAFE_DATAGRAM_BYTES = 1200  # every path that carries QUIC takes it (RFC 9000 section 14)
_BURST_SECONDS = 0.008  # what may go out at once after the loop was late
WAKE_SECONDS = 0.001  # timers are no finer
WINDOW_NAME = "meshd-model"


def dialler_settings(*, idle_seconds: float) -> QuicConfiguration:
    """Return settings for outgoing connections; the proof judges the certificate, not an authority."""
    return _settings(QuicConfiguration(is_client=True), idle_seconds)


def listener_settings(certificate: LinkCertificate, *, idle_seconds: float) -> QuicConfiguration:
    """Return settings for incoming connections."""
    settings = _settings(QuicConfiguration(is_client=False), idle_seconds)
    settings.certificate, settings.private_key = unpack_link_certificate(certificate)
    return settings


def _settings(settings: QuicConfiguration, idle_seconds: float) -> QuicConfiguration:
    settings.alpn_protocols = [ALPN]
    settings.connection_id_length = ID_BYTES
    settings.congestion_control_algorithm = WINDOW_NAME
    settings.idle_timeout = idle_seconds
    settings.max_data = settings.max_stream_data = FIRST_CREDIT_BYTES
    settings.supported_versions = [QuicProtocolVersion.VERSION_1]
    settings.verify_mode = 0  # ssl.CERT_NONE
    return settings


class QuicEngine(QuicConnection):
    """One connection. After each `receive_datagram`, `handle_timer`: `poll`; then send due packets."""

    def __init__(
        self,
        settings: QuicConfiguration,
        *,
        original_id: bytes | None = None,
        retry_id: bytes | None = None,
    ) -> None:
        super().__init__(
            configuration=settings,
            original_destination_connection_id=original_id,
            retry_source_connection_id=retry_id,
        )
        # Let the dialler open one stream, and nobody anything else.
        self._local_max_streams_bidi.value = self._local_max_streams_bidi.sent = int(not settings.is_client)
        self._local_max_streams_uni.value = self._local_max_streams_uni.sent = 0
        # Replace the library's pacer by one that follows the same model as the window.
        self._window_control = cast(Window, self._loss._cc)
        self._loss._pacer = cast(
            QuicPacketPacer, Pacer(self._window_control.model, settings.max_datagram_size)
        )
        self._window = FIRST_CREDIT_BYTES
        self._consumed = 0
        self._written = 0
        self._stream: QuicStream | None = None
        self._sizes: tuple[int, ...] = ()  # worth trying
        self._to_probe: list[int] = []
        self._probe_at: float | None = None
        self._missed = False  # a probe did not arrive
        self.inbox: list[bytes] = []  # in order; its reader calls `consume` once it is used
        self.secured = False  # the handshake is done
        self.ended = False  # the other side's half is complete
        self.gone: str | None = None  # the connection is no more: why
        self.new_ids: list[bytes] = []
        self.old_ids: list[bytes] = []

    # --- what came

    def receive_datagram(self, data: bytes, addr: Origin, now: float) -> None:
        """Handle one datagram; before the handshake is done, only from where the first one came."""
        if self._is_client or self._handshake_confirmed or not self.begun or addr == self.get_peer_address():
            super().receive_datagram(data, addr, now)

    def poll(self) -> None:
        """Sort the library's events into our attributes."""
        self._window_control.settle(starved=not self.unsent)
        while (event := self.next_event()) is not None:
            if isinstance(event, StreamDataReceived):
                if event.data:
                    self.inbox.append(event.data)
                self.ended = self.ended or event.end_stream
            elif isinstance(event, HandshakeCompleted):
                self.secured = True
            elif isinstance(event, ConnectionIdIssued):
                self.new_ids.append(event.connection_id)
            elif isinstance(event, ConnectionIdRetired):
                self.old_ids.append(event.connection_id)
            elif isinstance(event, ConnectionTerminated):
                self.gone = self.gone or _reason(event)
            elif isinstance(event, StreamReset | StopSendingReceived):
                self.gone = self.gone or "the stream was reset"
        if self._close_event is not None and self._state in END_STATES:
            self.gone = self.gone or _reason(self._close_event)  # the library tells only after its draining

    @property
    def begun(self) -> bool:
        """True once the other side has sent something that only a QUIC dialler can have made."""
        return self._state is not QuicConnectionState.FIRSTFLIGHT

    def binding(self) -> bytes:
        """Return the SHA-256 of the listener's certificate (DER); empty when it has shown none."""
        certificate = self.tls._peer_certificate
        return certificate_hash(certificate) if certificate is not None else b""

    def consume(self, size: int) -> bool:
        """Free `size` bytes of the inbox; True when the other side should hear of new credit soon."""
        self._consumed += size
        limit = self._local_max_data
        if self._consumed + self._window - limit.value < self._window // 4:
            return False
        self._grant()
        return True

    def widen(self, mtu: int = ETHERNET_MTU) -> None:
        """Open the whole window to a proven peer, and try larger datagrams.

        `mtu` in bytes is what its first hop takes. Where that is Ethernet, a probe for more would only cost.
        """
        self._window = RECEIVE_WINDOW_BYTES
        self._grant()
        jumbo = (JUMBO_DATAGRAM_BYTES,) if mtu >= JUMBO_DATAGRAM_BYTES + HEADER_BYTES else ()
        self._sizes = jumbo + PROBED_DATAGRAM_BYTES
        self._to_probe = self._probes()

    def _grant(self) -> None:
        self._local_max_data.value = self._consumed + self._window
        stream = self._streams.get(_STREAM)
        if stream is not None:
            stream.max_stream_data_local = self._consumed + self._window

    # --- what goes

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Queue the pieces; `unsent` counts the bytes not sent yet, `held` those not confirmed."""
        for piece in pieces:
            self.send_stream_data(_STREAM, cast(bytes, piece))
            self._written += len(piece)
        if self._stream is None:
            self._stream = self._streams.get(_STREAM)

    def finish(self) -> None:
        """End our direction: no more will be written."""
        if _STREAM in self._streams and self.gone is None:
            self.send_stream_data(_STREAM, b"", end_stream=True)
            self._stream = self._streams[_STREAM]

    @property
    def unsent(self) -> int:
        """The written bytes that have never been sent."""
        return self._written - self._stream.sender.highest_offset if self._stream is not None else 0

    @property
    def held(self) -> int:
        """The written bytes kept because something before or among them is not confirmed."""
        return self._written - self._stream.sender._buffer_start if self._stream is not None else 0

    @property
    def finished(self) -> bool:
        """True when all that was written has arrived, the end included (or there was no stream)."""
        return self._stream is None or self._stream.sender.is_finished

    def quiet(self, now: float) -> bool:
        """Return True when it is certain that nothing is due: finding out by building packets costs 25 µs.

        Most of all after data came in: it is acknowledged later, and its reader should go first.
        """
        if (
            not self._handshake_confirmed
            or self._close_pending
            or self._probe_pending
            or self._handshake_done_pending
            or self._ping_pending
            or self._retire_connection_ids
            or self._to_probe
            or self._missed
            or not self._host_cids[-1].was_sent
            or not self._crypto_streams[Epoch.ONE_RTT].sender.buffer_is_empty
            or self._local_max_data.value != self._local_max_data.sent
        ):
            return False
        ack_at = self._spaces[Epoch.ONE_RTT].ack_at
        if ack_at is not None and ack_at <= now:
            return False
        stream = self._streams.get(_STREAM)
        if stream is not None and (
            not stream.sender.buffer_is_empty
            or stream.max_stream_data_local != stream.max_stream_data_local_sent
        ):
            return False
        path = self._network_paths[0]
        return len(self._network_paths) == 1 and path.is_validated and not path.remote_challenges

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Origin]]:
        """Return the due datagrams, at most three times the bytes received from an unvalidated address.

        RFC 9000, section 8.1. The library does not count a close against that limit: it is left out then.
        """
        datagrams = cast(list[tuple[bytes, Origin]], super().datagrams_to_send(now))
        path = self._network_paths[0] if self._network_paths else None
        if path is not None and not path.is_validated:
            while datagrams and path.bytes_sent > 3 * path.bytes_received:
                path.bytes_sent -= len(datagrams.pop()[0])
        return datagrams

    def path_probe(self, now: float) -> bytes | None:
        """Return a datagram larger than usual, to learn whether the path takes it; None when none is due."""
        window = self._window_control
        if self._max_datagram_size > SAFE_DATAGRAM_BYTES and (
            self._loss._pto_count >= 2
            or (window.large_lost >= BLACK_HOLE_LOSSES and now - window.large_lost_at > BLACK_HOLE_SECONDS)
        ):
            window.large_lost, window.large_lost_at = 0, 0.0
            self._max_datagram_size = SAFE_DATAGRAM_BYTES
            self._probe_at = now + PROBE_AGAIN_SECONDS
        if self._missed:
            self._missed, self._probe_at = False, now + PROBE_AGAIN_SECONDS
        if self._probe_at is not None and now >= self._probe_at:
            self._probe_at, self._to_probe = None, self._probes()
        if not self._to_probe or not self._handshake_confirmed or self._close_pending:
            return None
        if self._state is not QuicConnectionState.CONNECTED or not self._network_paths[0].is_validated:
            return None  # a probe knows no limit of what an address may be sent that has not answered
        return self._build_probe(self._to_probe.pop(0), now)

    def _build_probe(self, size: int, now: float) -> bytes | None:
        builder = QuicPacketBuilder(
            host_cid=self.host_cid,
            is_client=self._is_client,
            max_datagram_size=size,
            packet_number=self._packet_number,
            peer_cid=self._peer_cid.cid,
            spin_bit=self._spin_bit,
            version=cast(int, self._version),
        )
        builder.start_packet(QuicPacketType.ONE_RTT, self._cryptos[Epoch.ONE_RTT])
        frame = builder.start_frame(QuicFrameType.PING, handler=self._probed, handler_args=(size,))
        frame.push_bytes(bytes(builder.remaining_buffer_space))  # PADDING
        sent = self._flush_builder(
            builder=builder, network_path=self._network_paths[0], peer_cid=self._peer_cid.cid, now=now
        )
        return sent[0][0] if sent else None

    def _probed(self, delivery: QuicDeliveryState, size: int) -> None:
        if delivery is QuicDeliveryState.ACKED and size > self._max_datagram_size:
            self._max_datagram_size = size
            self._to_probe.clear()
        elif not self._to_probe and self._max_datagram_size == SAFE_DATAGRAM_BYTES:
            self._missed = self._probe_at is None  # a narrow path, or chance: it is tried again

    def _probes(self) -> list[int]:
        """Return each size twice: one lost datagram says nothing."""
        return [size for size in self._sizes for _ in range(2)]

    # --- instead of the library's own

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        limit = self._local_max_data
        if limit.value != limit.sent:
            frame = builder.start_frame(
                limit.frame_type,
                capacity=CONNECTION_LIMIT_FRAME_CAPACITY,
                handler=self._on_connection_limit_delivery,
                handler_args=(limit,),
            )
            frame.push_uint_var(limit.value)
            limit.sent = limit.value

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        if stream.max_stream_data_local_sent != stream.max_stream_data_local:
            frame = builder.start_frame(
                QuicFrameType.MAX_STREAM_DATA,
                capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
                handler=self._on_max_stream_data_delivery,
                handler_args=(stream,),
            )
            frame.push_uint_var(_STREAM)  # there is no other
            frame.push_uint_var(stream.max_stream_data_local)
            stream.max_stream_data_local_sent = stream.max_stream_data_local


def _reason(event: ConnectionTerminated) -> str:
    if event.error_code == 0:
        return "the other side left"
    return (event.reason_phrase or f"error {event.error_code:#x}").lower()[:200]


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


class Window(QuicCongestionControl):
    """ModelWindow as the library asks for it; counts what happens to large datagrams."""

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self.model = ModelWindow(max_datagram_size)
        self.large_lost = 0  # since one arrived
        self.large_lost_at = 0.0
        self._acked = 0
        self._acked_at = self._acked_sent = 0.0

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        self.bytes_in_flight -= packet.sent_bytes
        if packet.sent_bytes > SAFE_DATAGRAM_BYTES:
            self.large_lost, self.large_lost_at = 0, 0.0
        self._acked += packet.sent_bytes
        self._acked_at = now
        self._acked_sent = max(self._acked_sent, packet.sent_time or now)

    def settle(self, *, starved: bool) -> None:
        """Tell the model of all that was acknowledged since the last call: once for a batch of packets."""
        if self._acked:
            self.model.acked(self._acked_at, self._acked, self._acked_at - self._acked_sent, starved=starved)
            self.congestion_window = self.model.window
            self._acked, self._acked_sent = 0, 0.0

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        self.bytes_in_flight += packet.sent_bytes

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes
            if packet.sent_bytes > SAFE_DATAGRAM_BYTES:
                self.large_lost += 1
                self.large_lost_at = self.large_lost_at or now
            self.model.lost(now, packet.sent_bytes, packet.sent_time or now)
        self.congestion_window = self.model.window

    def on_persistent_congestion(self) -> None:
        self.model.silenced()
        self.congestion_window = self.model.window

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Ignore the measurement: each acknowledged packet brings its own."""


class Pacer:
    """Instead of the library's, whose bursts of 16 packets are too small for timers of a millisecond."""

    def __init__(self, model: ModelWindow, datagram: int) -> None:
        self._model = model
        self._datagram = datagram
        self._budget = 0.0
        self._at = 0.0

    def next_send_time(self, now: float) -> float | None:
        rate = self._model.pacing_rate
        if not rate:
            return None
        most = max(_BURST_SECONDS * rate, 10.0 * self._datagram)
        self._budget = min(self._budget + (now - self._at) * rate, most)
        self._at = now
        if self._budget > 0:
            return None
        return now + (max(WAKE_SECONDS * rate, self._datagram) - self._budget) / rate

    def update_after_send(self, now: float) -> None:
        # acknowledgements are not held back, and count here as much as data: they must not pile up a debt
        self._budget = max(self._budget - self._datagram, -2.0 * self._datagram)

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Do nothing: the model has its own rate."""


register_congestion_control(WINDOW_NAME, Window)
