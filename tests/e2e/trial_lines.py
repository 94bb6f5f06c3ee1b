"""Try a device with a program's `--try-device`, and read what it says of it."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from meshd.devices import command_lines
from meshd.process.run import environment

TRIAL_SECONDS = 300.0


def trial(
    program: Path, device: str, words: Sequence[str], *extra: str
) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit code; and for each operation the verdict, and what stands behind it."""
    done = subprocess.run(
        [*command_lines.trial(str(program), device, words), *extra],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=TRIAL_SECONDS,
        check=False,
    )
    found = {}
    for line in done.stdout.splitlines():
        if match := re.fullmatch(r"(right|wrong|failed|lacks|unknown) (\S+) ?(.*)", line):
            found[match[2]] = (match[1], match[3])
    return done.returncode, found
