"""Find llama-server's message about refused options in its last lines. Pure."""

import re
from collections.abc import Sequence

# llama.cpp's parser of options ends its output so (common/arg.cpp); other errors begin with a function's name
_REFUSED_OPTION = re.compile(
    r"error(?:: (?=--|argument|invalid|Invalid|unknown value|failed to open file|the supplied)"
    r"| while handling (?=argument|environment variable))(.+)"
)


def refused_option(tail: Sequence[str]) -> str:
    """Return llama-server's own words, or "" if its options are not the cause."""
    found = (_REFUSED_OPTION.match(line.strip()) for line in tail)
    return next((f"llama-server refuses its options: {one[1]}" for one in found if one is not None), "")
