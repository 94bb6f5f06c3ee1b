"""Racing the addresses of a peer, for links of every kind that dials addresses (RFC 8305).

Each address is tried to the end of the proof, a quarter of a second apart; the first that is proven wins.
"""

import ipaddress
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Protocol, TypeVar

from meshd.base.errors import Refused
from meshd.base.tasks import first_success
from meshd.link.interface import DialError, DialFailure, LinkKind, Tried
from meshd.wire.address import Proto, order
from meshd.wire.dialable import Dialable
from meshd.wire.limits import MAX_CANDIDATES

STAGGER_SECONDS = 0.25  # between two addresses (RFC 8305 5: "Connection Attempt Delay")


class Pipe(Protocol):
    """The pipe that an attempt makes."""

    async def aclose(self) -> None: ...
    def abort(self) -> None: ...


P = TypeVar("P", bound=Pipe)
X = TypeVar("X")  # what the attempt found out beside
Attempt = Callable[[list[P], Dialable], Coroutine[object, object, tuple[P, X]]]


def dial_order(candidates: Sequence[Dialable], proto: Proto) -> list[Dialable]:
    """Return those of `proto` in the order to try: near before far, families in turn, loopback last.

    Loopback is last, although it is the nearest: in a token from another machine it means somebody else.
    """
    ordered = order(
        candidate for candidate in candidates if candidate.proto == proto and candidate.kind != "relay"
    )
    return sorted(ordered, key=lambda candidate: candidate.is_loopback)[:MAX_CANDIDATES]


async def race(places: Sequence[Dialable], attempt: Attempt[P, X], *, kind: LinkKind) -> tuple[P, X]:
    """Return the first pipe that is proven; all others are closed, whatever happens.

    An attempt adds its pipe to the list that it is given as soon as there is one. Raises Refused, DialError.
    """
    if not places:
        proto = "TCP" if kind is LinkKind.TCP else "UDP"
        raise DialError(f"no {proto} address is known", kind=kind, failure=DialFailure.UNREACHABLE)
    made: list[P] = []
    starts = [(at * STAGGER_SECONDS, partial(attempt, made, place)) for at, place in enumerate(places)]
    winner: P | None = None
    try:
        reached: tuple[P, X] = await first_success(starts, discard=_discard)
        winner = reached[0]
    except ExceptionGroup as failures:
        raise closest(failures.exceptions) from None
    finally:
        for pipe in made:
            if pipe is not winner:
                pipe.abort()  # closed already, unless we were cancelled in between
    return reached


async def _discard(result: tuple[P, X]) -> None:
    await result[0].aclose()


_RANK = [
    DialFailure.UNFIT,
    DialFailure.UNREACHABLE,
    DialFailure.REFUSED,
    DialFailure.TIMEOUT,
    DialFailure.WRONG_PEER,
    DialFailure.HANDSHAKE,
]

# Of one address that was tried in several ways: that it refuses TCP says more than that UDP gets no answer.
_TELLS = [
    DialFailure.UNFIT,
    DialFailure.UNREACHABLE,
    DialFailure.TIMEOUT,
    DialFailure.REFUSED,
    DialFailure.WRONG_PEER,
    DialFailure.HANDSHAKE,
]


def closest(errors: Sequence[Exception]) -> Exception:
    """Return the error that explains most: a refusal with its reason, else all attempts, the furthest first.

    Each address is named once. Loopback is left out if there was any other address: from a peer's record or
    a token it leads to this machine, so how it ended says nothing about the peer.
    """
    # A refusal explains more than any failure to connect.
    for error in errors:
        if isinstance(error, Refused) or not isinstance(error, DialError):
            return error
    dials = sorted(
        (error for error in errors if isinstance(error, DialError)), key=lambda e: -_RANK.index(e.failure)
    )
    # Keep the most telling attempt of each address.
    by_place: dict[str, Tried] = {}
    for attempt in (tried for error in dials for tried in error.tried):
        key = attempt.place or attempt.what
        if key not in by_place or _TELLS.index(attempt.failure) > _TELLS.index(by_place[key].failure):
            by_place[key] = attempt
    attempts = sorted(by_place.values(), key=lambda attempt: -_RANK.index(attempt.failure))
    # Drop loopback if there was any other address.
    elsewhere = [attempt for attempt in attempts if not _is_loopback(attempt.place)]
    if any(attempt.place for attempt in elsewhere):  # not what has no address, as a search by mDNS
        attempts = elsewhere
    # Name at most three attempts, the furthest first.
    explains = next((error for error in dials if attempts[0] in error.tried), dials[0])
    texts = list(dict.fromkeys(attempt.what for attempt in attempts))
    more = f" (and {len(texts) - 3} more)" if len(texts) > 3 else ""
    return DialError(
        "; ".join(texts[:3]) + more,
        kind=explains.kind,
        failure=attempts[0].failure,
        hint=explains.hint,
        tried=tuple(attempts),
    )


def _is_loopback(place: str) -> bool:
    host = place.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or no address at all
        return False
