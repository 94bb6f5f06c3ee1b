"""Node names and id prefixes: which names are valid, and which node a text refers to. Pure.

A node is its key; a name is what a node says of itself, and a member may say anything. So a text of ten
or more characters of the alphabet of ids is an id or the beginning of one, and never a name. A shorter one
may be either; if it fits the name of one node and the id of another, it means neither.

The names by which a node's record says what it does, and by which other nodes find it.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

HEAD_ROLE, WORKER_ROLE = "serve", "worker"
CLIENT_ROLE = "client"
ID_CHARS = 52  # base32 of 32 bytes without padding
SHORT_CHARS = 10  # of an id, as people see and give it: 50 bits
LEAST_CHARS = 4  # of an id that are taken for its beginning
MAX_NAME_CHARS = 63
NAME_BLOB = "name"  # under which a home keeps the name that was given
UNNAMED = "?"  # precedes the text shown in place of a forbidden name; no name contains it
_ID_PART = re.compile(r"[A-Za-z2-7]+")
_WORD = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")


def is_word(text: str) -> bool:
    """Return True if `text` has the form of a name."""
    return _WORD.fullmatch(text) is not None


def looks_like_id(text: str) -> bool:
    """Return True if `text` can only be an id or its beginning: no node has such a name."""
    return len(text) >= SHORT_CHARS and _ID_PART.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Return True if a node may have this name."""
    return is_word(text) and not looks_like_id(text)


def shown(name: str) -> str:
    """Return a peer's own name: `name` if it is allowed, else `?` and its harmless characters."""
    if is_name(name):
        return name
    return UNNAMED + _UNFIT.sub("?", name)[: MAX_NAME_CHARS - 1]


def shown_among(name: str, node: str, ids: Sequence[str]) -> str:
    """Return `name` of the node with this id; with `?` before it if another one of `ids` (sorted) begins with
    it.
    """
    if not _may_begin_id(name):
        return name
    at = bisect_left(ids, name.lower())
    others = (known for known in ids[at : at + 2] if known != node)
    return UNNAMED + name if any(known.startswith(name.lower()) for known in others) else name


def meant(text: str, names: Mapping[str, str]) -> list[str]:
    """Return the ids that `text` matches; exactly one is unambiguous. `names`: by id, empty where unknown."""
    plain = text.strip()
    begins = plain.lower()
    ids = [node for node in names if _may_begin_id(plain) and node.startswith(begins)]
    if not is_name(plain):
        return ids
    return [*ids, *(node for node, name in names.items() if name == plain and node not in ids)]


def _may_begin_id(text: str) -> bool:
    return len(text) >= LEAST_CHARS and _ID_PART.fullmatch(text) is not None


def shared(names: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names that several nodes have, with their ids. Texts shown in place of a name do
    not count.
    """
    nodes: dict[str, list[str]] = {}
    for node, name in sorted(names.items()):
        if is_name(name):
            nodes.setdefault(name, []).append(node)
    return {name: found for name, found in nodes.items() if len(found) > 1}


def labels(names: Mapping[str, str], taken: Collection[str] = ()) -> dict[str, str]:
    """Return a unique label for each node id, none of them in `taken`.

    A label is the name where nobody else has it, else name and id: in a form that no name has.
    """
    same = Counter(names.values())
    short = Counter((name, node[:SHORT_CHARS]) for node, name in names.items())

    def label(node: str, name: str) -> str:
        if same[name] == 1 and name not in taken and is_word(name.lstrip(UNNAMED)):
            return name
        return f"{name} ({node if short[name, node[:SHORT_CHARS]] > 1 else node[:SHORT_CHARS]})"

    return {node: label(node, name) for node, name in names.items()}
