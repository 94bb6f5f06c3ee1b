"""Test how well an association fills a line of 100 Mbit/s, on a clock of its own: no machine is too slow."""

import heapq

import pytest

from tests.unit.link.webrtc.test_sctp import Line

RATE = 12.5e6  # bytes a second
QUEUE_BYTES = 512 << 10
OVERHEAD_BYTES = 12 + 37 + 28  # SCTP's header, DTLS, UDP over IPv4
BULK_BYTES = 20 << 20
BLOCK = bytes(64 << 10)


class SlowLine(Line):
    """A line with a slow part and a queue before it, there; back it has room for everything."""

    free_at = 0.0
    dropped = 0

    def put(self, queue: list[tuple[float, int, bytes]], packet: bytes) -> None:
        if self.rng.random() < self.loss:
            return
        due = self.now
        if queue is self.there:
            size = len(packet) + OVERHEAD_BYTES
            if (self.free_at - self.now) * RATE + size > QUEUE_BYTES:
                self.dropped += 1
                return
            self.free_at = due = max(self.now, self.free_at) + size / RATE
        self.number += 1
        heapq.heappush(queue, (due + self.delay, self.number, packet))


def seconds_for_bulk(line: SlowLine) -> float:
    """A short exchange, as the proof is one, then the bulk as fast as it goes."""
    line.outbox.write(bytes(450))
    line.run()
    began, left = line.now, BULK_BYTES
    while left or not line.outbox.is_done:
        while left and line.outbox.backlog_bytes < len(BLOCK):
            line.outbox.write(BLOCK)
            left -= len(BLOCK)
            line.flush()
        assert line.step()
        line.got.clear()
    return line.now - began


@pytest.mark.parametrize(
    ("rtt", "loss", "least"), [(0.02, 0.0, 10.5), (0.05, 0.005, 9.5), (0.1, 0.0, 7.5), (0.1, 0.005, 7.5)]
)
def test_fills_the_line(rtt: float, loss: float, least: float) -> None:
    line = SlowLine(3, loss=loss, delay=rtt / 2)
    line.outbox.grow(1404)
    seconds = seconds_for_bulk(line)
    assert BULK_BYTES / 1e6 / seconds > least
    needed = BULK_BYTES / line.outbox.payload_bytes
    assert line.sent < 1.02 * (needed * (1 + loss) + line.dropped)  # what is sent again was lost
