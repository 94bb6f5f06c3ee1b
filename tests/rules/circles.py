"""A rule about the whole package: no module needs itself, by whatever way round.

Imports within functions and those for the type checker count too: a circle of them is one thing in two files.
"""

from collections.abc import Callable, Collection, Iterable

import grimp

Imports = Callable[[str], Collection[str]]


def circles(package: str) -> list[tuple[str, ...]]:
    """Groups of modules below `package` that all need each other."""
    graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=False)
    return knots(sorted(graph.modules), graph.find_modules_directly_imported_by)


def knots(modules: Iterable[str], imports: Imports) -> list[tuple[str, ...]]:
    """Strongly connected components of two or more modules."""
    reached = {module: _reached(module, imports) for module in modules}
    found = {
        tuple(sorted(other for other in others if module in reached[other]))
        for module, others in reached.items()
        if module in others
    }
    return sorted(found)


def _reached(module: str, imports: Imports) -> set[str]:
    """All that `module` needs; itself only by a circle."""
    seen: set[str] = set()
    ahead = list(imports(module))
    while ahead:
        if (one := ahead.pop()) not in seen:
            seen.add(one)
            ahead.extend(imports(one))
    return seen
