"""A relay's limits: for each key, for each address, and in total. Pure.

Without a list of meshes, anybody can use any number of keys, so there are small limits for each key and a
limit for each address; `--open` and `--mesh` lift those for a key.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes, seconds and counts. `rate`: bytes a second of one key, both ways of all its circuits; 0: any."""

    clients: int = 4096  # control connections
    clients_of_host: int = 64  # behind one address: an office, a carrier's NAT
    connections: int = 16_384  # of any kind
    connections_of_host: int = 512
    unproven: int = 512  # that have shown neither key nor ticket
    unproven_of_host: int = 128
    unproven_seconds: float = 6.0
    circuits: int = 4096
    circuits_of_key: int = 8
    circuits_of_pair: int = 2  # that one key asks another one for: of two links one replaces the other
    rate: int = 1 << 20
    burst: int = 4 << 20
    ticket_seconds: float = 12.0  # until both sides must have come
    boxes: int = 4096
    boxes_of_key: int = 16
    guests_of_box: int = 16  # whom the owner of a box may answer
    guests: int = 256
    guests_of_host: int = 16
    guest_seconds: float = 90.0  # a joiner is no member: it comes, joins and goes
    guest_strikes: int = 4  # boxes that are not there: nobody guesses 16 bytes, but nobody should try
    joins_of_box: int = 4  # at once
    join_bytes: int = 256 << 10  # a welcome has at most 64 KiB
    join_seconds: float = 45.0
    mail_seconds: float = 60.0
    mail_of_one: int = 32  # letters that wait for one key or box
    mail_of_sender: int = 64  # letters of one key that wait
    mail_bytes_of_host: int = 1 << 20
    mail_bytes: int = 8 << 20  # that wait, in all, with 512 for each letter
    messages_rate: float = 50.0  # a second, of one control connection
    messages_burst: float = 200.0
    silent_seconds: float = 40.0  # a node pings every few seconds
    control_backlog: int = 128 << 10  # told and not read by the node: then it is dropped


SMALL = Limits()
WIDE = Limits(
    clients_of_host=4096,
    connections_of_host=16_384,
    circuits_of_key=256,
    circuits_of_pair=16,
    rate=0,
    boxes_of_key=256,
)
