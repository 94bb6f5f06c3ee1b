"""The daemon is imported without a search for garbage, and what was imported is not searched again."""

import subprocess
import sys

_CHECK = """
import gc
from meshd.cli.roles import import_daemon

def searches():
    return sum(generation["collections"] for generation in gc.get_stats())

before = searches()
import_daemon()
print(searches() - before, gc.isenabled(), gc.get_freeze_count() > 10_000)
"""


def test_no_search_while_it_is_imported_and_all_as_usual_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", _CHECK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "True"]
