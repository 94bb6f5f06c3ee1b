"""Which changes of a model's state are worth a line in the log. Pure."""

from meshd.base.counting_text import without_numbers
from meshd.gateway.interface import Readiness
from meshd.model.status import ModelState


def is_news(state: ModelState, reason: str, before: Readiness) -> bool:
    """Not if only a number has changed: progress is for status, which shows the latest."""
    return state is not before.state or without_numbers(reason) != without_numbers(before.reason)
