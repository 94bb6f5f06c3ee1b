"""Which files are made from the code, wholly or in part, and by what."""

from collections.abc import Callable, Mapping

from tests import diagrams, limits
from tests.reference import logs, settings, status_json, synopses
from tests.reference.marks import with_parts
from tests.rules import purity
from tests.rules.source import sources


def _parts(make: Callable[[], Mapping[str, str]]) -> Callable[[str], str]:
    return lambda page: with_parts(page, make())


PAGES: Mapping[str, Callable[[str], str]] = {
    "configs/meshd.example.toml": lambda _page: settings.example(),
    "docs/architecture.md": diagrams.brought_up_to_date,
    "docs/cli.md": _parts(synopses.parts),
    "docs/config.md": _parts(lambda: {"settings": settings.page()}),
    "docs/logging.md": _parts(lambda: {"fields": logs.log_fields(), "events": logs.events()}),
    "docs/security.md": limits.with_table,
    "docs/status.md": _parts(lambda: {"status": status_json.page()}),
    "pyproject.toml": lambda page: purity.written(page, purity.pure_modules(sources("meshd"))),
}
