"""Messages between a page and a node as recorded once: both languages read and write them alike.

`python -m tests.unit.gateway.golden_messages` writes `golden_messages.json` anew, after a change of version.
"""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from meshd.gateway.browser_frames import (
    LARGEST_NUMBER,
    LARGEST_OFFSET,
    Allow,
    ChannelRefused,
    Data,
    Failed,
    Forget,
    FromBrowser,
    FromNode,
    Hello,
    Ping,
    Place,
    Pong,
    Welcome,
    encode,
)

RECORDED = Path(__file__).with_name("golden_messages.json")
_KINDS = {"ChannelRefused": "refused"}
_NAMES = {"is_last": "isLast", "is_new": "isNew"}
_FAR = Place(LARGEST_NUMBER, LARGEST_OFFSET - 1, LARGEST_OFFSET)
FROM_BROWSER: tuple[FromBrowser, ...] = (
    Hello(bytes(range(16))),
    Hello(bytes(16), (Place(1, 2, 3), _FAR)),
    Data(1, 0, b"first", False),
    Data(LARGEST_NUMBER, LARGEST_OFFSET - 3, b"\x00\xff\x80", True),
    Data(7, 1 << 32, b"", True),
    Allow(_FAR),
    Forget(LARGEST_NUMBER),
    Ping(LARGEST_OFFSET),
)
FROM_NODE: tuple[FromNode, ...] = (
    Welcome(True, 0),
    Welcome(False, LARGEST_NUMBER, (Place(1, 2, 3), _FAR)),
    Data(1, 0, b"first", False),
    Data(LARGEST_NUMBER, LARGEST_OFFSET - 3, b"\x00\xff\x80", True),
    Allow(Place(1, 1 << 32, (1 << 32) + 1)),
    Failed(3, "the model is gone — für jetzt"),
    Pong(LARGEST_OFFSET),
    ChannelRefused("download the page again"),
)


def in_json(message: object) -> Any:
    """Return a message as TypeScript has it: bytes as hexadecimal, names in its style."""
    match message:
        case bytes():
            return message.hex()
        case tuple():
            return [in_json(part) for part in message]
        case bool() | int() | str():
            return message
    assert is_dataclass(message)
    name = type(message).__name__
    parts = {field.name: in_json(getattr(message, field.name)) for field in fields(message)}
    kind = {} if isinstance(message, Place) else {"kind": _KINDS.get(name, name.lower())}
    return kind | {_NAMES.get(field, field): part for field, part in parts.items()}


def made() -> dict[str, list[dict[str, Any]]]:
    """Return what the code of today makes of the messages."""
    return {
        name: [{"bytes": encode(message).hex(), "message": in_json(message)} for message in messages]
        for name, messages in (("from_browser", FROM_BROWSER), ("from_node", FROM_NODE))
    }


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(made(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
