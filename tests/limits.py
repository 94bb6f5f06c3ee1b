"""The tables of limits in docs/security.md, generated from the code.

`make reference` updates them.
"""

import re
from collections.abc import Iterator
from dataclasses import fields

from meshd.base.peer_limits import ALL_LIMITS, Rate, Share
from meshd.identity import revocation
from meshd.mux.config import MuxConfig
from meshd.relay.limits import SMALL, WIDE
from meshd.rpc import mesh_protocol
from meshd.rpc.frames import MAX_UNANSWERED
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


# Field of relay.limits.Limits to words; a KeyError here: name the new limit.
_RELAY = {
    "clients": "control connections",
    "clients_of_host": "control connections from one address",
    "connections": "connections of any kind",
    "connections_of_host": "connections from one address",
    "unproven": "connections that have shown neither key nor ticket",
    "unproven_of_host": "such connections from one address",
    "unproven_seconds": "seconds until such a connection is closed",
    "circuits": "circuits",
    "circuits_of_key": "circuits of one key",
    "circuits_of_pair": "circuits from one key to the same other key",
    "rate": "bytes per second of one key",
    "burst": "bytes of one key in a burst",
    "ticket_seconds": "seconds until both sides of a call must have connected",
    "boxes": "mailboxes",
    "boxes_of_key": "mailboxes of one key",
    "guests_of_box": "guests that the owner of a mailbox may answer",
    "guests": "guests",
    "guests_of_host": "guests from one address",
    "guest_seconds": "seconds of one guest",
    "guest_strikes": "calls of one guest to mailboxes that do not exist",
    "joins_of_box": "simultaneous joins through one mailbox",
    "join_bytes": "bytes of one join",
    "join_seconds": "seconds of one join",
    "mail_seconds": "seconds that a letter waits",
    "mail_of_one": "waiting letters for one key or mailbox",
    "mail_of_sender": "waiting letters from one key",
    "mail_bytes_of_host": "bytes of waiting letters from one address",
    "mail_bytes": "bytes of waiting letters, with 512 added for each",
    "messages_rate": "messages per second of one control connection",
    "messages_burst": "messages of one control connection in a burst",
    "silent_seconds": "seconds of silence until a control connection is closed",
    "control_backlog": "unread bytes until a control connection is closed",
}

# Part of a format that both sides must interpret alike, so they are defined where it is read.
OF_FORMATS = (
    Share("open streams", MAX_STREAMS, "peer", "the session ends"),
    Share("bytes received but not read yet", MuxConfig().session_window, "peer", "it gets no credit"),
    Share("bans", revocation.MAX_BANS, "node", "the one with the largest hash is dropped, the root's last"),
    Share("bans", revocation.MAX_BANS_PER_ISSUER, "issuer", "its own with the largest hash is dropped"),
    Share(
        "buffers of one connection to a lent rpc-server",
        mesh_protocol.BUFFERS,
        "service",
        "the connection ends",
    ),
    Share(
        "unanswered requests of one connection to a lent rpc-server",
        MAX_UNANSWERED,
        "service",
        "the connection ends",
    ),
)


def table() -> str:
    """Every share and rate of the code, then the limits of a relay."""
    return "\n".join(
        [
            "",
            *_shares(),
            "",
            "Limits of a relay (bytes, seconds and counts; 0: no limit):",
            "",
            *_relay(),
            "",
        ]
    )


def _shares() -> Iterator[str]:
    yield "| what | at most | for | beyond that |"
    yield "|---|---|---|---|"
    for row in (*ALL_LIMITS, *OF_FORMATS):
        yield f"| {row.what} | {_most(row)} | {_FOR[row.of]} | {row.beyond} |"


def _most(row: Share | Rate) -> str:
    if isinstance(row, Share):
        return str(row.most)
    if row.per_second >= 1:
        return f"{row.per_second:g} per second, bursts of {row.burst:.10g}"
    return f"one per {1 / row.per_second:.0f} s, bursts of {row.burst:g}"


def _relay() -> Iterator[str]:
    yield "| limit | for everybody | with `--mesh` or `--open` |"
    yield "|---|---|---|"
    for field in fields(SMALL):
        small, wide = getattr(SMALL, field.name), getattr(WIDE, field.name)
        yield f"| {_RELAY[field.name]} | {small:.10g} | {wide:.10g} |"


def with_table(page: str) -> str:
    """The page with the current table. Raises ValueError if the marks are missing."""
    made, count = re.subn(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}{table()}{END}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the page needs `{BEGIN}` and `{END}` once")
    return made
