"""The grid as a page: medians, a table of marks, and the pairs that were slow or failed."""

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.netns.sites import Kind

if TYPE_CHECKING:
    from tests.netns.agent import LinkSeen
    from tests.netns.grid import Result

MARKS = {
    ("tcp", "public"): "T",
    ("tcp", "lan"): "T",
    ("tcp", "punched"): "TP",
    ("webrtc", "punched"): "W",
    ("webrtc", "public"): "W",
    ("webrtc", "lan"): "W",
    ("quic", "public"): "Q",
    ("quic", "lan"): "Q",
    ("quic", "punched"): "QP",
    ("relay", "relayed"): "R",
}
NAME_COLUMNS = 20  # of the matrix
LIST_COLUMNS = (38, 6, 7, 13, 12, 5, 0)  # widths of the list of pairs
SLOW_SECONDS = 5.0  # to a direct path; pairs that take longer are listed one by one


def write(results: "Sequence[Result]", *, seconds: float, rtt: float, loss: float) -> str:
    """Markdown."""
    parts = [_head(results, seconds=seconds, rtt=rtt, loss=loss), _matrix(results), _list(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(results: "Sequence[Result]", *, seconds: float, rtt: float, loss: float) -> str:
    joined = [result for result in results if not result.error]
    direct = [result for result in joined if result.direct]
    missed = [result for result in joined if result.possible and not result.direct]
    lines = [
        "# Every pair of NATs",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {_machine()};",
        f"{seconds:.0f} s for {len(results)} runs, load average {os.getloadavg()[2]:.1f} (with other work).",
        f"Round trip between two sites {rtt:g} ms, loss {loss:g} %.",
        "Made by `make nat-grid`. How each kind of NAT is built: [tests/netns](../../tests/netns/README.md).",
        "",
        "In each run a founder prints an invite, and a joiner starts with it. Seconds count from its start",
        "to the first byte there and back, joining included. Both nodes know a relay and a STUN server.",
        "",
        f"{len(joined)} of {len(results)} connected, {len(direct)} of them directly. "
        f"{len(missed)} pairs that could connect directly were still relayed at the end.",
        "",
        "| first byte, seconds | runs | median | worst |",
        "|---|---:|---:|---:|",
    ]
    groups = {
        "dialled": [one for one in joined if one.first and one.first.path in ("public", "lan")],
        "punched": [one for one in joined if one.first and one.first.path == "punched"],
        "relayed": [one for one in joined if one.first and one.first.path == "relayed"],
    }
    for name, group in groups.items():
        if group:
            times = [result.first_byte for result in group]
            lines.append(f"| {name} | {len(group)} | {statistics.median(times):.2f} | {max(times):.2f} |")
    later = [result.direct_at for result in joined if result.direct_at is not None]
    if later:
        median, worst = statistics.median(later), max(later)
        lines.append(f"| direct after relayed | {len(later)} | {median:.2f} | {worst:.2f} |")
    return "\n".join(lines)


def _matrix(results: "Sequence[Result]") -> str:
    marks = {(result.one, result.two): _mark(result) for result in results}
    seen = [kind for kind in Kind if any(kind in (result.one, result.two) for result in results)]
    if not seen:
        return ""
    lines = [
        "The link that carried data at the end. T: TCP, dialled; TP: TCP, punched; W: WebRTC; "
        "Q: QUIC, dialled; QP: QUIC, punched; R: relay; ×: not connected.",
        "",
        "```",
        " " * NAME_COLUMNS + "".join(f"{number:4}" for number in range(1, len(seen) + 1)),
    ]
    for number, one in enumerate(seen, start=1):
        cells = [marks.get((one, two), "") or marks.get((two, one), "") for two in seen]
        lines.append(f"{number:2} {one}".ljust(NAME_COLUMNS) + "".join(f" {cell:>3}" for cell in cells))
    return "\n".join([*lines, "```"])


def _mark(result: "Result") -> str:
    if result.last is None:
        return "×"
    return MARKS.get((result.last.kind, result.last.path), f"{result.last.kind} {result.last.path}")


def _list(results: "Sequence[Result]") -> str:
    """Return the pairs that the matrix cannot show: not connected, late to become direct, or on one site."""
    lines = [
        f"Pairs that share a site, failed, or needed more than {SLOW_SECONDS:g} s for a direct path:",
        "",
        "```",
        _row("founder, joiner", "direct", "byte, s", "over", "then", "at, s", "can be direct by"),
    ]
    pairs: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        pairs.setdefault((result.one, result.two), []).append(result)
    for (one, two), runs in pairs.items():
        if two and not any(run.error or (run.direct_at or 0.0) > SLOW_SECONDS for run in runs):
            continue
        possible = ", ".join(runs[0].possible) or "no way"
        direct = f"{sum(run.direct for run in runs)}/{len(runs)}"
        lines.append(_row(", ".join(filter(None, (one, two))), direct, *_cells(runs), possible))
    return "\n".join([*lines, "```"])


def _row(*cells: str) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, LIST_COLUMNS, strict=True)).rstrip()


def _cells(runs: "Sequence[Result]") -> list[str]:
    """Medians of the runs that connected, and what most of them did."""
    joined = [run for run in runs if not run.error and run.first is not None and run.last is not None]
    if not joined:
        return ["", runs[0].error.partition(";")[0] or "no path", "", ""]
    later = [run.direct_at for run in joined if run.direct_at is not None]
    over = statistics.mode(_way(run.first) for run in joined)
    then = statistics.mode(_way(run.last) for run in joined)
    return [
        f"{statistics.median(run.first_byte for run in joined):.2f}",
        over,
        then if then != over else "",
        f"{statistics.median(later):.2f}" if later else "",
    ]


def _way(link: "LinkSeen | None") -> str:
    return f"{link.kind} {link.path}" if link is not None else ""


def _machine() -> str:
    control = subprocess.run(
        ["sysctl", "-n", "net.ipv4.tcp_congestion_control"], capture_output=True, text=True, check=False
    )
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return (
        f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}, TCP {control.stdout.strip()}"
    )
