"""The body of a signal: every field comes back, and none passes its limit."""

from dataclasses import replace

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.message import pack, unpack
from meshd.wire.signal import MAX_PAYLOAD_BYTES, MAX_SIGNAL_BYTES, SignalBody

GOOD = SignalBody(
    sender=bytes(32),
    to=b"t" * 32,
    topic="webrtc",
    start=b"s" * 16,
    sequence=7,
    at=1_800_000_000,
    life=30,
    cookie=b"cookie 8",
    echo=b"",
    payload=b"offer",
    chain=b"chain",
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sender": bytes(31)},
        {"to": bytes(33)},
        {"topic": "x" * 17},
        {"start": b""},
        {"sequence": -1},
        {"life": 0},
        {"life": 121},
        {"cookie": b""},
        {"echo": b"1234567"},
        {"payload": bytes(MAX_PAYLOAD_BYTES + 1)},
        {"chain": bytes(1537)},
    ],
    ids=lambda wrong: str(wrong)[:20],
)
def test_a_field_beyond_its_limit_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="field"):
        SignalBody.decode(replace(GOOD, **wrong).encode())  # type: ignore[arg-type]


def test_a_later_field_is_skipped_and_too_much_of_them_is_not() -> None:
    names = ("from", "to", "topic", "start", "seq", "at", "life", "cookie", "echo", "data", "chain")
    fields = unpack(GOOD.encode())
    assert sorted(fields.names()) == sorted(names)
    more = {name: fields._values[name] for name in names} | {"later": 1}
    assert SignalBody.decode(pack(more)) == GOOD  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match=f"at most {MAX_SIGNAL_BYTES}"):
        SignalBody.decode(pack(more | {"later": bytes(MAX_SIGNAL_BYTES)}))  # type: ignore[arg-type]


def test_the_largest_of_everything_fits_with_a_signature() -> None:
    body = replace(
        GOOD,
        topic="x" * 16,
        sequence=2**63 - 1,
        at=2**40,
        echo=bytes(8),
        payload=bytes(MAX_PAYLOAD_BYTES),
        chain=bytes(1536),
    )
    assert len(body.encode()) + 80 <= MAX_SIGNAL_BYTES
