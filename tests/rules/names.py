"""One class name for one thing: a reader who has met a name knows what it means everywhere."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tests.rules.source import Source


def shared_class_names(found_in: Iterable[Source]) -> Mapping[str, Sequence[str]]:
    """Names that several classes have, and where. An underscore before a name makes no other word of it."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in found_in:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{source.path}:{node.lineno}")
    return {name: where for name, where in places.items() if len(where) > 1}
