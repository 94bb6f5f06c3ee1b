"""How the last attempts at a direct link ended, in words. What networks allow: netcheck/reasons.py. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshd.link.interface import TRANSPORTS, DialFailure, LinkKind, Transport


@dataclass(frozen=True, slots=True)
class Failed:
    """How the last attempt by one transport ended; `what` is for people."""

    transport: Transport
    failure: DialFailure | None
    what: str

    @property
    def direct(self) -> bool:
        """Was it an attempt at a direct link?"""
        relayed = TRANSPORTS[self.transport].kind is LinkKind.RELAY
        return not relayed and self.failure is not DialFailure.UNFIT


def last_error(failed: Mapping[int, Failed]) -> str:
    """Lower case, without a full stop; empty while nothing direct has failed."""
    return ", ".join(_told(one) for _, one in sorted(failed.items()) if one.direct)


def _told(one: Failed) -> str:
    name = TRANSPORTS[one.transport].words
    match one.failure:
        case DialFailure.TIMEOUT:
            return f"{name} gets no answer"
        case DialFailure.REFUSED:
            return f"{name} connections are refused at the peer's addresses"
        case DialFailure.WRONG_PEER:
            return f"{name} finds another node at the peer's addresses"
        case _:
            return f"{name}: {one.what}"
