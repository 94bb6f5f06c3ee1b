"""Break good input: bytes anywhere, and values inside a message whose form stays good."""

import random
from collections.abc import Mapping, Sequence
from typing import cast

import msgpack

Value = object
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 65535, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 62, (1 << 63) - 1)
TEXTS = (
    "",
    "\0",
    "\x1b[2J",
    "a" * 65,
    "a" * 2000,
    "ä" * 40,
    "\ud800",
    "\u202e",
    "../..",
    "node",
    "invite",
    "use",
)
BLOBS = (b"", b"\0", b"\xff" * 8, bytes(16), bytes(32), bytes(33), b"x" * 5000)


def flip(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """`data` with one to four changes of its bytes; pieces of `others` may be put in."""
    broken = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        _change(rng, broken, others)
    return bytes(broken[: 1 << 20])


def _change(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    until = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 16, 64)))
    match rng.randrange(8):
        case 0 if data:
            data[at - 1] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:until]
        case 2:
            data[at:at] = rng.randbytes(rng.randint(1, 16))
        case 3:
            del data[at:]
        case 4:
            data[at:at] = bytes(data[at:until]) * rng.choice((1, 2, 30))
        case 5:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
            data[at : at + size] = number.to_bytes(size, rng.choice(("big", "little")))
        case 6 if others:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            data[at:until] = other[start : start + rng.randint(1, 64)]
        case _:
            data[at:until] = rng.randbytes(until - at)


def twist(rng: random.Random, value: Value) -> Value:
    """`value` (maps, lists, plain values) with one to three changes somewhere inside."""
    for _ in range(rng.randint(1, 3)):
        value = _twist_once(rng, value)
    return value


def _twist_once(rng: random.Random, value: Value) -> Value:
    if isinstance(value, Mapping) and value and rng.random() < 0.9:
        return _twist_map(rng, dict(value))
    if isinstance(value, list) and value and rng.random() < 0.7:
        items = list(value)
        at = rng.randrange(len(items))
        match rng.randrange(4):
            case 0:
                del items[at]
            case 1:
                heavy = isinstance(items[at], list | dict | bytes | str) and len(str(items[at])) > 50
                items[at:at] = [items[at]] * rng.choice((1, 5, 70) if heavy else (1, 70, 5000))
            case _:
                items[at] = _twist_once(rng, items[at])
        return items
    return _other(rng, value)


def _twist_map(rng: random.Random, value: dict[object, object]) -> Value:
    name = rng.choice(list(value))
    match rng.randrange(6):
        case 0:
            del value[name]
        case 1:
            value[rng.choice(TEXTS)] = value.pop(name)
        case 2:
            value[rng.choice(TEXTS)] = _plain(rng)
        case _:
            value[name] = _twist_once(rng, value[name])
    return value


def _other(rng: random.Random, value: Value) -> Value:
    """Something else in place of `value`: near it, or of another kind altogether."""
    if rng.random() < 0.6:
        if isinstance(value, bytes):
            return flip(rng, value, ())
        if isinstance(value, str):
            return flip(rng, value.encode("utf-8", "surrogatepass"), ()).decode("utf-8", "replace")
        if isinstance(value, int):
            return value + rng.choice((-1, 1, -256, 1 << 20))
    return _plain(rng)


def _plain(rng: random.Random) -> Value:
    match rng.randrange(9):
        case 0:
            return rng.choice((None, True, False, 0.5, float("inf"), float("nan"), -1))
        case 1 | 2:
            return rng.choice(NUMBERS)
        case 3 | 4:
            return rng.choice(TEXTS)
        case 5 | 6:
            return rng.choice(BLOBS)
        case 7:
            return [0] * rng.choice((0, 1, 17, 5000))
    deep: Value = {}
    for _ in range(rng.choice((1, 9, 600))):
        deep = {"a": deep}
    return deep


def repack(rng: random.Random, data: bytes) -> bytes:
    """A good message, twisted inside, as a message again; broken bytes where that cannot be written."""
    try:
        twisted = twist(rng, msgpack.unpackb(data))
        return cast(bytes, msgpack.packb(twisted, use_bin_type=True, unicode_errors="surrogatepass"))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return flip(rng, data, ())


def either(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A message broken in its bytes, or twisted inside."""
    return flip(rng, data, others) if rng.random() < 0.4 else repack(rng, data)
