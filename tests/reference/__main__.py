"""All that is reference in docs/ and configs/, made from the code.

`python -m tests.reference --write` (or `make reference`) brings it up to date; without `--write` it names
the files that are not, and exits with 1.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.reference.pages import PAGES
from tests.rules.source import ROOT


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write what is not up to date")
    write: bool = parser.parse_args(argv).write
    stale = []
    for name, make in PAGES.items():
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        try:
            after = make(before)
        except ValueError as error:
            sys.stdout.write(f"{name}: {error}\n")
            return 1
        if after != before:
            stale.append(name)
            if write:
                path.write_text(after, encoding="utf-8")
    for name in stale:
        sys.stdout.write(f"{'written' if write else 'not up to date'}: {name}\n")
    return 1 if stale and not write else 0


if __name__ == "__main__":
    sys.exit(main())
