"""Messages of joining: what a joiner and its inviter say after the join proof, on a link of purpose JOIN."""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.bounds import AtMost, Items, Prose, ShortName
from meshd.wire.codec import Family, Message
from meshd.wire.limits import MAX_BAN_BYTES, MAX_CHAIN_BYTES, MAX_ITEMS, MAX_RECORD_BYTES

MAX_TOLD_RECORDS = 64  # in one Welcome


@dataclass(frozen=True, slots=True)
class JoinRequest(Message, tag="join"):
    """The joiner's own words: its name, and its role."""

    name: ShortName
    role: ShortName


@dataclass(frozen=True, slots=True)
class Welcome(Message, tag="welcome"):
    """Admitted: the joiner's certificate chain, records of members it may dial, and who is banned."""

    chain: Annotated[bytes, AtMost(MAX_CHAIN_BYTES)]
    records: Annotated[tuple[Annotated[bytes, AtMost(MAX_RECORD_BYTES)], ...], Items(MAX_TOLD_RECORDS)]
    bans: Annotated[tuple[Annotated[bytes, AtMost(MAX_BAN_BYTES)], ...], Items(MAX_ITEMS)]


@dataclass(frozen=True, slots=True)
class NotAdmitted(Message, tag="refused"):
    """A refusal to admit, with its reason and the remedy."""

    code: ShortName
    text: Prose
    hint: Prose = ""


JoinMessage = JoinRequest | Welcome | NotAdmitted


_JOINING: Family[JoinMessage] = Family("joining", JoinMessage)


def decode(data: bytes) -> JoinMessage:
    """Read one joining message. Raises RemoteProtocolError."""
    return _JOINING.decode(data)
