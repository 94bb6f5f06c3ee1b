"""What llama-server says of options that it refuses, found in its last lines. Pure."""

import re
from collections.abc import Sequence

# how llama.cpp's parser of options ends (common/arg.cpp); other errors have a function's name before them
_REFUSED_OPTION = re.compile(
    r"error(?:: (?=--|argument|invalid|Invalid|unknown value|failed to open file|the supplied)"
    r"| while handling (?=argument|environment variable))(.+)"
)


def refused_option(tail: Sequence[str]) -> str:
    """Its own words, or nothing where its options are not what is wrong."""
    found = (_REFUSED_OPTION.match(line.strip()) for line in tail)
    return next((f"llama-server refuses its options: {one[1]}" for one in found if one is not None), "")
