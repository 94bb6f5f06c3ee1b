"""Racing the addresses of a peer, for links of every kind that dials addresses (RFC 8305).

Each address is tried to the end of the proof, a quarter of a second apart; the first that is proven wins.
"""

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
    """What an attempt makes."""

    async def aclose(self) -> None: ...
    def abort(self) -> None: ...


P = TypeVar("P", bound=Pipe)
X = TypeVar("X")  # what the attempt found out beside
Attempt = Callable[[list[P], Dialable], Coroutine[object, object, tuple[P, X]]]


def dial_order(candidates: Sequence[Dialable], proto: Proto) -> list[Dialable]:
    """Those of `proto` in the order to try: near before far, families in turn, loopback last.

    Loopback last, although it is the nearest: in a token from another machine it means somebody else.
    """
    ordered = order(
        candidate for candidate in candidates if candidate.proto == proto and candidate.kind != "relay"
    )
    return sorted(ordered, key=lambda candidate: candidate.is_loopback)[:MAX_CANDIDATES]


async def race(places: Sequence[Dialable], attempt: Attempt[P, X], *, kind: LinkKind) -> tuple[P, X]:
    """The first pipe that is proven; all others are closed, whatever happens.

    An attempt adds its pipe to the list that it is given as soon as there is one. Raises Refused, DialError.
    """
    if not places:
        proto = "TCP" if kind is LinkKind.TCP else "UDP"
        raise DialError(f"no {proto} address is known", kind=kind, failure=DialFailure.UNREACHABLE)
    made: list[P] = []
    starts: list[tuple[float, Callable[[], Coroutine[object, object, tuple[P, X]]]]] = [
        (at * STAGGER_SECONDS, partial(attempt, made, place)) for at, place in enumerate(places)
    ]
    winner: P | None = None
    try:
        reached = await first_success(starts, discard=_discard)
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
    """Of what went wrong, what says most: a refusal with its reason, else the attempt that came furthest.

    Each address stands in its text once.
    """
    for error in errors:
        if isinstance(error, Refused) or not isinstance(error, DialError):
            return error
    dials = sorted(
        (error for error in errors if isinstance(error, DialError)), key=lambda e: -_RANK.index(e.failure)
    )
    told: dict[str, Tried] = {}
    for one in (tried for error in dials for tried in error.tried):
        key = one.place or one.what
        if key not in told or _TELLS.index(one.failure) > _TELLS.index(told[key].failure):
            told[key] = one
    texts = list(dict.fromkeys(one.what for one in told.values()))
    more = f" (and {len(texts) - 3} more)" if len(texts) > 3 else ""
    return DialError(
        "; ".join(texts[:3]) + more,
        kind=dials[0].kind,
        failure=dials[0].failure,
        hint=dials[0].hint,
        tried=tuple(told.values()),
    )
