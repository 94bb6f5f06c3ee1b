"""Samples of every message of the wire, as bytes: what a node of this version understands and says.

`python -m tests.conformance.golden --write` adds samples of new messages to golden.json, and never changes
those that are there. A line is deleted by hand where the wire has changed on purpose.
"""

import dataclasses
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.hostile.draw import Draw, Pool, hints_of
from tests.hostile.words import UNSAYABLE, Speech, Word, catalogue

PLACE = Path(__file__).with_name("golden.json")
_MOST_BYTES = 1000  # of a sample, where there is a shorter one
_TRIES = 400  # to fill a field that is empty
OF_OTHERS = {"stun.StunMessage"}  # RFC 8489 has samples of it: tests/unit/wire/test_stun.py


def known() -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Read the samples: for each message `bytes` in hexadecimal digits, and `values` as of `values_of`."""
    found: dict[str, list[dict[str, str]]] = json.loads(PLACE.read_text(encoding="utf-8"))
    return found


def read_back() -> dict[str, Word]:
    """Return the messages of ours that a reader decodes, by name."""
    return {word.name: word for word in catalogue() if word.decode is not None and word.name not in OF_OTHERS}


def decoded(word: Word, data: bytes) -> object:
    """Return the one message in `data`."""
    assert word.decode is not None
    found = word.decode(data)
    if isinstance(found, list):  # frames come in lists
        (found,) = found
    return found


def values_of(message: object) -> str:
    """Return the values of its fields, in their order; names may change without a change of the wire."""
    assert dataclasses.is_dataclass(message) and not isinstance(message, type)
    return repr(tuple(_plain(getattr(message, one.name)) for one in dataclasses.fields(message)))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_plain(getattr(value, one.name)) for one in dataclasses.fields(value))
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, frozenset | set):
        return tuple(sorted(map(repr, map(_plain, value))))
    if isinstance(value, Mapping):
        return tuple(sorted((repr(key), repr(_plain(one))) for key, one in value.items()))
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, int | str) and type(value) not in (int, str, bool):  # an enumeration
        return value.value if hasattr(value, "value") else value
    return value


def _filled(word: Word, message: object, draw: Draw) -> object:
    """Return the message with something in every field that may have something."""
    assert dataclasses.is_dataclass(message) and not isinstance(message, type)
    for field in dataclasses.fields(message):
        if getattr(message, field.name):
            continue
        for _ in range(_TRIES):
            try:
                other = dataclasses.replace(
                    message, **{field.name: draw(hints_of(type(message))[field.name])}
                )
                if getattr(other, field.name) and len(word.encode(other)) <= _MOST_BYTES:
                    decoded(word, word.encode(other))
                    message = other
                    break
            except UNSAYABLE:
                continue
    return message


def main(argv: Sequence[str]) -> int:
    """Add what is missing."""
    if list(argv) != ["--write"]:
        sys.stderr.write(f"{__doc__}")
        return 2
    rng = random.Random(1)
    speech = Speech(rng, Draw(rng, Pool()))
    found = dict(known()) if PLACE.exists() else {}
    for name, word in read_back().items():
        if name in found:
            continue
        drawn = sorted(set(speech.samples(name)), key=len)
        short = [one for one in drawn if len(one) <= _MOST_BYTES] or drawn[:1]
        full = word.encode(_filled(word, decoded(word, short[-1]), Draw(rng, Pool(), wild=0.0)))
        found[name] = [
            {"bytes": one.hex(), "values": values_of(decoded(word, one))}
            for one in dict.fromkeys((short[0], short[-1], full))
        ]
    text = json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=True)
    PLACE.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
