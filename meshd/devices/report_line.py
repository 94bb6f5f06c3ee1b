"""Parse the lines that a child reports (devices.interface.Report). Pure."""

from collections.abc import Sequence


def count_of(text: str) -> int | None:
    """Return a byte count as a child reports it, or None if invalid (`isdigit` alone accepts `²`)."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


def totals_of(texts: Sequence[str]) -> tuple[int, int, int] | None:
    """Return a neighbour's number, messages and bytes as a child reports them, None for anything else."""
    match [count_of(text) for text in texts]:
        case [int(number), int(messages), int(size)]:
            return number, messages, size
        case _:
            return None
