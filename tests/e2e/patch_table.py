"""The series measured patch by patch: `python -m tests.e2e.patch_table [--write docs/native-patches.md]`.

Builds with no patch, the first one, the first two and so on (minutes the first time), counts each, and prints
a table; what a patch gains is the difference to the row above. `--only N` takes some. Counts, no times: those
are `meshd bench`'s. Linux.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.hostile_frames import CASES, SERVED
from tests.e2e.patch_builds import build_first, patch_files
from tests.e2e.patch_counts import THREAD_TOKENS, Counts, count

BEGIN, END = "<!-- counts -->\n", "<!-- end of counts -->\n"
HEAD = (
    "up to",
    "connections",
    "round trips of a load",
    "MB of a load",
    "round trips a token",
    "kB a token",
    "segments a token",
    f"threads seen in {THREAD_TOKENS} tokens",
    f"of {len(CASES) + len(SERVED)} hostile connections end the server",
    "worker killed",
    "pieces of a step (mamba, rwkv7)",
)


def row(patches: int, counts: Counts) -> str:
    """A line of the table."""
    cells = (
        f"{patches:04}" if patches else "none",
        str(counts.connections),
        str(counts.load_round_trips),
        f"{counts.load_bytes / 1e6:.2f}",
        f"{counts.token_round_trips:.2f}",
        f"{counts.token_bytes / 1000:.2f}",
        f"{counts.token_segments:.2f}",
        str(counts.threads),
        str(len(counts.killed_by)),
        counts.lost,
        ", ".join(map(str, counts.pieces.values())),
    )
    return line(cells)


def line(cells: tuple[str, ...]) -> str:
    """Of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def table(rows: Mapping[int, Counts]) -> str:
    """Of all that was counted."""
    lines = [line(HEAD), "|" + "---|" * len(HEAD), *(row(*item) for item in sorted(rows.items()))]
    return "\n".join(lines) + "\n"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.patch_table", description=__doc__)
    parser.add_argument(
        "--only", type=int, action="append", metavar="N", help="the build with N patches (may repeat)"
    )
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table between the marks of this page"
    )
    words = parser.parse_args()
    rows: dict[int, Counts] = {}
    for patches in words.only or range(len(patch_files()) + 1):
        rows[patches] = count(build_first(patches), patches)
        sys.stdout.write(f"{row(patches, rows[patches])}\n    ends: {'; '.join(rows[patches].killed_by)}\n")
        sys.stdout.flush()
        if words.write is not None:
            before, _, rest = words.write.read_text("utf-8").partition(BEGIN)
            after = rest.partition(END)[2]
            words.write.write_text(f"{before}{BEGIN}{table(rows)}{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
