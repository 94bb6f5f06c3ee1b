"""What a head says that it serves is hostile until it is read."""

import msgpack
import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import (
    MAX_API_SLOTS,
    MAX_MODEL_NAME_BYTES,
    MAX_SERVED_ALIASES,
    MAX_SERVED_MODELS,
    MAX_SERVED_REASON_BYTES,
)
from meshd.wire.models import ApiModel, ServingTold, decode_serving

MODEL = ApiModel("glm-Q4", "ready", True, "loaded", 3, 4, b"f" * 32)


def changed(**fields: object) -> bytes:
    body = msgpack.unpackb(ServingTold((MODEL,)).encode())
    made: bytes = msgpack.packb({**body, "models": [{**body["models"][0], **fields}]})
    return made


def test_what_is_too_long_is_cut_before_it_is_said() -> None:
    long = ApiModel("n" * 500, "ready", True, "r" * 500, MAX_API_SLOTS + 9, 0)
    [read] = decode_serving(ServingTold((long,)).encode()).models
    assert len(read.name) <= MAX_MODEL_NAME_BYTES and len(read.reason) <= MAX_SERVED_REASON_BYTES
    assert (read.requests, read.slots) == (MAX_API_SLOTS, 1)


def test_the_largest_message_fits() -> None:
    names = [f"{number:03}".ljust(MAX_MODEL_NAME_BYTES, "n") for number in range(MAX_SERVED_MODELS)]
    aliases = ("a" * MAX_MODEL_NAME_BYTES,) * MAX_SERVED_ALIASES
    reason = "r" * MAX_SERVED_REASON_BYTES
    models = tuple(ApiModel(name, "x" * 16, False, reason, aliases=aliases) for name in names)
    message = ServingTold(models).encode()
    assert decode_serving(message).models == models and len(message) < 64 << 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "n" * (MAX_MODEL_NAME_BYTES + 1)),
        ("name", "a\nb"),
        ("state", "s" * 17),
        ("takes", 1),
        ("reason", "r" * (MAX_SERVED_REASON_BYTES + 1)),
        ("requests", -1),
        ("requests", MAX_API_SLOTS + 1),
        ("slots", 0),
        ("slots", True),
        ("fingerprint", bytes(31)),
        ("fingerprint", None),
        ("aliases", ["n" * (MAX_MODEL_NAME_BYTES + 1)]),
        ("aliases", ["n"] * (MAX_SERVED_ALIASES + 1)),
        ("aliases", "n"),
    ],
)
def test_models_that_nobody_serves(field: str, value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_serving(changed(**{field: value}))


def test_a_message_has_so_many_models_and_each_once() -> None:
    row = msgpack.unpackb(ServingTold((MODEL,)).encode())["models"][0]
    for rows in ([row, row], [{**row, "name": str(n)} for n in range(MAX_SERVED_MODELS + 1)], row, None):
        with pytest.raises(RemoteProtocolError, match="models"):
            decode_serving(msgpack.packb({"type": "serving", "models": rows, "key": False}))
    with pytest.raises(RemoteProtocolError, match="unknown type"):
        decode_serving(msgpack.packb({"type": "served", "models": [], "key": False}))
