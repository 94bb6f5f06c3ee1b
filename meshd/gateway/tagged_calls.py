"""Calls of tools by a chat template that writes each argument separately, usually in a tag. Pure.

Such templates write texts without quotation marks, and other values as JSON. So the template is shown the
calls with a mark in place of each value, twice: as they are, and with one more argument at the end. What the
client has takes the place of the marks. Where the last value has ended, what both have behind it is written
as well, such as a closing tag.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from meshd.gateway.begun_arguments import BegunArguments

_NEXT_NAME = "meshd-next"
# an argument that is no text is shown as a number: a template may write texts in another way
_FIRST_NUMBER = 7_303_014_000
_TO_A_TAGS_END = re.compile(r"(?s).*[>\]}\s]")


def tagged_arguments(calls: Sequence[BegunArguments]) -> tuple[list[str], list[str]]:
    """Of all calls, for two requests to the template: as JSON."""
    marks = iter(_marks(calls))
    shown = [{one.name: next(marks) for one in call.arguments} for call in calls]
    longer = [*shown[:-1], {**shown[-1], _NEXT_NAME: "-"}]
    return [json.dumps(one) for one in shown], [json.dumps(one) for one in longer]


def written_tagged(shown: str, longer: str, calls: Sequence[BegunArguments]) -> str | None:
    """What the model wrote for these calls, from the two prompts behind where they begin.

    None: that cannot be seen.
    """
    arguments = [one for call in calls for one in call.arguments]
    parts, at, longer_at = [], 0, 0  # not the rest of the two each time: a peer can send very many arguments
    for argument, mark in zip(arguments, map(str, _marks(calls)), strict=True):
        found, longer_found = shown.find(mark, at), longer.find(mark, longer_at)
        before = shown[at:found]
        if found < 0 or longer_found < 0 or before != longer[longer_at:longer_found]:
            return None
        at, longer_at = found + len(mark), longer_found + len(mark)
        parts.append(before)
        if argument.is_text and before.endswith('"') and shown.startswith('"', at):
            parts.append(argument.value[1:])
            at, longer_at = at + argument.is_whole, longer_at + argument.is_whole
        else:
            parts.append(argument.text if argument.is_text else argument.value)
    last, longer = calls[-1], longer[longer_at:]
    if last.next_name is not None:
        before, name, _ = longer.partition(_NEXT_NAME)
        if not name:
            return None
        parts += [before, last.next_name]
    elif last.is_closed:
        parts.append(_closing(shown[at:], longer))
    return "".join(parts)


def _closing(shown: str, longer: str) -> str:
    """What both begin with, up to the end of a tag or a line: a model writes no half tags."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(shown, longer, strict=False)))
    found = _TO_A_TAGS_END.match(shown[:alike])
    return "" if found is None else found[0]


def _marks(calls: Sequence[BegunArguments]) -> Iterator[str | int]:
    arguments = [one for call in calls for one in call.arguments]
    for number, argument in enumerate(arguments):
        yield f"meshd-value-{number}." if argument.is_text else _FIRST_NUMBER + number
