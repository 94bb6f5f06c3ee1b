"""Which files are made from the code, wholly or in part, and by what."""

from collections.abc import Callable, Mapping

from meshd.service.files import SYSTEM_CACHE, SYSTEM_STATE, Service, systemd_unit, unit_name

from tests import diagrams, limits
from tests.recorded import page
from tests.reference import logs, settings, status_json, synopses
from tests.reference.marks import with_parts
from tests.reference.page_types import page_types
from tests.rules import purity
from tests.rules.source import sources


def _parts(make: Callable[[], Mapping[str, str]]) -> Callable[[str], str]:
    return lambda text: with_parts(text, make())


def _unit(role: str) -> Callable[[str], str]:
    """Return the unit that `meshd service install ROLE --system` writes for a meshd that all users have."""
    home = {"MESHD_HOME": f"{SYSTEM_STATE}/{role}", "MESHD_CACHE": SYSTEM_CACHE}
    service = Service(role, ["/usr/bin/meshd", role, *OPTIONS[role]], home)
    return lambda _page: systemd_unit(service, system=True)


OPTIONS = {
    "worker": (),
    "serve": ("--config", "/etc/meshd/meshd.toml"),  # which names the model
    "client": (),
    "relay": ("--listen", ":443", "--public-host", "relay.example.org"),
}
PAGES: Mapping[str, Callable[[str], str]] = {
    "configs/meshd.example.toml": lambda _page: settings.example(),
    **{f"configs/{unit_name(role)}": _unit(role) for role in OPTIONS},
    "docs/lab/agents.md": _parts(page.kept_parts),
    "docs/architecture.md": diagrams.brought_up_to_date,
    "docs/cli.md": lambda text: synopses.with_synopses(text, synopses.parts()),
    "docs/config.md": _parts(lambda: {"settings": settings.page()}),
    "docs/logging.md": _parts(lambda: {"warnings": logs.events()}),
    "docs/security.md": limits.with_table,
    "docs/status.md": _parts(lambda: {"status": status_json.page()}),
    "pyproject.toml": lambda text: purity.written(text, purity.pure_modules(sources("meshd"))),
    "wheels/mesh/src/status.ts": lambda _: page_types(),
}
