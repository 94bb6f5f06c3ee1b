"""One home for each constant: a limit that stands in two files is changed in one of them."""

import ast
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.rules.source import Source, dotted, last_part

_NAME = re.compile(r"_*[A-Z][A-Z0-9_]*")
_LIMIT = re.compile(r"(MAX|MOST)(_.*|$)")
VOCABULARIES = frozenset(  # names of a protocol's own messages and fields, which are not ours to choose
    {
        "meshd/link/webrtc/sctp_packet.py",
        "meshd/rpc/mesh_protocol.py",
        "meshd/wire/frame_types.py",
    }
)
_SUMS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.LShift: operator.lshift,
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}
ALIKE = {
    "LOG": "each module's own logger",
    "SECONDS": "how long a module waits for something of its own: two may agree by chance",
    "READ_BYTES": "a module's own buffer: two may agree by chance",
}


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a constant gets its value, as what name, and the value's expression."""

    place: str
    name: str
    value: str


def second_homes(found_in: Iterable[Source]) -> Mapping[str, Sequence[str]]:
    """Constants of several modules, and where: what others may import, a limit, or one value twice.

    An underscore before a name says that it is the module's own: then another may use it for another value,
    unless it is a limit.
    """
    by_name: dict[str, list[_Home]] = defaultdict(list)
    for source in found_in:
        for home in _homes(source):
            name = home.name.lstrip("_")
            if source.path not in VOCABULARIES or _LIMIT.fullmatch(name):
                by_name[name].append(home)
    return {name: [home.place for home in homes] for name, homes in by_name.items() if not _may(name, homes)}


def _may(name: str, homes: Sequence[_Home]) -> bool:
    public = [home for home in homes if not home.name.startswith("_")]
    if len(homes) < 2 or name == "LOG":
        return True
    if len(public) > 1 or _LIMIT.fullmatch(name):
        return False
    by_chance = name.endswith(tuple(ALIKE))
    return by_chance or len({home.value for home in homes}) == len(homes)


def _homes(source: Source) -> Iterator[_Home]:
    for node in source.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None or _is_type(value):
            continue
        for target in targets:
            for name, part in _parts(target, value):
                if _NAME.fullmatch(name) and last_part(dotted(part)) != name:
                    number = _number(part)
                    said = ast.unparse(part) if number is None else repr(number)
                    yield _Home(f"{source.path}:{node.lineno}", name, said)


def _parts(target: ast.expr | None, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Names and values; of `A, B = 1, 2` two."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
        for one, part in zip(target.elts, values, strict=True):
            yield from _parts(one, part)


def _is_type(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "TypeVar"


def _number(value: ast.expr) -> object:
    """A number or a sum of numbers as its result, so that `4 << 10` is 4096; None for all else."""
    if isinstance(value, ast.Constant):
        return value.value
    if isinstance(value, ast.BinOp) and type(value.op) in _SUMS:
        left, right = _number(value.left), _number(value.right)
        if isinstance(left, int) and isinstance(right, int):
            return _SUMS[type(value.op)](left, right)
    return None
