"""The diagram of docs/architecture.md, made from the import contracts.

`make reference` brings them up to date.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from tests.rules.source import ROOT

PAGE = ROOT / "docs/architecture.md"
Contract = Mapping[str, object]


def contracts() -> list[Contract]:
    """Return the contracts of pyproject.toml."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[Contract] = table["tool"]["importlinter"]["contracts"]
    return found


def layers(of: Sequence[Contract]) -> str:
    """Rows of packages, each importing what is below; libraries hang on the one place that has them."""
    (rows,) = (_rows(one) for one in of if one["type"] == "layers")
    pure = {name.removeprefix("meshd.") for one in of if one["type"] == "forbidden" for name in _pure(one)}
    lines = ["flowchart TB"]
    lines += [f"    {' & '.join(above)} --> {' & '.join(below)}" for above, below in pairwise(rows)]
    lines += [f"    {package} -.- {library}([{library}])" for library, package in _libraries(of)]
    shown = ",".join(name for row in rows for name in row if name in pure)
    return "\n".join([*lines, f"    class {shown} pure", "    classDef pure stroke-width:3px"]) + "\n"


def _rows(contract: Contract) -> list[list[str]]:
    found = contract["layers"]
    assert isinstance(found, list)
    rows = [[name.strip(" ()") for name in row.split("|")] for row in found]
    return [row for row in rows if row != ["__main__"]]  # a module that starts cli, and no package


def _pure(contract: Contract) -> Iterator[str]:
    """Whole packages that a contract about purity names."""
    sources, forbidden = contract["source_modules"], contract["forbidden_modules"]
    assert isinstance(sources, list) and isinstance(forbidden, list)
    if "asyncio" in forbidden:
        yield from (name for name in sources if name.count(".") == 1)


def _libraries(of: Sequence[Contract]) -> Iterator[tuple[str, str]]:
    for one in of:
        if one["type"] != "protected":
            continue
        protected, importers = one["protected_modules"], one["allowed_importers"]
        assert isinstance(protected, list) and isinstance(importers, list)
        for library in protected:
            if not library.startswith("meshd"):
                packages = sorted({importer.split(".")[1] for importer in importers})
                yield from ((library, package) for package in packages)


DIAGRAMS: Mapping[str, Callable[[], str]] = {
    "layers": lambda: layers(contracts()),
}


def brought_up_to_date(text: str) -> str:
    """The page, each diagram between its marks as it is now. Raises ValueError where a mark is missing."""
    for name, draw in DIAGRAMS.items():
        begin, end = f"<!-- diagram: {name} -->\n", "<!-- end of the diagram -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"there is no one place for `{name}`")
        drawn = f"{begin}```mermaid\n{draw()}```\n{end}"
        text = pattern.sub(lambda _, drawn=drawn: drawn, text)  # type: ignore[misc]
    return text
