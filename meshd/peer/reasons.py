"""How the last attempts at a direct link ended, in words. What networks allow: netcheck/reasons.py. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshd.link.interface import DialFailure, LinkKind

_NAMES = {
    LinkKind.TCP: ("tcp", "punched tcp"),
    LinkKind.QUIC: ("quic", "quic over ice", "quic by a search for ports"),
    LinkKind.WEBRTC: ("webrtc",),
    LinkKind.RELAY: ("relay", "a relaying member"),
}


@dataclass(frozen=True, slots=True)
class Failed:
    """How the last attempt of one way ended; `nth` of its kind (dial_schedule.py). `what` is for people."""

    kind: LinkKind
    nth: int
    failure: DialFailure | None
    what: str

    @property
    def direct(self) -> bool:
        """Was it an attempt at a direct link?"""
        return self.kind is not LinkKind.RELAY and self.failure is not DialFailure.UNFIT


def last_error(failed: Mapping[int, Failed]) -> str:
    """Lower case, without a full stop; empty while nothing direct has failed."""
    return ", ".join(_told(one) for _, one in sorted(failed.items()) if one.direct)


def _told(one: Failed) -> str:
    names = _NAMES[one.kind]
    name = names[min(one.nth, len(names) - 1)]
    match one.failure:
        case DialFailure.TIMEOUT:
            return f"{name} gets no answer"
        case DialFailure.REFUSED:
            return f"{name} is refused at the peer's addresses"
        case DialFailure.WRONG_PEER:
            return f"{name} meets another node at the peer's addresses"
        case _:
            return f"{name}: {one.what}"


def plain_why(_theirs: object, error: str) -> str:
    """The sentence where nothing is known of the networks."""
    return error or "direct ways are being tried"
