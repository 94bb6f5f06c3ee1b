"""Parse the layers that a user assigns to a node: `garage=0-14`."""

import re
from dataclasses import dataclass

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_RANGE = re.compile(r"(?P<node>[^=\s]+)=(?P<first>[0-9]{1,4})(-(?P<last>[0-9]{1,4}))?")


@dataclass(frozen=True, slots=True)
class LayerRange:
    """The layers `first` to `last`, both included, of a node by its name."""

    node: str
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.node}={self.first}-{self.last}"


def parse_layer_range(text: str) -> LayerRange:
    """Parse `NODE=FIRST-LAST`, or `NODE=LAYER`. Raises ValueError."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise ValueError("not NODE=FIRST-LAST")
    first = int(found["first"])
    last = first if found["last"] is None else int(found["last"])
    if not first <= last < MAX_LAYERS:
        raise ValueError("the last layer comes before the first, or is more than a model has")
    return LayerRange(found["node"], first, last)
