"""The status of a session: plain values for status and for path choice."""

from dataclasses import dataclass
from typing import Self

from meshd.mux.config import Priority
from meshd.mux.link import LinkState
from meshd.mux.stream import StreamState


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One attached link. Times in seconds, sizes in bytes, rates in bytes a second."""

    link_id: int
    carries_data: bool
    rtt: float | None  # smoothed
    rtt_min: float | None
    rtt_floor: float | None  # the shortest of the last minutes
    rate: float | None  # what it carried when it was the bottleneck; None before that
    sent: int
    received: int
    last_heard: float  # loop time
    confirmed_at: float  # loop time; when the peer last showed that it hears us

    @classmethod
    def of(cls, link: LinkState, carries_data: bool) -> Self:
        """Return the link's present status."""
        pacing = link.pacing
        return cls(
            link_id=link.link_id,
            carries_data=carries_data,
            rtt=link.rtt,
            rtt_min=pacing.rtt_min,
            rtt_floor=pacing.rtt_floor,
            rate=pacing.full_rate,
            sent=pacing.sent,
            received=link.received,
            last_heard=link.last_heard,
            confirmed_at=link.confirmed_at,
        )


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream. Offsets count bytes of its own direction."""

    stream_id: int
    service: str
    priority: Priority
    ours: bool  # opened by this side
    accepted: bool
    written: int  # taken from the application
    acknowledged: int
    received: int
    consumed: int
    window: int  # receive window in force

    @classmethod
    def of(cls, stream: StreamState) -> Self:
        """Return the stream's present status."""
        window = stream.receive.window
        return cls(
            stream_id=stream.stream_id,
            service=stream.service,
            priority=stream.priority,
            ours=stream.ours,
            accepted=stream.accepted,
            written=stream.send.written,
            acknowledged=stream.send.acked,
            received=stream.receive.received,
            consumed=window.consumed,
            window=window.size,
        )


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A whole session."""

    session_id: bytes
    data_link: int | None
    links: tuple[LinkStatus, ...]
    streams: tuple[StreamStatus, ...]
    sent: int  # bytes of data that count against the peer's session credit
    received: int  # bytes of data that count against ours
    send_buffered: int  # bytes kept for sending or replay
    receive_buffered: int  # bytes received and not yet consumed
    resent: int  # bytes sent more than once, because a link was lost or changed
    switches: int
