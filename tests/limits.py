"""The tables of limits in docs/security.md, made from the code.

`make reference` brings them up to date.
"""

import re
from collections.abc import Iterator
from dataclasses import fields

from meshd.base.shares import TABLE, Rate, Share
from meshd.identity import revocation
from meshd.mux.config import MuxConfig
from meshd.relay.limits import SMALL, WIDE
from meshd.rpc import firewall
from meshd.wire.limits import MAX_STREAMS

BEGIN, END = "<!-- limits -->", "<!-- end of limits -->"
_FOR = {
    "peer": "each peer",
    "issuer": "each issuer",
    "address": "each address",
    "service": "each service",
    "lease": "each lease",
    "key": "each key",
    "node": "this node",
}


# Part of a format that both sides must read alike, so they stand where it is read.
OF_FORMATS = (
    Share("open streams", MAX_STREAMS, "peer", "the session ends"),
    Share("bytes received and not read yet", MuxConfig().session_window, "peer", "it gets no credit"),
    Share("bans", revocation.MAX_BANS, "node", "the one with the largest hash goes, the root's last"),
    Share("bans", revocation.MAX_BANS_PER_ISSUER, "issuer", "its own with the largest hash goes"),
    Share("buffers of one connection to a lent rpc-server", firewall.MAX_BUFFERS, "service", "it ends"),
    Share(
        "requests of one connection to a lent rpc-server without an answer",
        firewall.MAX_UNANSWERED,
        "service",
        "it ends",
    ),
)


def table() -> str:
    """Every share and rate of the code, then what a relay grants."""
    return "\n".join(
        [
            "",
            *_shares(),
            "",
            "What a relay grants (bytes, seconds and counts; 0: no limit):",
            "",
            *_relay(),
            "",
        ]
    )


def _shares() -> Iterator[str]:
    yield "| what | at most | for | beyond that |"
    yield "|---|---|---|---|"
    for row in (*TABLE, *OF_FORMATS):
        yield f"| {row.what} | {_most(row)} | {_FOR[row.of]} | {row.beyond} |"


def _most(row: Share | Rate) -> str:
    if isinstance(row, Share):
        return str(row.most)
    if row.per_second >= 1:
        return f"{row.per_second:g} a second, {row.burst:.10g} at once"
    return f"one in {1 / row.per_second:.0f} s, {row.burst:g} at once"


def _relay() -> Iterator[str]:
    yield "| limit | to everybody | with `--mesh` or `--open` |"
    yield "|---|---|---|"
    for field in fields(SMALL):
        small, wide = getattr(SMALL, field.name), getattr(WIDE, field.name)
        yield f"| {field.name.replace('_', ' ')} | {small:.10g} | {wide:.10g} |"


def with_table(page: str) -> str:
    """The page with the table as it is now. Raises ValueError when the marks are not there."""
    made, count = re.subn(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}{table()}{END}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the page needs `{BEGIN}` and `{END}` once")
    return made
