"""The grid as a page: a table of marks, the pairs one by one, and medians."""

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.netns.sites import Kind

if TYPE_CHECKING:
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


def write(results: "Sequence[Result]", *, seconds: float, rtt: float, loss: float) -> str:
    """Markdown."""
    parts = [_head(results, seconds=seconds, rtt=rtt, loss=loss), _matrix(results), _list(results)]
    return "\n\n".join(parts) + "\n"


def _head(results: "Sequence[Result]", *, seconds: float, rtt: float, loss: float) -> str:
    joined = [result for result in results if not result.error]
    direct = [result for result in joined if result.direct]
    missed = [result for result in joined if result.possible and not result.direct]
    lines = [
        "# Every pair of NATs",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}; {seconds:.0f} s for {len(results)} runs. "
        f"Round trip between two places {rtt:g} ms, loss {loss:g} %. "
        "Made by `make nat-grid`; how each kind is built: [tests/netns](../tests/netns/README.md).",
        "",
        f"{len(joined)} of {len(results)} connected, {len(direct)} of them directly; "
        f"{len(missed)} of those that could be direct were relayed when the run ended.",
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
    lines = [
        "T: TCP, dialled; TP: TCP, punched; W: WebRTC; Q: QUIC, dialled; QP: QUIC, punched; R: relay; "
        "×: not connected. What carried data in the end.",
        "",
        "| | " + " | ".join(str(number) for number in range(1, len(seen) + 1)) + " |",
        "|---|" + ":-:|" * len(seen),
    ]
    for number, one in enumerate(seen, start=1):
        cells = [marks.get((one, two), "") or marks.get((two, one), "") for two in seen]
        lines.append(f"| {number} {one} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mark(result: "Result") -> str:
    if result.last is None:
        return "×"
    return MARKS.get((result.last.kind, result.last.path), f"{result.last.kind} {result.last.path}")


def _list(results: "Sequence[Result]") -> str:
    lines = [
        "| founder | joiner | first byte, s | over | then | at, s | can be direct by |",
        "|---|---|---:|---|---|---:|---|",
    ]
    for result in results:
        if result.first is None or result.last is None:
            cells = ["", result.error.replace("|", "/") or "no path", "", ""]
        else:
            changed = (result.first.kind, result.first.path) != (result.last.kind, result.last.path)
            cells = [
                f"{result.first_byte:.2f}",
                f"{result.first.kind} {result.first.path}",
                f"{result.last.kind} {result.last.path}" if changed else "",
                f"{result.direct_at:.2f}" if result.direct_at is not None else "",
            ]
        possible = ", ".join(result.possible) or "no way"
        lines.append(f"| {result.one} | {result.two} | " + " | ".join(cells) + f" | {possible} |")
    return "\n".join(lines)


def _machine() -> str:
    control = subprocess.run(
        ["sysctl", "-n", "net.ipv4.tcp_congestion_control"], capture_output=True, text=True, check=False
    )
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return (
        f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}, TCP {control.stdout.strip()}"
    )
