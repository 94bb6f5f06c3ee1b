"""Turns in which a tool was used, in the form of Anthropic: a small model does what it has seen itself do."""

from collections.abc import Mapping
from typing import Any


def used_tool(name: str, city: str, arguments: Mapping[str, object]) -> list[Any]:
    """Asked for the weather of a city, it called the tool."""
    call = {"type": "tool_use", "id": f"toolu_{city}", "name": name, "input": arguments}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
    return [
        {"role": "user", "content": f"Weather in {city}?"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": "It is sunny."},
    ]
