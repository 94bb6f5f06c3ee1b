"""The congestion window and the pacer of QUIC links, as aioquic asks for them; bbr.py decides.

Registered with the library by its own means (the window) and put in the place of its own (the pacer).
"""

from collections.abc import Iterable

from aioquic.quic.congestion.base import QuicCongestionControl, register_congestion_control
from aioquic.quic.packet_builder import QuicSentPacket

from meshd.link.bbr import ModelWindow

SAFE_DATAGRAM_BYTES = 1200  # every path that carries QUIC takes it (RFC 9000 section 14)
_BURST_SECONDS = 0.008  # what may go out at once after the loop was late
WAKE_SECONDS = 0.001  # timers are no finer
WINDOW_NAME = "meshd-model"


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
