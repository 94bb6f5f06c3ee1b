"""Which changes of a model's state are worth a line in the log. Pure."""

import re

from meshd.gateway.interface import Readiness
from meshd.model.status import ModelState

_NUMBERS = re.compile(r"\d+")


def is_news(state: ModelState, reason: str, before: Readiness) -> bool:
    """Not if only a number has changed: progress is for status, which shows the latest."""
    return state is not before.state or _NUMBERS.sub("", reason) != _NUMBERS.sub("", before.reason)
