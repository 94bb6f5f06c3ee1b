"""Which files are made from the code, wholly or in part, and by what."""

from collections.abc import Callable, Mapping

from tests import diagrams, limits
from tests.recorded import page
from tests.reference import logs, settings, status_json, synopses
from tests.reference.marks import with_parts
from tests.rules import purity
from tests.rules.source import sources


def _parts(make: Callable[[], Mapping[str, str]]) -> Callable[[str], str]:
    return lambda text: with_parts(text, make())


PAGES: Mapping[str, Callable[[str], str]] = {
    "configs/meshd.example.toml": lambda _page: settings.example(),
    "docs/lab/agents.md": _parts(page.kept_parts),
    "docs/architecture.md": diagrams.brought_up_to_date,
    "docs/cli.md": lambda text: synopses.with_synopses(text, synopses.parts()),
    "docs/config.md": _parts(lambda: {"settings": settings.page()}),
    "docs/logging.md": _parts(lambda: {"warnings": logs.events()}),
    "docs/security.md": limits.with_table,
    "docs/status.md": _parts(lambda: {"status": status_json.page()}),
    "pyproject.toml": lambda text: purity.written(text, purity.pure_modules(sources("meshd"))),
}
