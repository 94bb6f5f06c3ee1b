"""Messages of joining: what a joiner and its inviter say after the join proof, on a link of purpose JOIN."""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import (
    MAX_BAN_BYTES,
    MAX_CHAIN_BYTES,
    MAX_ITEMS,
    MAX_NAME_BYTES,
    MAX_RECORD_BYTES,
    MAX_TEXT_BYTES,
)
from meshd.wire.message import pack, plain, unpack


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The joiner's own words: how it wants to be called, and what it is."""

    name: str
    role: str

    def encode(self) -> bytes:
        return pack({"type": "join", "name": self.name, "role": self.role})


@dataclass(frozen=True, slots=True)
class Welcome:
    """Admitted: the joiner's certificate chain, records of members it may dial, and who is banned."""

    chain: bytes
    records: tuple[bytes, ...]
    bans: tuple[bytes, ...]

    def encode(self) -> bytes:
        return pack(
            {
                "type": "welcome",
                "chain": self.chain,
                "records": list(self.records),
                "bans": list(self.bans),
            }
        )


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """Refused: why and the remedy."""

    code: str
    text: str
    hint: str = ""

    def encode(self) -> bytes:
        return pack(
            {"type": "refused", "code": self.code, "text": plain(self.text), "hint": plain(self.hint)}
        )


JoinMessage = JoinRequest | Welcome | NotAdmitted


def decode(data: bytes) -> JoinMessage:
    """One joining message. Raises RemoteProtocolError."""
    fields = unpack(data)
    kind = fields.text("type", most=16)
    if kind == "join":
        return JoinRequest(fields.text("name", most=MAX_NAME_BYTES), fields.text("role", most=MAX_NAME_BYTES))
    if kind == "welcome":
        return Welcome(
            fields.raw("chain", most=MAX_CHAIN_BYTES),
            fields.raws("records", most=MAX_RECORD_BYTES, count=64),
            fields.raws("bans", most=MAX_BAN_BYTES, count=MAX_ITEMS),
        )
    if kind == "refused":
        return NotAdmitted(
            fields.text("code", most=MAX_NAME_BYTES),
            fields.text("text", most=MAX_TEXT_BYTES),
            fields.text("hint", most=MAX_TEXT_BYTES, default=""),
        )
    raise RemoteProtocolError(f"joining message of unknown type `{kind}`", code="message")
