"""Draw the speed at a distance as SVG: curves of load or token, by round trip or by nodes. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from meshd.bench.figures import LOCAL, MESHD, STOCK, Figures, count_of

WIDTH, HEIGHT = 760, 420
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 64, 210, 40, 52
_COLOURS = ("#0b6e99", "#b3541e", "#3f7d20", "#6b3fa0", "#a8226b", "#4d4d4d")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LEAST = 1e-6  # less is drawn as nothing


def draw_speeds(what: str, figures: Figures) -> str:
    """Draw the curve: load or token by round trip, or token by nodes."""
    measured = "load" if what == "load" else "token"
    factor, unit = (1.0, "seconds to load") if measured == "load" else (1000.0, "ms for a token")
    cells = figures.cells()
    by_nodes = what == "nodes"
    groups = sorted({rtt if by_nodes else workers for workers, rtt in cells})
    lines = []
    for number, group in enumerate(groups):
        for setup in (STOCK, MESHD):
            alone = figures.median(LOCAL, 0, 0.0, measured) if by_nodes else None
            points = [(1.0, alone * factor)] if alone is not None else []
            for workers, rtt in cells:
                value = figures.median(setup, workers, rtt, measured)
                if group == (rtt if by_nodes else workers) and value is not None:
                    points.append((workers + 1.0 if by_nodes else rtt, value * factor))
            name = f"{setup}, RTT {group:g} ms" if by_nodes else f"{setup}, {count_of(int(group), 'worker')}"
            lines.append(CurveLine(name, points, group=number, dashed=setup == STOCK))
    x_title = "nodes" if by_nodes else "round trip, ms"
    return draw(f"{unit}, stock and meshd", x_title, unit, lines)


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A line through points ordered by x. Lines of one `group` share a colour; `dashed` distinguishes two."""

    name: str
    points: Sequence[tuple[float, float]]
    group: int = 0
    dashed: bool = False


def draw(title: str, x_title: str, y_title: str, lines: Sequence[CurveLine]) -> str:
    """Draw the curves as SVG; both axes begin at 0."""
    # scales
    points = [point for line in lines for point in line.points]
    x_marks = marks(max((x for x, _ in points), default=0.0))
    y_marks = marks(max((y for _, y in points), default=0.0))
    right, bottom = WIDTH - RIGHT_MARGIN, HEIGHT - BOTTOM_MARGIN

    def x_at(value: float) -> float:
        return LEFT_MARGIN + (right - LEFT_MARGIN) * value / x_marks[-1]

    def y_at(value: float) -> float:
        return bottom - (bottom - TOP_MARGIN) * value / y_marks[-1]

    # titles
    y_text = _text(0, 0, y_title, "middle")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT_MARGIN, 22, title, "start", size=15),
        _text((LEFT_MARGIN + right) / 2, HEIGHT - 12, x_title, "middle"),
        f'<g transform="translate(16 {(TOP_MARGIN + bottom) / 2:.0f}) rotate(-90)">{y_text}</g>',
    ]
    # axes
    for value in y_marks:
        parts.append(_rule(LEFT_MARGIN, y_at(value), right, y_at(value), "#dddddd"))
        parts.append(_text(LEFT_MARGIN - 8, y_at(value) + 4, f"{value:g}", "end"))
    for value in x_marks:
        parts.append(_rule(x_at(value), bottom, x_at(value), bottom + 5, "#888888"))
        parts.append(_text(x_at(value), bottom + 20, f"{value:g}", "middle"))
    # lines, and the legend
    for number, line in enumerate(lines):
        colour = _COLOURS[line.group % len(_COLOURS)]
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [
            f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"/>' for x, y in line.points
        ]
        y = TOP_MARGIN + 8 + 20 * number
        parts.append(_rule(right + 16, y, right + 46, y, colour, width=2, more=dash))
        parts.append(_text(right + 54, y + 4, line.name, "start"))
    return "\n".join([*parts, "</svg>", ""])


def marks(most: float) -> list[float]:
    """Return 0 and four to six round numbers up to `most` or a little more."""
    if most < _LEAST:
        return [0.0, 1.0]
    size = 10.0 ** (len(f"{int(most)}") - 1) if most >= 1 else 1.0
    while size > most:
        size /= 10
    step = next(size * factor / 5 for factor in _STEPS if size * factor >= most)
    count = math.ceil(most / step - 1e-9)
    return [round(step * number, 9) for number in range(count + 1)]


def _text(x: float, y: float, text: str, anchor: str, *, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, *, width: int = 1, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{more}/>'
    )
