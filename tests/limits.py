"""The excerpt of limits in docs/security.md, generated from the code: those that users and operators meet.

`make reference` updates it.
"""

import re
from collections.abc import Iterator, Mapping

from meshd.base import peer_limits as limits
from meshd.base.admission import Rate, Share

BEGIN, END = "<!-- limits -->", "<!-- end of limits -->"
COLUMN = 24
SHOWN: tuple[Share | Rate, ...] = (
    limits.LINKS,
    limits.TABLED_PEERS,
    limits.BOOK_RECORDS,
    limits.INVITER_RECORDS,
    limits.JOINING,
    limits.TUNNELLED,
    limits.TUNNELLED_OF_PEER,
    limits.PASSED_ON,
    limits.PASSED_ON_OF_PEER,
    limits.PASSED_ON_OF_ISSUER,
    limits.LEASES,
    limits.LEASES_OF_PEER,
    limits.NEIGHBOURS,
    limits.API_CLIENTS,
    limits.API_CLIENTS_OF_KEY,
    limits.API_CLIENTS_OF_ADDRESS,
    limits.API_CALLS,
    limits.API_CALLS_OF_PEER,
    limits.API_CALLS_OF_ISSUER,
    limits.API_STUCK_SECONDS,
    limits.ANSWER_EVENTS,
    limits.PIECES_GIVEN,
    limits.PIECES_GIVEN_OF_PEER,
    limits.PIECES_GIVEN_OF_ISSUER,
)


def table() -> str:
    """Return the excerpt, one line for each thing limited."""
    rows: dict[str, list[Share | Rate]] = {}
    for row in SHOWN:
        rows.setdefault(row.what, []).append(row)
    return "\n".join(["", *_fenced({what: ", ".join(map(_most, same)) for what, same in rows.items()}), ""])


def _fenced(rows: Mapping[str, str]) -> Iterator[str]:
    """Yield the limits as two columns, how much and of what. Long entries of the first overflow."""
    width = min(COLUMN, max(map(len, rows.values())))
    yield from ("```", *(f"{most.ljust(width)}  {what}" for what, most in rows.items()), "```")


def _most(row: Share | Rate) -> str:
    if isinstance(row, Share):
        return f"{row.most}/{row.of}"
    rate = f"{row.per_second:.10g}/s" if row.per_second >= 1 else f"1/{1 / row.per_second:.0f} s"
    return f"{rate}/{row.of} (burst {row.burst:.10g})"


def with_table(page: str) -> str:
    """Return the page with the current excerpt. Raises ValueError if the marks are missing."""
    made, count = re.subn(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}{table()}{END}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the page needs `{BEGIN}` and `{END}` once")
    return made
