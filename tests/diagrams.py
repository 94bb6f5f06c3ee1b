"""The diagrams of docs/architecture.md, made from what they show: import contracts, and tables of states.

`make reference` brings them up to date.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from meshd.peer.send_turn import TURNS, FeedState, SendAct, SendEvent, SendState, step

from tests.rules.source import ROOT

PAGE = ROOT / "docs/architecture.md"
Contract = Mapping[str, object]


def contracts() -> list[Contract]:
    """Those of pyproject.toml."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[Contract] = table["tool"]["importlinter"]["contracts"]
    return found


def layers(of: Sequence[Contract]) -> str:
    """Rows of packages, each importing what is below; libraries hang on the one place that has them."""
    (rows,) = (_rows(one) for one in of if one["type"] == "layers")
    pure = {name.removeprefix("meshd.") for one in of if one["type"] == "forbidden" for name in _pure(one)}
    lines = ["flowchart TB"]
    for number, row in enumerate(rows):
        lines.append(f'    subgraph layer{number} [" "]')
        lines += [f'        {name}["{name}"]{":::pure" if name in pure else ""}' for name in row]
        lines.append("    end")
    lines += [f"    layer{number} --> layer{number + 1}" for number in range(len(rows) - 1)]
    lines += [f"    {package} -.- {library}([{library}])" for library, package in _libraries(of)]
    return "\n".join([*lines, "    classDef pure stroke-width:3px"]) + "\n"


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


def who_sends() -> str:
    """Of peer/send_turn.py: the sending side; in brackets the feeding state that a transition needs."""
    found: dict[tuple[str, str, str], set[FeedState]] = defaultdict(set)
    for turn, event in product(TURNS, SendEvent):
        after, act = step(turn, event)
        if after.sends is not turn.sends or act is not SendAct.NOTHING:
            label = event.value + ("" if act is SendAct.NOTHING else f", {act.value}")
            found[turn.sends.value, after.sends.value, label].add(turn.feeds)
    lines = ["stateDiagram-v2", f"    [*] --> {SendState.WORKING.value}"]
    for (state, target, label), feeds in found.items():
        needs = "" if len(feeds) == len(FeedState) else f" [{' or '.join(one.value for one in feeds)}]"
        lines.append(f"    {state} --> {target}: {label}{needs}")
    return "\n".join(lines) + "\n"


def who_feeds() -> str:
    """Of peer/send_turn.py: the receiving side, which does not depend on the other."""
    found = {
        (turn.feeds.value, after.feeds.value, event.value): None
        for turn, event in product(TURNS, SendEvent)
        if (after := step(turn, event)[0]).feeds is not turn.feeds
    }
    lines = [f"    {state} --> {target}: {event}" for state, target, event in found]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {FeedState.NO.value}", *lines]) + "\n"


DIAGRAMS: Mapping[str, Callable[[], str]] = {
    "layers": lambda: layers(contracts()),
    "who sends over a link": who_sends,
    "who feeds the session": who_feeds,
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
