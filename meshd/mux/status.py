"""What a session tells about itself: plain values for status and for path choice."""

from dataclasses import dataclass

from meshd.mux.config import Priority


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One attached link. Times in seconds, sizes in bytes, bandwidth in bytes a second."""

    link_id: int
    carries_data: bool
    rtt: float | None  # smoothed
    rtt_min: float | None
    bandwidth: float | None  # as measured by the peer's acknowledgements; None before the first
    in_flight: int  # sent, not yet acknowledged on this link
    allowance: int  # what may be in flight
    sent: int
    received: int
    last_heard: float  # loop time
    confirmed_at: float  # loop time; when the peer last showed that it hears us


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
