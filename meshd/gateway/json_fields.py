"""Fields of JSON that another program sent, which may be of any type. Pure."""

from collections.abc import Mapping
from typing import TypeGuard

_NUMBERS = 1 << 31  # of tokens, and tokens themselves: those of llama-server have 32 bits


def is_number(value: object) -> TypeGuard[int]:
    """One that llama-server can mean. Who answers may be another node, and a sum may have too many digits."""
    return type(value) is int and 0 <= value < _NUMBERS


def text_of(of: Mapping[str, object], name: str) -> str:
    """Empty where it is no text."""
    value = of.get(name)
    return value if isinstance(value, str) else ""


def objects_of(value: object) -> list[dict[str, object]]:
    """Of a list, those that are objects."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
