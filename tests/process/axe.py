"""The serious faults that axe-core finds in a page: what keeps people from using it."""

from typing import TYPE_CHECKING

import pytest

from tests.page_scripts import package_file

if TYPE_CHECKING:
    from playwright.sync_api import Page

_AXE = package_file("axe-core/axe.min.js")
needs_axe = pytest.mark.skipif(_AXE is None, reason="`make chat` has not installed axe-core")
_VIOLATIONS = """async axe => {
    (0, eval)(axe);
    const found = await window.axe.run();
    return found.violations.filter(one => ['serious', 'critical'].includes(one.impact))
        .flatMap(one => one.nodes.map(node => `${one.id}: ${node.html} ${node.failureSummary}`));
}"""


def serious_faults(page: "Page") -> list[str]:
    """Return what axe-core calls serious or critical, with the elements.

    The debugger runs it: the page's policy allows no script of others.
    """
    assert _AXE is not None
    found: list[str] = page.evaluate(_VIOLATIONS, _AXE.read_text(encoding="utf-8"))
    return found
