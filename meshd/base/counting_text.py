"""Strips the numbers from counting texts, so that only a change of their subject is reported. Pure."""

import re

_DIGITS = re.compile(r"\d+")


def without_numbers(text: str) -> str:
    """Return the text without its numbers: the subject, which stays the same while they count on."""
    return _DIGITS.sub("", text)
