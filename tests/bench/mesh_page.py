"""Measure a visit of the page of the mesh in Chromium: bytes, and the time until something and all is shown.

`python -m tests.bench.mesh_page [--visits N]` prints medians of first visits and of later ones.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.e2e.browser import chromium
from tests.process import mesh_page_states as states
from tests.process.mesh_page_fake import FakeNode, look

_PAINT_MS = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
_SHOWN_MS = """() => new Promise((done) => {
    const isShown = () => document.querySelector('.picture') !== null;
    const look = () => (isShown() ? done(performance.now()) : requestAnimationFrame(look));
    look();
})"""


@dataclass(frozen=True, slots=True)
class Visit:
    """A visit: bytes of files sent, milliseconds until the first paint and until the machines are shown."""

    sent_bytes: int
    paint_ms: float
    shown_ms: float


def measure(visits: int) -> list[tuple[Visit, Visit]]:
    """Visit a mesh of thirty machines with a fresh profile, and once more, so many times."""
    found: list[tuple[Visit, Visit]] = []

    def see(node: FakeNode) -> None:
        with chromium() as browser:
            for _ in range(visits):
                context = browser.new_context(viewport={"width": 1280, "height": 800})
                page = context.new_page()
                both: list[Visit] = []
                for _ in range(2):
                    before = node.sent_bytes
                    page.goto(node.url)
                    shown = page.evaluate(_SHOWN_MS)
                    both.append(Visit(node.sent_bytes - before, page.evaluate(_PAINT_MS), shown))
                    page.goto("about:blank")
                found.append((both[0], both[1]))
                context.close()

    look(FakeNode([states.crowd()]), see)
    return found


def line(name: str, visits: Sequence[Visit]) -> str:
    """Return the medians of visits as a line."""
    sent = statistics.median(visit.sent_bytes for visit in visits)
    paint = statistics.median(visit.paint_ms for visit in visits)
    shown = statistics.median(visit.shown_ms for visit in visits)
    return f"{name}: {sent / 1e3:.1f} kB, first paint {paint:.0f} ms, 30 machines shown {shown:.0f} ms\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mesh_page", description=__doc__)
    parser.add_argument("--visits", type=int, default=5)
    found = measure(parser.parse_args().visits)
    sys.stdout.write(line("first visit", [first for first, _ in found]))
    sys.stdout.write(line("again", [again for _, again in found]))


if __name__ == "__main__":
    main()
