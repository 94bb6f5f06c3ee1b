"""Make the generated parts of docs/lab/agents.md from what `table.py` has seen. Pure."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
# takes anything and knows no tools; its roles must alternate; refuses systems that come late
TEMPLATES = ("SmolLM2", "mistralai-Mistral-Nemo-Instruct-2407", "Qwen3.5-4B")
SESSION = ("starts", "turns", "stream")
FAULTS = ("503", "401", "404", "context", "cut")
COLUMNS = (*SESSION, "models", "loading", *FAULTS)
TITLES: Mapping[str, str] = {
    "starts": "starts",
    "turns": "three turns with tools",
    "stream": "stream parsed",
    "models": "lists models",
    "loading": "load under way",
    "503": "503: no worker",
    "401": "401: wrong key",
    "404": "404: unknown model",
    "context": "context full",
    "cut": "answer cut off",
}
# what a program itself cannot do, by program and column
REASONS: Mapping[tuple[str, str], str] = {
    ("pi", "context"): (
        "pi knows a full context by the message (`pi-ai/dist/utils/overflow.js`: `maximum context length is"
        " N tokens`), and asks for a summary. If that is refused too, `-p` prints nothing; the terminal"
        " interface shows the error. With words that pi does not know, it would not compact a long session."
    ),
}
_COMMAND = "python -m tests.recorded.table --programs DIR --node NODE22"
_KINDS = ("message", "own words")  # how the cells of faults begin that pass
_EXPECTED = ("yes", "message")

Results = Mapping[str, Any]
Cells = dict[str, dict[str, Any]]


def parts(results: Results) -> dict[str, str]:
    """Return the parts by the names of their marks."""
    return {
        "programs": "\n".join((_made_by(results), "", _table(results), "", *_not_tried(results))),
        "what fails": "\n".join(_failures(results)),
    }


def kept_parts() -> dict[str, str]:
    """Return the parts of the results that are kept."""
    return parts(json.loads(RESULTS.read_text()))


def failed(results: Results) -> dict[tuple[str, str], Cells]:
    """Return the cells that fail, by program and column, then by template."""
    return {
        (name, column): found
        for name, program in results["programs"].items()
        for column in COLUMNS
        if (found := _cells(program, column, lambda passed: passed is False))
    }


def _cells(
    program: Mapping[str, Any], column: str, keep: Callable[[bool | None], bool] = lambda _passed: True
) -> Cells:
    """Return a column's cells by template."""
    rows = {template: program["cells"].get(template, {}) for template in TEMPLATES}
    return {
        template: row[column]
        for template, row in rows.items()
        if column in row and keep(row[column]["passed"])
    }


def _made_by(results: Results) -> str:
    machine = results["machine"]
    return (
        f"Seen on {results['date']} with `{_COMMAND}`, on {machine['cores']} cores"
        f" of {machine['cpu']} that had other work as well."
    )


def _table(results: Results) -> str:
    """Return the sums of the columns, then the programs, grouped by the cells that differ from most."""
    programs = results["programs"]
    sums = (f"{TITLES[column]} {_count(list(programs.values()), column)}" for column in COLUMNS)
    groups: dict[str, list[str]] = {}
    for name, program in programs.items():
        marks = {TITLES[column]: _mark(_cells(program, column)) for column in COLUMNS}
        others = "; ".join(f"{title}: {mark}" for title, mark in marks.items() if mark not in _EXPECTED)
        groups.setdefault(others or "nothing else", []).append(f"{name} {program['version']}")
    return "\n".join(
        (f"{'; '.join(sums)}.", "", *(f"- {', '.join(who)}: {what}" for what, who in groups.items()))
    )


def _mark(cells: Cells) -> str:
    """Return a word for a column's cells on all templates; how many it is true of, where they differ."""
    words = [_word(cell) for cell in cells.values()]
    return ", ".join(
        word if words.count(word) == len(words) else f"{word} ({words.count(word)} of {len(words)})"
        for word in dict.fromkeys(words)
    )


def _word(cell: Mapping[str, Any]) -> str:
    if cell["passed"] is None:
        return "–"
    if not cell["passed"]:
        return "**no**"
    return next((kind for kind in _KINDS if cell["seen"].startswith(kind)), "yes")


def _count(programs: list[Mapping[str, Any]], column: str) -> str:
    """Return how many programs pass on all templates, of those that have something to be tried."""
    tried = [_cells(program, column, lambda passed: passed is not None) for program in programs]
    tried = [cells for cells in tried if cells]
    return f"{sum(all(cell['passed'] for cell in cells.values()) for cells in tried)} of {len(tried)}"


def _not_tried(results: Results) -> Iterator[str]:
    """Yield a list of the cells that are missing; nothing if there are none."""
    programs = results["programs"]
    columns: dict[tuple[tuple[str, ...], str], list[str]] = {}  # by templates, and by who was not tried
    for column in COLUMNS:
        templates: dict[str, list[str]] = {}
        for template in TEMPLATES:
            tried = [name for name, one in programs.items() if template in _cells(one, column)]
            if len(tried) < len(programs):
                who = f"all programs but {', '.join(tried)}" if tried else "all programs"
                templates.setdefault(who, []).append(template)
        for who, some in templates.items():
            columns.setdefault((tuple(some), who), []).append(TITLES[column])
    for (names, who), titles in columns.items():
        yield f"- not tried with {' and '.join(names)}: {', '.join(titles)} ({who})"


def _failures(results: Results) -> Iterator[str]:
    for (name, column), cells in sorted(failed(results).items()):
        where = "" if len(cells) == len(TEMPLATES) else f" ({', '.join(cells)})"
        seen = next(iter(cells.values()))["seen"]
        reason = REASONS.get((name, column), "")
        yield f"- {name}, {TITLES[column]}{where}: {_plain(seen)}. {reason}".rstrip()


def _plain(text: str) -> str:
    """Return a program's words so that Markdown takes none of them for its own."""
    return text.replace("<", "‹").replace(">", "›").replace("`", "'").replace("*", "·").replace("_", "\\_")
