"""A small picture of who computes, copies and waits, as SVG: a panel for each part, a row for each device.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tests.bench.speed_curve import marks
from tests.bench.timeline import Doing, Lane, Span

TIMELINE_WIDTH, LANES_LEFT, LANES_RIGHT = 1000, 130, 16
_ROW, _BAR, _PANEL_TOP, _PANEL_BOTTOM = 34, 24, 34, 40
_COMPUTE = ("#0b6e99", "#4d9dbf")  # in turns, so that steps can be told apart
_COLOURS = {Doing.WAIT: "#e3b23c", Doing.IN: "#b3541e", Doing.OUT: "#6b3fa0"}
_LEGEND = (
    ("computes", _COMPUTE[0]),
    ("waits for another", _COLOURS[Doing.WAIT]),
    ("copies in", _COLOURS[Doing.IN]),
    ("copies out", _COLOURS[Doing.OUT]),
    ("nothing asked of it", "#eeeeee"),
)
_LEAST_WIDTH = 0.4  # else a token's copies would not be seen


@dataclass(frozen=True, slots=True)
class Panel:
    """One part of the time. `head`: when llama-server waited for a worker."""

    title: str
    begin: int
    end: int
    lanes: Sequence[Lane]
    head: Sequence[Span]


def draw_timeline(title: str, panels: Sequence[Panel]) -> str:
    """The picture, with milliseconds from the beginning of each panel."""
    height = 56 + sum(_height(panel) for panel in panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {TIMELINE_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{TIMELINE_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 22, title, "start", size=15),
    ]
    x = float(LANES_LEFT)
    for name, colour in _LEGEND:
        parts += [_bar(x, 34, 14, 12, colour), _text(x + 20, 44, name, "start")]
        x += 44 + 7 * len(name)
    top = 56
    for panel in panels:
        parts += _panel(panel, top)
        top += _height(panel)
    return "\n".join([*parts, "</svg>", ""])


def _height(panel: Panel) -> int:
    return _PANEL_TOP + _ROW * (len(panel.lanes) + 1) + _PANEL_BOTTOM


def _panel(panel: Panel, top: int) -> list[str]:
    milliseconds = max((panel.end - panel.begin) / 1e6, 1e-3)
    scale = (TIMELINE_WIDTH - LANES_LEFT - LANES_RIGHT) / milliseconds
    bottom = top + _PANEL_TOP + _ROW * (len(panel.lanes) + 1)

    def at(time: int) -> float:
        return LANES_LEFT + scale * (time - panel.begin) / 1e6

    def bar(span: Span, y: float, colour: str) -> str:
        return _bar(at(span.begin), y, max(at(span.end) - at(span.begin), _LEAST_WIDTH), _BAR, colour)

    parts = [_text(16, top + 22, panel.title, "start", size=13)]
    for value in marks(milliseconds):
        if value <= milliseconds:
            x = LANES_LEFT + scale * value
            parts.append(
                f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#888888"/>'
            )
            parts.append(_text(x, bottom + 20, f"{value:g}", "middle"))
    parts.append(_text(LANES_LEFT - 8, bottom + 20, "ms", "end"))
    for row, name in enumerate(["head", *(lane.name for lane in panel.lanes)]):
        y = top + _PANEL_TOP + _ROW * row
        parts.append(_text(LANES_LEFT - 8, y + 17, name[:18], "end"))
        idle = "#eeeeee" if row else _COMPUTE[0]  # what a head does beside waiting is work of llama-server
        parts.append(_bar(LANES_LEFT, y, TIMELINE_WIDTH - LANES_LEFT - LANES_RIGHT, _BAR, idle))
    first = top + _PANEL_TOP
    parts += [bar(span, first, _COLOURS[Doing.WAIT]) for span in panel.head]
    for row, lane in enumerate(panel.lanes, 1):
        for number, step in enumerate(lane.steps):
            for span in step.spans:
                if panel.begin <= span.begin < panel.end:
                    colour = _COLOURS.get(span.doing) or _COMPUTE[number % 2]
                    parts.append(bar(span, first + _ROW * row, colour))
    return parts


def _bar(x: float, y: float, width: float, height: int, colour: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{height}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, *, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
